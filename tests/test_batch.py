"""How much of a batch curvature is taken from."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import proxlin
from proxlin.batch import make_batch
from tests import cases
from tests.cases import dense, flat, network, problem, relative_error, targets_of

AUTO = proxlin.Share(1 / 8, least=32)


@pytest.mark.parametrize(
    ("m", "places", "examples"),
    [
        (1024, 1, 128),  # an eighth
        (256, 1, 32),
        (255, 1, 32),  # at least 32
        (63, 1, 32),
        (20, 1, 20),  # if there are as many
        (1, 1, 1),
        (16, 128, 2),  # 256 of 2048 outputs
        (64, 8, 8),
        (8, 20, 2),  # as few whole sequences as have 32 outputs
        (3, 5, 3),
        (99, 1000, 13),  # as many whole sequences as have an eighth of the outputs
        (100, 1000, 14),  # seven for each of two devices
        (264, 1, 40),  # five for each of eight
        (1000, 1, 128),
    ],
)
def test_examples_of_a_share(m, places, examples):
    assert AUTO.examples(m, places) == examples


@given(st.floats(1e-3, 1), st.integers(1, 500), st.integers(1, 2000), st.integers(1, 300))
def test_as_few_examples_as_have_enough_outputs(fraction, least, m, places):
    """Up to a quarter more, so that devices can share them."""
    examples = proxlin.Share(fraction, least).examples(m, places)
    wanted = max(least, int(np.floor(fraction * m * places)))
    assert 1 <= examples <= m
    assert examples == m or examples * places >= wanted
    shared = min(examples & -examples, m & -m)
    fewest = examples if shared == 1 else examples / 1.25
    assert examples == 1 or (fewest - 1) * places < wanted


@pytest.mark.parametrize("m", [63, 255, 256])
@pytest.mark.parametrize("weights", ["none", "every other", "the second half"])
def test_examples_have_weight_and_are_spread_over_the_batch(m, weights):
    """One from each of 32 stretches of nearly equal length, if any of its examples has weight."""
    size = AUTO.examples(m, 1)
    row = np.arange(m)
    given = {
        "none": None,
        "every other": (row % 2 == 1).astype(float),
        "the second half": (row >= m // 2).astype(float),
    }[weights]
    weigh = np.ones(m) if given is None else given
    outputs = jax.ShapeDtypeStruct((m, 1), jnp.float64)
    numbers = jnp.arange(m, dtype=jnp.float64)[:, None]
    batch = make_batch(
        proxlin.Squared(), outputs, numbers, numbers, given if given is None else jnp.asarray(given)
    )
    part = batch.part(size)
    live = np.asarray(part.weights) > 0
    chosen = np.asarray(part.inputs[:, 0]).astype(int)[live]
    np.testing.assert_array_equal(part.inputs, part.targets)
    assert np.all(weigh[chosen] > 0)
    stretch = np.searchsorted(np.arange(size + 1) * m // size, chosen, side="right") - 1
    filled = [j for j in range(size) if weigh[j * m // size : (j + 1) * m // size].any()]
    np.testing.assert_array_equal(stretch, filled)
    np.testing.assert_allclose(np.sum(part.weights), 1)
    want = cases.part_of_batch(weigh, size)
    np.testing.assert_allclose(part.weights[live], want[chosen], rtol=1e-12)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("name", ["squared", "logistic"])
def test_curvature_of_whole_sequences(name, weighted):
    """All places of some sequences, and the gradient of all of them."""
    m, places = 6, 4
    share = proxlin.Share(1 / 4, least=5)  # 6 of 24 outputs, so two sequences of four
    params, _, _ = problem(name, jnp.float64)
    rng = np.random.default_rng(3)
    x = jnp.asarray(rng.normal(size=(m, places, 5)))
    y = targets_of(name, (m, places), jnp.float64, 3)
    weights = rng.uniform(0.2, 2.0, (m, places)) if weighted else np.ones((m, places))
    fn = proxlin.value_and_direction(
        network, cases.LOSSES[name], curvature_size=share, solver=proxlin.CG(60)
    )
    given = {"weights": jnp.asarray(weights)} if weighted else {}
    (_, info), d = fn(params, x, y, gamma=2.0, **given)
    grad, _ = dense(name, params, x, y, jnp.asarray(weights))
    part = cases.part_of_batch(weights, 2)
    chosen = np.sum(part, axis=1) > 0
    assert np.sum(chosen) == 2 and np.all(part[chosen] > 0)
    _, curvature = dense(name, params, x, y, jnp.asarray(part))
    np.testing.assert_allclose(flat(info.grad), grad, rtol=1e-10, atol=1e-13)
    want = np.linalg.solve(np.asarray(curvature) + np.eye(len(grad)) / 2.0, np.asarray(grad))
    assert relative_error(flat(d), want) < 1e-9


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"fraction": 0.0}, "fraction must lie between 0 and 1"),
        ({"fraction": 1.5}, "fraction must lie between 0 and 1"),
        ({"least": 0}, r"least=0\): give an integer of at least 1"),
    ],
)
def test_bad_shares(options, message):
    with pytest.raises(ValueError, match=message):
        proxlin.Share(**options)
