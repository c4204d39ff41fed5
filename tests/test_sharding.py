"""One device equals eight, and no batch is ever gathered on one of them."""

from __future__ import annotations

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import proxlin
from tests.cases import (
    SUBPROBLEMS,
    dense,
    flat,
    network,
    part_of_batch,
    problem,
    relative_error,
)

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


# Meshes, parameters that are divided, and batches of any size ---------------------------------

L = proxlin.Logistic()
METHODS = {
    "auto": lambda: proxlin.auto(network, L),
    "spl": lambda: proxlin.spl(network, L),
    "armijo_spl": lambda: proxlin.armijo_spl(network, L),
    "kronecker": lambda: proxlin.prox_linear(network, L, metric=proxlin.Kronecker(every=5)),
    "diagonal": lambda: proxlin.prox_linear(network, L, metric=proxlin.Diagonal(), momentum=0.5),
    "trust": lambda: proxlin.prox_linear(network, L, step=proxlin.TrustRegion()),
    "cholesky": lambda: proxlin.prox_linear(network, L, solver=proxlin.Cholesky(independent=True)),
    "dual_convex": lambda: proxlin.prox_linear(network, L, subproblem=proxlin.dual_convex),
    "chunks": lambda: proxlin.prox_linear(network, L, chunk_size=24),
}
MESHES = {"replicated": P(), "divided": P("data"), "two": P("data", "model")}


def mesh_of(kind, explicit):
    axis_type = jax.sharding.AxisType.Explicit if explicit else jax.sharding.AxisType.Auto
    if kind == "two":
        return jax.make_mesh((4, 2), ("data", "model"), axis_types=(axis_type,) * 2)
    return jax.make_mesh((8,), ("data",), axis_types=(axis_type,))


def resharded(params, inputs):
    """The network on explicit axes: parameters are gathered where they meet the batch."""
    if jax.typeof(inputs).sharding.mesh.explicit_axes:
        params = jax.tree.map(lambda w: jax.sharding.reshard(w, P()), params)
    return network(params, inputs)


def wide_problem(m):
    return problem("logistic", jnp.float64, m, hidden=16, features=8)


def run(opt, params, batch, steps):
    """The end of a few steps on turned batches, and how often the step was compiled."""

    @jax.jit
    def step(params, state, batch):
        inputs, targets, weights = batch
        updates, state = opt.update(
            None, state, params, inputs=inputs, targets=targets, weights=weights
        )
        return jax.tree.map(jnp.add, params, updates), state

    state = opt.init(params)
    first = jax.tree.map(lambda x: x.sharding, state)
    for _ in range(steps):
        params, state = step(params, state, batch)
    return params, state, first


def check_on_mesh(method, kind, explicit, m, weighted, steps):
    params, inputs, targets = wide_problem(m)
    rng = np.random.default_rng(0)
    weights = jnp.asarray(rng.uniform(size=m) * (rng.uniform(size=m) > 0.3)) if weighted else None
    batch = (inputs, targets, weights)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(globals(), "network", resharded if explicit else network)
        opt = METHODS[method]()
    want, want_state, _ = run(opt, params, batch, steps)
    on = lambda spec: NamedSharding(mesh_of(kind, explicit), spec)
    spec = MESHES[kind]
    fits = lambda w: P(*spec[: w.ndim]) if w.shape[-1] % 2 == 0 or kind != "two" else P()
    where = jax.tree.map(lambda w: on(fits(w)), params)
    got, state, first = run(
        opt, jax.device_put(params, where), jax.device_put(batch, on(P("data"))), steps
    )
    assert relative_error(flat(jax.device_get(got)), flat(want)) <= 1e-9
    assert int(state.taken) == int(want_state.taken) > 0
    for new, old in ((got, where), (state, first)):
        for x, sharding in zip(jax.tree.leaves(new), jax.tree.leaves(old), strict=True):
            assert x.sharding.is_equivalent_to(sharding, x.ndim)
    return opt, params, where, state


@pytest.mark.parametrize(
    "method,kind,explicit,m,weighted",
    [
        ("auto", "replicated", True, 80, True),
        ("auto", "divided", False, 264, False),
        ("chunks", "replicated", False, 264, False),
        ("kronecker", "two", True, 64, False),
    ],
)
def test_one_device_is_eight(method, kind, explicit, m, weighted):
    check_on_mesh(method, kind, explicit, m, weighted, steps=6)


@pytest.mark.slow
@pytest.mark.parametrize("m,weighted", [(80, True), (264, False)])
@pytest.mark.parametrize("explicit", [False, True])
@pytest.mark.parametrize("kind", MESHES)
@pytest.mark.parametrize("method", METHODS)
def test_one_device_is_eight_for_twenty_steps(method, kind, explicit, m, weighted):
    check_on_mesh(method, kind, explicit, m, weighted, steps=20)


def test_state_is_divided_as_parameters_are():
    """From init on, each leaf in a buffer of its own, and known beforehand."""
    params, _, _ = wide_problem(8)
    on = lambda spec: NamedSharding(mesh(), spec)
    where = jax.tree.map(lambda w: on(P("data")), params)
    opt = proxlin.auto(network, L)
    shapes = jax.tree.map(
        lambda w, s: jax.ShapeDtypeStruct(w.shape, w.dtype, sharding=s), params, where
    )
    known = proxlin.state_shardings(opt, shapes)
    state = opt.init(jax.device_put(params, where))
    for x, sharding in zip(jax.tree.leaves(state), jax.tree.leaves(known), strict=True):
        assert x.sharding == sharding and len(x.sharding.device_set) == 8
    for tree in (state.average, state.proximity.momentum, state.rule.displacement):
        assert all(x.sharding.spec == P("data") for x in jax.tree.leaves(tree))
    layers = {"w": jnp.zeros((8, 8, 8)), "b": jnp.zeros((8, 8))}
    factors = proxlin.Kronecker().init(jax.device_put(layers, on(P(None, "data")))).factors
    assert factors["8x8"][0].shape == (8, 8, 9)
    assert factors["8x8"][0].sharding == on(P(("data",)))


@pytest.mark.parametrize("m", [80, 264, 400, 1000])
@pytest.mark.parametrize("weighted", [False, True])
def test_no_row_moves_whatever_the_size_of_the_batch(m, weighted):
    """Curvature rows, and those of a chunk, are each device's own."""
    params, inputs, targets = wide_problem(m)
    weights = jnp.ones(m) if weighted else None
    direction = proxlin.value_and_direction(
        network, L, curvature_size=proxlin.Share(1 / 8, least=32), subproblem=SUBPROBLEMS["primal"]
    )
    fn = jax.jit(lambda w, x, y, omega: direction(w, x, y, weights=omega)[1])
    params, (x, y, omega) = placed(params, (inputs, targets, weights))
    check_communication(compiled_text(fn, params, x, y, omega))


@pytest.mark.parametrize("m", [80, pytest.param(1000, marks=pytest.mark.slow)])
def test_a_step_of_auto_communicates_seven_times(m):
    """Sums over the batch alone; those of a step that is tried first included."""
    params, inputs, targets = wide_problem(m)
    opt = proxlin.auto(network, L)
    params, (x, y) = placed(params, (inputs, targets))
    state = opt.init(params)
    fn = jax.jit(lambda w, s, x, y: opt.update(None, s, w, inputs=x, targets=y))
    text = compiled_text(fn, params, state, x, y)
    check_communication(text)
    assert len(re.findall(r" all-reduce(?:-start)?\(", text)) <= 7


@pytest.mark.parametrize("m,size", [(256, 64), (264, 64), (80, 16)])
def test_chunks_of_a_sharded_batch(m, size):
    """Not a factor of the number of devices too much, as where each device takes it for its own."""
    params, inputs, targets = wide_problem(m)
    whole, chunked = (
        proxlin.value_and_direction(network, L, chunk_size=chunk) for chunk in (None, size)
    )
    (value, _), want = whole(params, inputs, targets)
    fn = jax.jit(chunked)
    params, (x, y) = placed(params, (inputs, targets))
    check_communication(compiled_text(fn, params, x, y))
    (got_value, _), got = fn(params, x, y)
    np.testing.assert_allclose(got_value, value, rtol=1e-12)
    assert relative_error(flat(got), flat(want)) <= 1e-10


@pytest.mark.parametrize("m,devices", [(24, 8), (30, 3), (64, 4), (77, 7)])
def test_curvature_of_rows_with_weight(m, devices):
    """The direction is that of dense algebra on some rows that have weight, on any devices."""
    rng = np.random.default_rng(m)
    params, inputs, targets = problem("logistic", jnp.float64, m)
    weights = rng.uniform(size=m) * (rng.uniform(size=m) > 0.5)
    weights[-1] = 1.0
    size = proxlin.Share(1 / 4, least=4).examples(m, 1)
    part = part_of_batch(weights / weights.sum(), size)
    assert np.count_nonzero(part) > 1 and not np.any(part[weights == 0])
    grad, _ = dense("logistic", params, inputs, targets, jnp.asarray(weights))
    _, curvature = dense("logistic", params, inputs, targets, jnp.asarray(part))
    want = np.linalg.solve(curvature + np.eye(len(grad)) / 3.0, grad)
    direction = proxlin.value_and_direction(
        network, L, curvature_size=proxlin.Share(1 / 4, least=4), solver=proxlin.CG(80)
    )
    mesh = jax.make_mesh((devices,), ("data",), devices=jax.devices()[:devices])
    rows = NamedSharding(mesh, P("data"))
    spread = lambda x: jax.device_put(x, rows)
    params = jax.device_put(params, NamedSharding(mesh, P()))
    fn = jax.jit(lambda w, x, y, omega: direction(w, x, y, gamma=3.0, weights=omega)[1])
    got = fn(params, spread(inputs), spread(targets), spread(jnp.asarray(weights)))
    assert relative_error(flat(got), want) <= 1e-9
