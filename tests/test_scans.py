"""Which scan a vector state gets."""

import time

import pytest

import stateir
from stateir.affine import normal_form
from stateir.codegen.chunked_module import sequence_source
from stateir.codegen.step import step_source
from stateir.core import core
from stateir.ir import Num
from stateir.scans import scans

HEAD = "rule x\ninput q: key, k: key, v: value, f: scalar in (-inf, 0], i: scalar, a: key in [0, 1]\n"
REST = "update S += outer(k, v)\nread o = q @ S\n"


def kinds(lines):
    return [(s.states, s.kind) for s in scans(stateir.parse(HEAD + lines + REST))]


@pytest.mark.parametrize(("lines", "kind"), [
    ("state z: key\nupdate z += k\n", "affine"),
    ("state z: key\nupdate z = exp(f) * z - k / 2\n", "affine"),
    ("state z: key\nlet y = a * z\nupdate z = y + k\n", "affine"),
    ("state z: key\nupdate z = a * z + k\nupdate z = (z + k) / 2\n", "affine"),
    ("state m: scalar\nupdate m = max(f + m, i)\n", "max-plus"),
    ("state m: scalar\nupdate m = max(i, m - 1)\nupdate m = max(m, k @ q)\n", "max-plus"),
    ("state z: key\nupdate z = tanh(z + k)\n", "sequential"),
    ("state z: key\nupdate z = (z @ k) * k\n", "sequential"),
    ("state z: key\nupdate z = z * z + k\n", "sequential"),
    ("state m: scalar\nupdate m = min(f + m, i)\n", "sequential"),
])  # fmt: skip
def test_kind(lines, kind):
    assert [k for _, k in kinds(lines)] == [kind]


def test_a_state_comes_after_what_it_needs():
    lines = "state z: key\nstate m: scalar\nlet d = f + m - i\n"
    lines += "update m = max(f + m, i)\nupdate z = exp(min(d, 0)) * z + k\n"
    assert kinds(lines) == [(("m",), "max-plus"), (("z",), "affine")]


def test_states_that_need_each_other_run_together():
    lines = "state z: key\nstate y: key\nupdate z = z / 2 + y / 4\nupdate y = y / 2 + z / 4\n"
    assert kinds(lines) == [(("z", "y"), "sequential")]


def test_an_older_version_in_a_let_is_part_of_the_map():
    lines = "state z: scalar\nupdate z = 2 * z\nlet old = z\nupdate z = z / 8\nupdate z = z + old * old\n"
    assert kinds(lines) == [(("z",), "sequential")]


def test_a_read_of_the_value_before_the_update_keeps_it():
    """Both updates see the value that stands just above them; the let holds the older one."""
    (scan,) = scans(stateir.parse(HEAD + "state z: scalar\nlet old = z\nupdate z = z / 2\nupdate z = z + old\n" + REST))
    assert scan.kind == "affine" and scan.b is None and scan.a is not None


@pytest.mark.parametrize("lines", [
    "state z: scalar\nupdate z = i * z + z / 2 for n in 1..64\n",
    "state z: scalar\nlet y = z + i * z\nupdate z = y / 2 + z for n in 1..32\nlet w = z * y\n"
    "update z = i * z + w + z / 2 for n in 1..32\n",
    "state m: scalar\nupdate m = max(m + i, m) for n in 1..64\n",
])  # fmt: skip
def test_many_updates_compile_in_time_and_text_in_proportion(lines):
    """Put into one another, updates that use the version before twice would make 2^64 nodes."""
    rule = stateir.parse(HEAD + lines + REST)
    start = time.perf_counter()
    text = sequence_source(rule, core(normal_form(rule)), None)
    step_source(rule)
    assert time.perf_counter() - start < 1
    assert kinds(lines)[0][1] == "sequential"
    assert len(text) < 30_000


def test_few_updates_of_one_state_are_still_one_map():
    assert kinds("state z: scalar\nupdate z = f * z + z / 2 for n in 1..5\n") == [(("z",), "affine")]


def test_a_long_map_is_not_nested_deeper_than_python_reads():
    lines = "state z: scalar\n" + "update z = f * z + i for n in 1..60\n"
    assert kinds(lines) == [(("z",), "sequential")]


@pytest.mark.parametrize("value", ["k", "k + i"])
def test_a_state_that_is_overwritten_is_no_map_of_itself(value):
    (scan,) = scans(stateir.parse(HEAD + f"state z: key\nupdate z = {value}\n" + REST))
    assert scan.kind == "affine" and scan.a == Num(0.0) and scan.b is not None
