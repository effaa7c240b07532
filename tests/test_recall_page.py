"""The examples on docs/recall.md run, and every task and closed form stands there."""

import doctest
import inspect
import re
from pathlib import Path

from stateir.models import theory
from stateir.models.tasks import TASKS

PAGE = Path(__file__).resolve().parent.parent / "docs" / "recall.md"


def test_examples_run() -> None:
    result = doctest.testfile(str(PAGE), module_relative=False, encoding="utf-8")
    assert result.attempted > 10 and result.failed == 0


def test_every_task_and_closed_form_is_listed() -> None:
    named = set(re.findall(r"`(?:theory\.)?(\w+)`", PAGE.read_text(encoding="utf-8")))
    functions = {name for name, f in inspect.getmembers(theory, inspect.isfunction) if f.__module__ == theory.__name__}
    assert set(TASKS) | functions <= named
