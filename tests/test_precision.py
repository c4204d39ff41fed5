"""The state and the parameters of ``auto`` in half precision."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import proxlin
from tests.cases import flat, relative_error
from tests.test_robustness import accuracy, batches, digits, network, start

LOSS = proxlin.Logistic()
STEPS = 250


def method(state_dtype=None, epsilon=1e-4):
    """What ``auto`` is made of."""
    return proxlin.prox_linear(
        network,
        LOSS,
        step=proxlin.StochasticTrustRegion(),
        metric=proxlin.Kronecker(epsilon=epsilon),
        momentum=0.9,
        subproblem=proxlin.primal_quadratic,
        curvature_size=proxlin.Share(1 / 8, least=32),
        average=True,
        state_dtype=state_dtype,
    )


def dtypes(tree, *, numbers):
    """Those of arrays, or of single numbers."""
    leaves = [leaf for leaf in jax.tree.leaves(tree) if (leaf.ndim == 0) == numbers]
    return {str(leaf.dtype) for leaf in leaves}


def first_batches(number):
    x, y = digits()[0]
    return batches(x, y, number)


@functools.cache
def trained(state_dtype=None, dtype=jnp.float32, epsilon=1e-4):
    opt = method(state_dtype, epsilon)
    x, y = first_batches(STEPS)

    @functools.partial(jax.jit, donate_argnums=(0, 1))
    def run(params, state, x, y):
        def step(carry, batch):
            params, state = carry
            updates, state = opt.update(None, state, params, inputs=batch[0], targets=batch[1])
            return (optax.apply_updates(params, updates), state), state.info.value

        return jax.lax.scan(step, (params, state), (x, y))

    params = jax.tree.map(lambda w: w.astype(dtype), start())
    state = opt.init(params)
    (params, state), losses = run(params, state, jnp.asarray(x, dtype), jnp.asarray(y))
    return params, state, np.asarray(losses)


def test_auto_is_made_of_these():
    x, y = first_batches(3)
    ends = []
    for opt in (proxlin.auto(network, LOSS), method()):
        params, update = start(), jax.jit(opt.update)
        state = opt.init(params)
        for batch in zip(x, y, strict=True):
            updates, state = update(None, state, params, inputs=batch[0], targets=batch[1])
            params = optax.apply_updates(params, updates)
        ends.append((params, state))
    assert jax.tree.structure(ends[0]) == jax.tree.structure(ends[1])
    for a, b in zip(*map(jax.tree.leaves, ends), strict=True):
        np.testing.assert_array_equal(a, b)


def test_arrays_of_the_state_are_stored_in_the_dtype_of_choice():
    """From the first state on; but no numbers, and neither the metric nor the average."""
    state = method(state_dtype=jnp.bfloat16).init(start())
    for found in (state, trained(jnp.bfloat16)[1]):
        for part in (found.proximity.momentum, found.rule):
            assert dtypes(part, numbers=False) == {"bfloat16"}
        assert "bfloat16" not in dtypes(found, numbers=True)
        for part in (found.proximity.metric, found.average):
            assert dtypes(part, numbers=False) == {"float32"}
    plain = method().init(start())
    assert "bfloat16" not in dtypes(plain, numbers=False)


def test_one_step_differs_by_the_rounding_of_what_is_stored():
    """The second step, the first one that reads the state: momentum and displacement."""
    x, y = first_batches(2)
    found = []
    for state_dtype in (jnp.bfloat16, jnp.float32, None):
        opt, params = method(state_dtype=state_dtype), start()
        update, state = jax.jit(opt.update), None
        state = opt.init(params)
        for batch in zip(x, y, strict=True):
            updates, state = update(None, state, params, inputs=batch[0], targets=batch[1])
        found.append((flat(updates), float(state.rule.ratio)))
    rounded, same, want = found
    np.testing.assert_array_equal(same[0], want[0])
    eps = float(jnp.finfo(jnp.bfloat16).eps)
    # Momentum and displacement, rounded by half a unit each.
    assert 1e-5 < relative_error(rounded[0], want[0]) < 4 * eps
    assert rounded[1] == pytest.approx(want[1], rel=4 * eps)


@pytest.mark.parametrize(
    "state_dtype,dtype,epsilon",
    [
        ("float32", "float32", 1e-4),
        (None, "bfloat16", 1e-4),
        ("bfloat16", "float32", 1e-4),
    ],
)
def test_training_is_as_good(state_dtype, dtype, epsilon):
    """In a scan that overwrites parameters and state."""
    params, state, losses = trained(state_dtype, jnp.dtype(dtype), epsilon)
    wide, wide_state, want = trained(epsilon=epsilon)
    assert dtypes(params, numbers=False) == {dtype}
    assert dtypes(state.average, numbers=False) == {"float32"}
    assert losses.max() < 1.5 * losses[0]
    assert want[-25:].mean() < 0.1
    # By which step the loss is a tenth of the first: within a quarter of the same.
    reached = lambda values: np.flatnonzero(values < 0.1 * values[0])[0]
    assert reached(losses) < 1.25 * reached(want)
    assert losses[-25:].mean() < want[-25:].mean() + 0.05
    test = digits()[1]
    last, evaluated = (
        accuracy(w, test[0].astype(dtype), test[1])
        for w in (params, proxlin.eval_params(state, params))
    )
    best = accuracy(proxlin.eval_params(wide_state, wide), *test)
    assert min(last, evaluated) > best - 0.03
