"""One device equals eight, and no batch is ever gathered on one of them."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import proxlin
from tests.cases import SUBPROBLEMS, flat, network, problem, relative_error

M, SOME = 64, 16


@functools.cache
def mesh():
    return jax.make_mesh((8,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))


def placed(params, batch):
    """Parameters on every device, examples spread over all of them."""
    everywhere, spread = (NamedSharding(mesh(), spec) for spec in (P(), P("data")))
    return jax.device_put(params, everywhere), jax.device_put(batch, spread)


def weights_of(kind):
    if kind == "none":
        return None
    weights = np.random.default_rng(0).uniform(0.5, 2.0, M)
    # The first shard has no weight at all, so that its rows are covered by those of another.
    weights[: M // 8] = 0
    weights[M // 2] = 0
    return jnp.asarray(weights, jnp.float32)


def compiled_text(fn, *arguments):
    return fn.lower(*arguments).compile().as_text()


def check_communication(text):
    """Sums over the batch, and nothing of the size of the batch itself."""
    assert "all-reduce" in text
    for gather in ("all-gather", "all-to-all", "collective-permute"):
        assert gather not in text


@pytest.mark.parametrize("weights", ["none", "zeros"])
@pytest.mark.parametrize("curvature_size", [None, SOME])
@pytest.mark.parametrize("subproblem", SUBPROBLEMS)
def test_direction(subproblem, curvature_size, weights):
    params, inputs, targets = problem("logistic", jnp.float32, M)
    weights = weights_of(weights)
    if weights is not None:
        inputs = jnp.where(weights[:, None] > 0, inputs, jnp.nan)
    direction = proxlin.value_and_direction(
        network,
        proxlin.Logistic(),
        subproblem=SUBPROBLEMS[subproblem],
        curvature_size=curvature_size,
    )

    @jax.jit
    def fn(params, batch):
        inputs, targets, weights = batch
        return direction(params, inputs, targets, gamma=3.0, weights=weights)

    batch = (inputs, targets, weights)
    (want_value, want_info), want = fn(params, batch)
    params, batch = placed(params, batch)
    check_communication(compiled_text(fn, params, batch))
    (value, info), d = fn(params, batch)
    assert info.status == want_info.status == proxlin.Status.OK
    np.testing.assert_allclose(value, want_value, rtol=1e-5)
    assert relative_error(flat(info.grad), flat(want_info.grad)) <= 1e-5
    assert relative_error(flat(d), flat(want)) <= 1e-5
    assert all(leaf.sharding.is_fully_replicated for leaf in jax.tree.leaves(d))


def test_direction_of_sequences():
    params, _, _ = problem("logistic", jnp.float32)
    rng = np.random.default_rng(0)
    weights = rng.uniform(size=(M, 3))
    weights[:9] = 0
    weights[20, 1] = 0
    batch = (
        jnp.asarray(rng.normal(size=(M, 3, 5)), jnp.float32),
        jnp.asarray(np.where(weights > 0, rng.integers(0, 3, (M, 3)), -1)),
        jnp.asarray(weights, jnp.float32),
    )

    @jax.jit
    def fn(params, batch):
        inputs, targets, weights = batch
        direction = proxlin.value_and_direction(network, proxlin.Logistic())
        return direction(params, inputs, targets, gamma=3.0, weights=weights)

    (_, want_info), want = fn(params, batch)
    params, batch = placed(params, batch)
    check_communication(compiled_text(fn, params, batch))
    (_, info), d = fn(params, batch)
    assert info.status == want_info.status == proxlin.Status.OK
    assert relative_error(flat(d), flat(want)) <= 1e-5


RULES = {
    "armijo": proxlin.Armijo(gamma=30.0, beta=0.5),
    "model": proxlin.ModelStep(gamma=30.0),
    "trust": proxlin.TrustRegion(gamma=3.0),
}


@pytest.mark.parametrize(
    "rule,curvature_size", [("armijo", None), ("model", SOME), ("trust", None)]
)
def test_steps(rule, curvature_size):
    params, inputs, targets = problem("logistic", jnp.float32, M)
    opt = proxlin.prox_linear(
        network, proxlin.Logistic(), step=RULES[rule], curvature_size=curvature_size
    )

    @jax.jit
    def step(params, state, batch):
        inputs, targets, weights = batch
        updates, state = opt.update(
            None, state, params, inputs=inputs, targets=targets, weights=weights
        )
        return jax.tree.map(jnp.add, params, updates), state

    state = opt.init(params)
    batch = (inputs, targets, weights_of("zeros"))
    here, there = (params, state), placed((params, state), batch)
    (w, state), batch_there = there
    check_communication(compiled_text(step, w, state, batch_there))
    there = (w, state)
    for _ in range(3):
        here = step(*here, batch)
        there = step(*there, batch_there)
        (want, want_state), (got, got_state) = here, there
        assert relative_error(flat(got), flat(want)) <= 1e-5
        np.testing.assert_allclose(got_state.info.value, want_state.info.value, rtol=1e-5)
        np.testing.assert_allclose(got_state.eta, want_state.eta, rtol=2e-3)
        np.testing.assert_allclose(got_state.gamma, want_state.gamma)
        assert got_state.info.evaluations == want_state.info.evaluations
        assert got_state.taken == want_state.taken
    assert relative_error(flat(here[0]), flat(params)) >= 1e-2  # it has moved
