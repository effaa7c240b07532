"""Backward passes that have no derivatives of their own, as source text that generated modules begin with.

PyTorch's `once_differentiable` refuses a second derivative only where it is asked for by way of the incoming gradients.
By way of the function's inputs it gives zero for the part that goes through the function: a wrong derivative, silently.
"""

from __future__ import annotations

ONCE = '''
def _once(backward):
    """A backward pass that cannot be differentiated: to ask for that is an error, never zero."""

    @functools.wraps(backward)
    def wrapper(ctx, *gradients):
        if torch.is_grad_enabled():
            raise RuntimeError("create_graph=True: cannot differentiate twice; the chunked form and the kernels have "
                               "first derivatives alone, backend='step' has all")
        return backward(ctx, *gradients)

    return wrapper
'''
