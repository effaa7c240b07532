import doctest

import pytest

from stateir.models import usable_context as module
from stateir.models.usable_context import UsableContext, ratio, usable_context

LENGTHS = (2048, 4096, 8192, 16384, 32768)
# S-NIAH-1 accuracy in percent at these lengths, seeds 0 and 1 (arXiv:2608.13668).
PUBLISHED = {
    "gdn2": ((99.0, 93.4, 64.4, 21.8, 9.4), (95.6, 79.2, 50.6, 21.2, 6.0)),
    "qed": ((100, 99.6, 91.6, 39.8, 15.8), (99.6, 96.0, 84.2, 59.8, 30.2)),
}


@pytest.mark.parametrize(("tau", "expected"), [(90, (1.9, 2.2)), (80, (1.7, 2.3)), (50, (1.4, 2.5))])
def test_the_published_table_gives_these_ratios(tau: float, expected: tuple[float, float]) -> None:
    for seed in (0, 1):
        context = {
            rule: usable_context(dict(zip(LENGTHS, accuracy[seed], strict=True)), tau)
            for rule, accuracy in PUBLISHED.items()
        }
        assert round(ratio(context["qed"], context["gdn2"]), 1) == expected[seed]


def test_the_first_fall_counts_and_exact_values_are_kept() -> None:
    assert usable_context({64: 1.0, 256: 0.5, 128: 0.7, 512: 0.9}, 0.6) == UsableContext(
        pytest.approx(128 * 2**0.5), "measured"
    )
    assert usable_context({64: 0.9, 128: 0.9, 256: 0.8}, 0.9).length == pytest.approx(128)


def test_bounds_are_said() -> None:
    assert str(usable_context({64: 0.9, 128: 0.9}, 0.9)) == ">= 128"
    assert str(usable_context({64: 0.8, 128: 0.9}, 0.9)) == "< 64"
    with pytest.raises(ValueError, match="b must be measured, got >= 128"):
        ratio(UsableContext(64, "measured"), usable_context({64: 0.9, 128: 0.9}, 0.9))


def test_errors() -> None:
    with pytest.raises(ValueError, match="at least one length, got none"):
        usable_context({}, 0.5)
    with pytest.raises(ValueError, match="lengths must be positive, got 0"):
        usable_context({0: 1.0}, 0.5)


def test_docstrings() -> None:
    assert doctest.testmod(module).failed == 0
