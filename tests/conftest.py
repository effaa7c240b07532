"""Without a GPU, kernels run in Triton's interpreter; that must be said before anything imports triton."""

from __future__ import annotations

import os

import pytest
import torch

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="write the golden files of generated code anew")
    parser.addoption("--update-screenshots", action="store_true", help="write the playground's pictures in docs anew")
