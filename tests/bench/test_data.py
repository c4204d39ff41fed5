"""Splits: an order that is a pure function, and the datasets by name."""

from __future__ import annotations

from pydoc_data.topics import topics

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import sklearn.datasets
from hypothesis import given
from hypothesis import strategies as st

from proxlin.bench import data
from proxlin.bench.errors import DataError, UsageError


def split(n):
    """Examples that say which they are."""
    return data.Arrays(np.arange(n, dtype=np.uint8)[:, None], np.arange(n, dtype=np.int32))


def taken(batches):
    """Which examples are in each batch."""
    pairs = [(inputs[:, 0].tolist(), targets.tolist()) for inputs, targets in batches]
    assert all(inputs == targets for inputs, targets in pairs)
    return [targets for _, targets in pairs]


@given(
    n=st.integers(1, 40),
    batch_size=st.integers(1, 40),
    seed=st.integers(0, 2**32),
    epoch=st.integers(0, 1000),
    start=st.integers(0, 40),
)
def test_an_epoch_is_a_permutation_in_full_batches_and_start_is_its_tail(
    n, batch_size, seed, epoch, start
):
    batch_size, start = min(batch_size, n), min(start, n // min(batch_size, n))
    batches = taken(split(n).epoch(seed, epoch, batch_size))
    order = np.random.Generator(np.random.Philox(key=[seed, epoch])).permutation(n).tolist()
    full = n // batch_size * batch_size
    assert [i for batch in batches for i in batch] == order[:full]
    assert [len(batch) for batch in batches] == [batch_size] * (n // batch_size)
    assert taken(split(n).epoch(seed, epoch, batch_size, start)) == batches[start:]


def test_each_seed_and_each_epoch_has_its_own_order():
    orders = {
        tuple(i for batch in taken(split(50).epoch(seed, epoch, 10)) for i in batch)
        for seed in (0, 1)
        for epoch in (0, 1)
    }
    assert len(orders) == 4


@pytest.mark.parametrize(
    ("limit", "expected"),
    [
        (None, [[0, 1, 2], [3, 4, 5], [6]]),
        (5, [[0, 1, 2], [3, 4]]),
        (3, [[0, 1, 2]]),
        (99, [[0, 1, 2], [3, 4, 5], [6]]),
    ],
)
def test_evaluation_takes_the_first_examples_in_order(limit, expected):
    assert taken(split(7).batches(3, limit)) == expected


@pytest.mark.parametrize(
    ("batch_size", "start", "message"),
    [
        (8, 0, "batch size 8 for 7 examples: give one from 1 to 7"),
        (0, 0, "batch size 0 for 7 examples"),
        (3, 3, "start at step 3 of an epoch of 2: give one from 0 to 2"),
        (3, -1, "start at step -1"),
    ],
)
def test_an_epoch_without_batches_is_rejected(batch_size, start, message):
    with pytest.raises(UsageError, match=message):
        next(split(7).epoch(0, 0, batch_size, start))


def test_digits_are_all_those_of_scikit_learn_each_once():
    digits = data.load("digits")
    assert (len(digits.train), len(digits.test)) == (1347, 450)
    parts = [next(split.batches(2000)) for split in (digits.train, digits.test)]
    inputs, targets = (np.concatenate(columns) for columns in zip(*parts, strict=True))
    prepared = jax.jit(digits.prepare)(jnp.asarray(inputs))
    assert prepared.dtype == jnp.float32 and targets.dtype == np.int32
    assert prepared.shape[1:] == digits.shape == (8, 8, 1)
    rows = lambda x, y: sorted(zip((16 * x).reshape(-1, 64).tolist(), y.tolist(), strict=True))
    pixels, labels = sklearn.datasets.load_digits(return_X_y=True)
    assert rows(np.asarray(prepared), targets) == rows(pixels / 16, labels)
    counts = np.bincount(parts[1][1]) / np.bincount(labels)
    np.testing.assert_allclose(counts, 1 / 4, atol=0.01)  # of each class a quarter
    assert digits.sha256 == "d0b6fdbe5c6e0baf5754552625452fc8d189a147832ac7789ca59da6d265d0b8"


def test_text_is_that_of_python_and_the_targets_come_next():
    text = data.load("text")
    assert text.shape == (64, 96) and text.classes == 96
    pieces = [next(split.batches(10**6)) for split in (text.train, text.test)]
    assert len(text.test) == pytest.approx(sum(len(x) for x, _ in pieces) / 10, abs=1)
    inputs, targets = (np.concatenate(parts).ravel() for parts in zip(*pieces, strict=True))
    np.testing.assert_array_equal(targets[:-1], inputs[1:])
    read = "".join("\n" if number == 95 else chr(32 + number) for number in inputs)
    whole = "\n".join(topic for _, topic in sorted(topics.items()))
    assert 0 < len(whole) - len(read) <= 64
    assert all(a == (b if b.isascii() else "?") for a, b in zip(read, whole, strict=False))
    prepared = np.asarray(text.prepare(pieces[1][0]))
    assert prepared.dtype == np.float32 and prepared.shape[1:] == text.shape
    np.testing.assert_array_equal(prepared.argmax(axis=-1), pieces[1][0])
    assert prepared.sum() == pieces[1][0].size


def test_reconstruction_has_the_prepared_inputs_as_targets_in_the_same_order():
    digits = data.load("digits")
    again = data.reconstruction(digits)
    assert (len(again.train), len(again.test)) == (len(digits.train), len(digits.test))
    for one, other in (
        (digits.train.epoch(3, 1, 50, start=4), again.train.epoch(3, 1, 50, start=4)),
        (digits.test.batches(64, 100), again.test.batches(64, 100)),
    ):
        for (inputs, _), (same, targets) in zip(one, other, strict=True):
            np.testing.assert_array_equal(same, inputs)
            np.testing.assert_array_equal(targets, inputs.reshape(len(inputs), 64) / 16)
            assert targets.dtype == np.float32


def test_an_unknown_name_is_answered_by_the_known_ones():
    with pytest.raises(
        UsageError, match=r"'cifar'; choose one of digits, text, mnist, .*cifar10, imagenet"
    ):
        data.load("cifar")


@pytest.mark.parametrize("name", ["mnist", "fashion-mnist", "cifar10", "imagenet"])
def test_missing_data_says_what_to_run(name, tmp_path):
    with pytest.raises(DataError, match=f"(?s){tmp_path}.*`proxlin data fetch {name}`") as caught:
        data.load(name, tmp_path)
    assert caught.value.exit_code == 3


def test_the_data_folder_is_the_one_given_or_of_the_environment_or_the_cache(tmp_path, monkeypatch):
    given, variable, cache = (tmp_path / name for name in ("given", "variable", "cache"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    monkeypatch.delenv("PROXLIN_DATA", raising=False)
    with pytest.raises(DataError, match=str(cache / "proxlin" / "data" / "mnist")):
        data.load("mnist")
    monkeypatch.setenv("PROXLIN_DATA", str(variable))
    with pytest.raises(DataError, match=str(variable / "mnist")):
        data.load("mnist")
    with pytest.raises(DataError, match=str(given / "mnist")):
        data.load("mnist", given)
