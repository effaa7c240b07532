"""Without a GPU, kernels run in Triton's interpreter; that must be said before anything imports triton."""

from __future__ import annotations

import os

import torch

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")
