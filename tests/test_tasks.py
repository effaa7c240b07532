"""Every task's labels against a slow oracle that reads one row's inputs as text and knows nothing of the generator."""

import doctest
import itertools
from collections.abc import Callable
from importlib import import_module
from typing import Any

import numpy as np
import pytest

from stateir.models import mqar
from stateir.models.config import config_hash, from_dict, to_dict
from stateir.models.mqar import IGNORE, MqarConfig, accuracy
from stateir.models.tasks import TASKS, exact
from stateir.models.tasks.compositional import CompositionalConfig
from stateir.models.tasks.induction import InductionConfig
from stateir.models.tasks.modular import ModularConfig
from stateir.models.tasks.needle import NeedleConfig, generate
from stateir.models.tasks.palindrome import PalindromeConfig
from stateir.models.tasks.parity import ParityConfig
from stateir.models.tasks.selective_copying import SelectiveCopyingConfig
from stateir.models.tasks.stack import StackConfig
from stateir.models.tasks.word_problem import WordProblemConfig

Answers = dict[int, int]
Oracle = Callable[[Any, list[int]], Answers]


def mqar_oracle(config: MqarConfig, row: list[int]) -> Answers:
    written = dict(zip(row[0 : config.context : 2], row[1 : config.context : 2], strict=True))
    return {i: written[row[i]] for i in range(config.context, config.length) if row[i] != 0}


def compositional_oracle(config: CompositionalConfig, row: list[int]) -> Answers:
    block = config.key_tokens + 1
    written, answers = {}, {}
    for start in range(0, config.length - block + 1, block):
        *key, last = row[start : start + block]
        if last > config.alphabet:
            written[tuple(key)] = last
        elif key[0] != 0:
            answers[start + block - 2] = written[tuple(key)]
    return answers


def needle_oracle(config: NeedleConfig, row: list[int]) -> Answers:
    marker, question, k, v = config.noise_vocab, config.noise_vocab + 1, config.key_tokens, config.value_tokens
    end = row.index(question)
    found = {}
    for i in range(end):
        if row[i] == marker:
            found[tuple(row[i + 1 : i + 1 + k])] = row[i + 1 + k : i + 1 + k + v]
    value = found[tuple(row[end + 1 : end + 1 + k])]
    assert row[end + 1 + k :] == value[:-1]
    return {end + k + j: token for j, token in enumerate(value)}


def palindrome_oracle(config: PalindromeConfig, row: list[int]) -> Answers:
    middle = row.index(config.vocab)
    assert middle == config.length // 2
    return {middle + j: row[middle - 1 - j] for j in range(middle)}


def stack_oracle(config: StackConfig, row: list[int]) -> Answers:
    stacks: dict[int, list[int]] = {}
    answers = {}
    for at in range(0, len(row) - 2, 3):
        kind, which, symbol = row[at : at + 3]
        if kind == 1:
            stacks.setdefault(which, []).append(symbol)
        else:
            assert kind == 2
            answers[at + 1] = stacks[which].pop()
            assert answers[at + 1] == symbol
    return answers


def parity_oracle(config: ParityConfig, row: list[int]) -> Answers:
    return {i: row[: i + 1].count(1) % 2 for i in range(len(row))}


def word_problem_oracle(config: WordProblemConfig, row: list[int]) -> Answers:
    n = int(config.group[1:])
    if config.group[0] == "z":
        return {i: sum(row[: i + 1]) % n for i in range(len(row))}

    def matrix(p: tuple[int, ...]) -> np.ndarray:
        return np.eye(n, dtype=int)[list(p)].T

    elements = [matrix(p) for p in itertools.permutations(range(n))]
    if config.group[0] == "a":
        elements = [m for m in elements if round(np.linalg.det(m)) == 1]
    product, answers = np.eye(n, dtype=int), {}
    for i, g in enumerate(row):
        product = elements[g] @ product
        answers[i] = next(j for j, m in enumerate(elements) if np.array_equal(m, product))
    return answers


def modular_oracle(config: ModularConfig, row: list[int]) -> Answers:
    text, answers = "0", {}
    for i in range(0, len(row), 2):
        text = f"({text}) {config.operations[row[i] - config.modulus]} {row[i + 1]}"
        answers[i + 1] = eval(text) % config.modulus
        text = str(eval(text))
    return answers


def induction_oracle(config: InductionConfig, row: list[int]) -> Answers:
    assert row.count(config.vocab) == 2 and row[-1] == config.vocab
    return {len(row) - 1: row[row.index(config.vocab) + 1]}


def selective_copying_oracle(config: SelectiveCopyingConfig, row: list[int]) -> Answers:
    symbols = [token for token in row if 0 < token <= config.vocab]
    assert row[-config.copies :] == [config.vocab + 1] * config.copies
    return {len(row) - config.copies + j: token for j, token in enumerate(symbols)}


CASES: list[tuple[str, Any]] = [
    ("mqar", MqarConfig(length=32, pairs=4, overwrites=4)),
    ("compositional", CompositionalConfig()),
    ("compositional", CompositionalConfig(length=50, pairs=6, key_tokens=3, alphabet=2, values=6, a=1.0)),
    ("compositional", CompositionalConfig(length=20, pairs=4, key_tokens=1, alphabet=4, values=9, a=3.0)),
    ("needle", NeedleConfig()),
    ("needle", NeedleConfig(length=90, noise="iid", needles=6, noise_vocab=3, key_vocab=3)),
    ("needle", NeedleConfig(length=40, needles=3, depth=0.5, key_tokens=1, value_tokens=1, noise_vocab=5)),
    ("needle", NeedleConfig(length=11)),
    ("palindrome", PalindromeConfig(length=20, vocab=5)),
    ("palindrome", PalindromeConfig(length=2, vocab=3)),
    ("stack", StackConfig(length=100, stacks=4, symbols=5)),
    ("stack", StackConfig(length=64, stacks=1, symbols=3, pop=0.3)),
    ("stack", StackConfig(length=6)),
    ("parity", ParityConfig(length=33)),
    ("word_problem", WordProblemConfig(length=12)),
    ("word_problem", WordProblemConfig(length=12, group="a5")),
    ("word_problem", WordProblemConfig(length=20, group="s3")),
    ("word_problem", WordProblemConfig(length=20, group="z60")),
    ("modular", ModularConfig(length=20)),
    ("modular", ModularConfig(length=20, modulus=7, operations="-+")),
    ("induction", InductionConfig(length=12, vocab=4)),
    ("induction", InductionConfig(length=3, vocab=2)),
    ("selective_copying", SelectiveCopyingConfig(length=24, copies=5, vocab=3)),
    ("selective_copying", SelectiveCopyingConfig(length=8, copies=4, vocab=3)),
]
NAMED = pytest.mark.parametrize(("name", "config"), CASES, ids=[f"{n}-{i}" for i, (n, _) in enumerate(CASES)])


def test_every_task_is_tested() -> None:
    assert {name for name, _ in CASES} == set(TASKS)


@NAMED
def test_labels_are_what_the_inputs_say(name: str, config: Any) -> None:
    rows = TASKS[name].generate(config, 40, (0, 7))
    assert rows.inputs.shape == rows.labels.shape == (40, config.length)
    assert rows.inputs.dtype == rows.labels.dtype == np.int64
    assert rows.inputs.min() >= 0 and rows.inputs.max() < config.tokens
    oracle: Oracle = globals()[f"{name}_oracle"]
    for inputs, labels in zip(rows.inputs.tolist(), rows.labels.tolist(), strict=True):
        assert {i: label for i, label in enumerate(labels) if label != IGNORE} == oracle(config, inputs)
        assert max(labels) >= 0


@NAMED
def test_data_depend_on_the_seed_alone(name: str, config: Any) -> None:
    draw = TASKS[name].generate
    np.random.seed(0)
    before = np.random.get_state()[1].copy()  # type: ignore[index,union-attr]
    one = draw(config, 20, (3, 4))
    assert np.array_equal(before, np.random.get_state()[1])  # type: ignore[index]
    np.random.seed(1)
    two = draw(config, 20, (3, 4))
    assert np.array_equal(one.inputs, two.inputs) and np.array_equal(one.labels, two.labels)
    assert not np.array_equal(one.inputs, draw(config, 20, (3, 5)).inputs)


@NAMED
def test_rows_print_and_configurations_survive_json(name: str, config: Any) -> None:
    task = TASKS[name]
    rows = task.generate(config, 1, 0)
    above, below = task.render(config, rows.inputs[0], rows.labels[0]).split("\n")
    assert above.startswith("input  ") and below.startswith("labels ") and len(above) == len(below)
    assert len(above.split()) == len(below.split()) == 1 + config.length
    assert [s == "-" for s in below.split()[1:]] == (rows.labels[0] == IGNORE).tolist()
    again = from_dict(task.config, to_dict(config))
    assert again == config and config_hash(again) == config_hash(config)
    with pytest.raises(ValueError, match="has no field wrong"):
        from_dict(task.config, {"wrong": 1})


@pytest.mark.parametrize(
    ("config", "field", "bad"),
    [
        (CompositionalConfig, "pairs", 65), (CompositionalConfig, "values", 7), (CompositionalConfig, "length", 47),
        (CompositionalConfig, "a", 0.0), (CompositionalConfig, "key_tokens", 0), (CompositionalConfig, "alphabet", 0),
        (NeedleConfig, "noise", "pink"), (NeedleConfig, "needles", 101), (NeedleConfig, "depth", 1.5),
        (NeedleConfig, "length", 10), (NeedleConfig, "value_tokens", 0), (NeedleConfig, "noise_vocab", 0),
        (PalindromeConfig, "length", 7), (PalindromeConfig, "vocab", 1),
        (StackConfig, "length", 5), (StackConfig, "stacks", 0), (StackConfig, "symbols", 0), (StackConfig, "pop", 0.0),
        (ParityConfig, "length", 0),
        (WordProblemConfig, "length", 0), (WordProblemConfig, "group", "s9"), (WordProblemConfig, "group", "a2"),
        (ModularConfig, "length", 7), (ModularConfig, "modulus", 1), (ModularConfig, "operations", "+/"),
        (ModularConfig, "operations", ""), (ModularConfig, "operations", "++"),
        (InductionConfig, "length", 2), (InductionConfig, "vocab", 1),
        (SelectiveCopyingConfig, "length", 15), (SelectiveCopyingConfig, "copies", 0),
        (SelectiveCopyingConfig, "vocab", 1),
    ],
)  # fmt: skip
def test_errors_name_the_field(config: type[Any], field: str, bad: Any) -> None:
    with pytest.raises(
        ValueError, match=f"^{field} must be .*{bad if bad != '++' else 'each once'}".replace("+/", ".*")
    ):
        config(**{field: bad})


@pytest.mark.parametrize("name", [m for m in TASKS if m != "mqar"])
def test_docstrings_show_rows(name: str) -> None:
    result = doctest.testmod(import_module(f"stateir.models.tasks.{name}"))
    assert result.attempted > 0 and result.failed == 0
    assert doctest.testmod(mqar).failed == 0


def test_needles_stand_at_the_depth_asked_for() -> None:
    for depth in (0.0, 0.25, 1.0):
        config = NeedleConfig(length=203, needles=3, depth=depth, noise="iid")
        rows = generate(config, 30, 0)
        for row in rows.inputs.tolist():
            end = row.index(config.noise_vocab + 1)
            key = row[end + 1 : end + 3]
            at = next(i for i in range(end) if row[i] == config.noise_vocab and row[i + 1 : i + 3] == key)
            before = sum(token < config.noise_vocab for token in row[:at])
            assert before == round(depth * config.noise_tokens)


def test_needles_stand_everywhere_and_any_is_asked() -> None:
    config = NeedleConfig(length=43, needles=2)
    rows = generate(config, 4000, 1)
    ends = rows.inputs[:, -config.question_tokens + 1 :][:, :2]
    starts = np.argsort(rows.inputs != config.noise_vocab, axis=1, kind="stable")[:, :2]
    first = (np.take_along_axis(rows.inputs, starts[:, :1] + [1, 2], axis=1) == ends).all(1)
    # The first needle is asked half of the time: five standard errors of a fair coin.
    assert abs(first.mean() - 0.5) < 5 * 0.5 / 4000**0.5
    assert set(np.unique(starts[:, 0])) == set(range(config.noise_tokens + 1))


def test_the_cycle_goes_on_behind_a_needle() -> None:
    config = NeedleConfig(length=60, noise_vocab=7)
    for row in generate(config, 20, 2).inputs.tolist():
        noise = [token for token in row if token < 7]
        assert all((b - a) % 7 == 1 for a, b in itertools.pairwise(noise))


def test_pops_and_stacks_are_drawn_evenly() -> None:
    config = StackConfig(length=300, stacks=3, symbols=4)
    inputs = TASKS["stack"].generate(config, 300, 0).inputs
    pushes = inputs[:, 0::3] == 1
    share = [(inputs[:, 1::3][pushes] == 3 + s).mean() for s in range(3)]
    assert np.abs(np.array(share) - 1 / 3).max() < 5 * (2 / 9 / pushes.sum()) ** 0.5


def test_scores() -> None:
    labels = np.array([[-100, 1, 2], [-100, 3, 4]])
    predictions = np.array([[9, 1, 2], [9, 3, 0]])
    assert exact(predictions, labels) == 0.5 and accuracy(predictions, labels) == 0.75
