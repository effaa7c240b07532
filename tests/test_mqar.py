"""The recall task: the law of the rows, exact agreement with the public generator, and what is refused."""

import doctest
import hashlib

import numpy as np
import pytest

from stateir.models import mqar
from stateir.models.config import config_hash, from_dict, to_dict
from stateir.models.mqar import IGNORE, MqarConfig, Rows, accuracy, generate, generate_public, render_row


def places(config: MqarConfig, rows: Rows) -> tuple[np.ndarray, np.ndarray]:
    """Positions of the queries and of their keys' last writes, both [rows, queries]."""
    asked = np.nonzero(rows.labels != IGNORE)[1].reshape(-1, config.queries)
    keys = np.take_along_axis(rows.inputs, asked, axis=1)
    context = rows.inputs[:, 0 : config.context : 2]
    writes = context.shape[1] - 1 - np.argmax(context[:, None, ::-1] == keys[:, :, None], axis=2)
    return asked, 2 * writes


def test_the_blogs_row() -> None:
    result = doctest.testmod(mqar)
    assert result.attempted >= 3
    assert result.failed == 0


# Hashes of the public generator's own output (filler off), inputs and labels one after the other.
@pytest.mark.parametrize(
    ("length", "pairs", "vocab", "rows", "seed", "digest"),
    [
        (64, 4, 8192, 50, 0, "56e1d6e53b2b7667"),
        (128, 8, 8192, 50, 1, "9dc31ad298f47fd7"),
        (256, 64, 8192, 20, 2, "d2606fcfa0cadcdd"),
        (64, 8, 128, 50, 123, "2e6696cc9ffaf1ab"),
    ],
)
def test_same_bytes_as_the_public_generator(
    length: int, pairs: int, vocab: int, rows: int, seed: int, digest: str
) -> None:  # fmt: skip
    data = generate_public(MqarConfig(length, pairs, vocab), rows, seed)
    assert hashlib.sha256(data.inputs.tobytes() + data.labels.tobytes()).hexdigest()[:16] == digest


# Mean distances of a long published run; 2,000 rows have a standard error below 0.35.
@pytest.mark.parametrize("draw", [generate, generate_public])
@pytest.mark.parametrize(
    ("length", "pairs", "distance"), [(64, 4, 19.1), (128, 8, 37.2), (256, 16, 73.1), (256, 32, 94.2), (256, 64, 128.0)]
)
def test_mean_distance(length: int, pairs: int, distance: float, draw: object) -> None:
    config = MqarConfig(length, pairs, 8192)
    rows = (generate if draw is generate else generate_public)(config, 2000, 0)
    asked, written = places(config, rows)
    assert abs((asked - written).mean() - distance) < 1.0


def test_fast_draw_has_the_public_law() -> None:
    """Each key's gap has the same mean in both, key by key: the order of drawing is part of the law."""
    config = MqarConfig(64, 8, 256)
    gaps = [(places(config, draw(config, 4000, 3))) for draw in (generate, generate_public)]
    means = []
    for asked, written in gaps:
        order = np.argsort(written, axis=1)
        means.append(np.take_along_axis(asked, order, axis=1).mean(axis=0))
    assert np.abs(means[0] - means[1]).max() < 1.2
    assert means[0][0] < means[0][-1] - 2


@pytest.mark.parametrize(("a", "near"), [(0.01, True), (3.0, False)])
def test_distance_knob(a: float, near: bool) -> None:
    uniform = places(c := MqarConfig(64, 4, 128, a=1.0), generate(c, 2000, 0))[0].mean()
    knob = places(c := MqarConfig(64, 4, 128, a=a), generate(c, 2000, 0))[0].mean()
    assert (knob < uniform - 5) if near else (knob > uniform + 5)


CASES = [(8192, 64, 4), (8192, 512, 64), (256, 128, 16), (128, 64, 8)]


def ambiguous(config: MqarConfig, rows: Rows) -> float:
    """The share of queries whose key stands before them other than in its own pair or as a query."""
    bad = total = 0
    for x, y in zip(rows.inputs, rows.labels, strict=True):
        for place in np.flatnonzero(y != IGNORE):
            seen = np.flatnonzero(x[:place] == x[place])
            own = (seen < config.context) & (seen % 2 == 0)
            bad += bool((~own).any()) or x[seen[own][-1] + 1] != y[place]
            total += 1
    return bad / total


@pytest.mark.parametrize("filler", ["random", "token", "zero"])
@pytest.mark.parametrize(("vocab", "length", "pairs"), CASES)
def test_h20_no_query_has_two_answers(vocab: int, length: int, pairs: int, filler: str) -> None:
    config = MqarConfig(length, pairs, vocab, filler=filler)  # type: ignore[arg-type]
    rows = generate(config, 300, 5)
    assert ambiguous(config, rows) == 0
    assert rows.inputs.max() < config.tokens


@pytest.mark.parametrize(("case", "share"), list(zip(CASES, [0.003, 0.019, 0.14, 0.13], strict=True)))
def test_h20_the_whole_vocabulary_as_filler_does_it(case: tuple[int, int, int], share: float) -> None:
    vocab, length, pairs = case
    config = MqarConfig(length, pairs, vocab, filler="zoology")
    assert share / 2 < ambiguous(config, generate(config, 300, 5)) < 2 * share


@pytest.mark.parametrize("filler", ["random", "zoology"])
def test_h20_a_seed_fixes_the_bytes(filler: str) -> None:
    config = MqarConfig(64, 8, 128, overwrites=8, filler=filler)  # type: ignore[arg-type]
    np.random.seed(1)
    first = generate(config, 50, 7)
    np.random.seed(2)
    np.random.rand(5)
    again, other = generate(config, 50, 7), generate(config, 50, 8)
    assert first.inputs.tobytes() == again.inputs.tobytes()
    assert first.labels.tobytes() == again.labels.tobytes()
    assert first.inputs.tobytes() != other.inputs.tobytes()


def test_random_filler_reaches_every_free_id_evenly() -> None:
    config = MqarConfig(64, 2, 16, filler="random")
    rows = generate(config, 4000, 0)
    filler = rows.inputs[:, config.context :][rows.labels[:, config.context :] == IGNORE]
    counts = np.bincount(filler, minlength=16)
    # 0 is free in every row; a key id is free in 5/7 of the rows, a value id in 6/8.
    expected = np.array([1.0] + [5 / 7] * 7 + [6 / 8] * 8)
    assert np.abs(counts / counts.sum() - expected / expected.sum()).max() < 0.003


@pytest.mark.parametrize("overwrites", [0, 3, 8])
def test_overwriting(overwrites: int) -> None:
    """Writes are spread evenly, values do not repeat, and the answer is the last value of its key."""
    config = MqarConfig(64, 8, 128, overwrites=overwrites)
    rows = generate(config, 200, 0)
    assert ambiguous(config, rows) == 0
    last_first_write = []
    for x in rows.inputs:
        keys, values = x[0 : config.context : 2], x[1 : config.context : 2]
        counts = np.unique(keys, return_counts=True)[1]
        assert len(counts) == 8
        assert counts.sum() == 8 + overwrites
        assert counts.max() - counts.min() <= 1
        assert len(set(values)) == len(values)
        assert keys.max() < 64 <= values.min()
        last_first_write.append(max(list(keys).index(k) for k in keys))
    # Rewrites are mixed among the first writes: the place of a write does not tell whether it is the last one.
    assert (np.mean(last_first_write) > 7.5) == (overwrites > 0)


def test_num_queries() -> None:
    config = MqarConfig(40, 16, 64, num_queries=4)
    rows = generate(config, 2000, 0)
    assert ((rows.labels != IGNORE).sum(axis=1) == 4).all()
    _, written = places(config, rows)
    assert ambiguous(config, rows) == 0
    # Every key is asked equally often: 500 of 2,000 rows, standard deviation 19.
    assert np.abs(np.bincount(written.ravel() // 2, minlength=16) - 500).max() < 90


def test_keys_and_values_are_uniform() -> None:
    """Both ways of drawing without repetition (few of many ids, many of few) reach every id equally at every place."""
    for pairs in (2, 12):
        config = MqarConfig(64, pairs, 64)
        keys = generate(config, 6000, 0).inputs[:, 0 : config.context : 2]
        assert all(len(set(row)) == pairs for row in keys[:500])
        for place in (0, pairs - 1):
            counts = np.bincount(keys[:, place], minlength=32)[1:32]
            assert np.abs(counts / 6000 - 1 / 31).max() < 0.012


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"length": 63}, "length must be even"),
        ({"a": 0}, "a must be positive, got 0"),
        ({"pairs": 32, "vocab": 64, "length": 256}, "pairs must be at most vocab/2 - 1 = 31"),
        ({"pairs": 17, "length": 64}, "at least 2 \\(pairs \\+ overwrites\\) \\+ 2 queries = 68, got 64"),
        ({"pairs": 8, "overwrites": 17, "length": 64}, "= 66, got 64"),
        ({"pairs": 20, "overwrites": 20, "vocab": 64, "length": 256}, "values do not repeat"),
        ({"num_queries": 9}, "num_queries must be in 1 .. pairs = 8, got 9"),
        ({"num_queries": 0}, "num_queries must be in 1"),
        ({"filler": "noise"}, "filler must be one of"),
        ({"filler": "zoology", "vocab": 64}, "vocab must exceed length = 64"),
        ({"overwrites": -1}, "overwrites must be at least 0"),
        ({"pairs": 0}, "pairs must be at least 1"),
        ({"vocab": 127}, "vocab must be even"),
    ],
)
def test_refused_configurations(fields: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        MqarConfig(**fields)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (MqarConfig(overwrites=8), "no overwrites"),
        (MqarConfig(num_queries=2), "asks every key"),
        (MqarConfig(filler="token"), "filler 'zero'"),
        (MqarConfig(vocab=64), "vocab must exceed length"),
    ],
)
def test_public_draw_refuses_what_it_does_not_have(config: MqarConfig, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        generate_public(config, 4, 0)


def test_configuration_to_json_and_back() -> None:
    config = MqarConfig(128, 8, 256, overwrites=4)
    assert from_dict(MqarConfig, to_dict(config)) == config
    assert config_hash(config) == config_hash(MqarConfig(128, 8, 256, overwrites=4)) != config_hash(MqarConfig())
    with pytest.raises(ValueError, match="MqarConfig has no field lenght; its fields are length, pairs"):
        from_dict(MqarConfig, {"lenght": 64})


def test_accuracy_is_the_mean_of_row_means() -> None:
    labels = np.array([[IGNORE, 1, 2, 3], [IGNORE, IGNORE, 5, IGNORE]])
    assert accuracy(np.array([[0, 1, 2, 9], [0, 0, 4, 0]]), labels) == pytest.approx((2 / 3 + 0) / 2)


def test_rendering_counts_beyond_z() -> None:
    config = MqarConfig(8, 2, 64)
    text = render_row(config, np.array([26, 32, 27, 63, 0, 0, 27, 0]), np.array([IGNORE] * 6 + [63, IGNORE]))
    assert text == "input   z  0 aa 31  .  . aa  .\nlabels  -  -  -  -  -  - 31  -"
