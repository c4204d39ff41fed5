"""One training step through each neural-network library, with BatchNorm and dropout."""

import contextlib
import functools
from typing import Any, NamedTuple

import equinox as eqx
import flax.linen as nn
import haiku as hk
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from jax.flatten_util import ravel_pytree

import proxlin
from tests.cases import flat, network, problem, relative_error

M, FEATURES, HIDDEN, CLASSES = 24, 5, 8, 3
LOSS = proxlin.Logistic()
RATE, MOMENTUM = 0.25, 0.9


class Case(NamedTuple):
    """A network of some library as a plain function.

    ``model(params, inputs, *args_of(aux, key)) -> (outputs, aux)``.
    """

    model: Any
    params: Any
    aux: Any
    args_of: Any = lambda aux, key: (aux, key)


def plain():
    """No library at all: what the others have to agree with in kind."""
    rng = np.random.default_rng(0)
    normal = lambda *shape: jnp.asarray(rng.normal(size=shape) / np.sqrt(shape[0]), jnp.float32)
    params = {
        "w1": normal(FEATURES, HIDDEN),
        "scale": jnp.ones((1, HIDDEN), jnp.float32),
        "w2": normal(HIDDEN, CLASSES),
    }

    def model(params, inputs, statistics, key):
        hidden = inputs @ params["w1"]
        mean, var = (f(hidden, axis=0, keepdims=True) for f in (jnp.mean, jnp.var))
        hidden = jnp.tanh(params["scale"] * (hidden - mean) / jnp.sqrt(var + 1e-5))
        keep = jax.random.bernoulli(key, 1 - RATE, hidden.shape)
        running = MOMENTUM * statistics + (1 - MOMENTUM) * mean
        return jnp.where(keep, hidden / (1 - RATE), 0) @ params["w2"], running

    return Case(model, params, jnp.zeros((1, HIDDEN), jnp.float32))


class NNXNet(nnx.Module):
    def __init__(self, rngs):
        self.first = nnx.Linear(FEATURES, HIDDEN, rngs=rngs)
        self.norm = nnx.BatchNorm(HIDDEN, momentum=MOMENTUM, rngs=rngs)
        self.dropout = nnx.Dropout(RATE, rngs=rngs)
        self.second = nnx.Linear(HIDDEN, CLASSES, rngs=rngs)

    def __call__(self, x):
        return self.second(self.dropout(jnp.tanh(self.norm(self.first(x)))))


def flax_nnx():
    # Here the dropout key lives in the state, and advances with it.
    graph, params, rest = nnx.split(NNXNet(nnx.Rngs(0, dropout=1)), nnx.Param, ...)

    def model(params, inputs, rest):
        net = nnx.merge(graph, params, rest, copy=True)
        outputs = net(inputs)
        return outputs, nnx.split(net, nnx.Param, ...)[2]

    return Case(model, params, rest, lambda aux, key: (aux,))


def flax_linen():
    class Net(nn.Module):
        @nn.compact
        def __call__(self, x):
            x = nn.BatchNorm(use_running_average=False, momentum=MOMENTUM)(nn.Dense(HIDDEN)(x))
            x = nn.Dropout(RATE, deterministic=False)(jnp.tanh(x))
            return nn.Dense(CLASSES)(x)

    net = Net()
    keys = {"params": jax.random.key(0), "dropout": jax.random.key(1)}
    variables = net.init(keys, jnp.ones((M, FEATURES), jnp.float32))

    def model(params, inputs, statistics, key):
        outputs, new = net.apply(
            {"params": params, "batch_stats": statistics},
            inputs,
            mutable=["batch_stats"],
            rngs={"dropout": key},
        )
        return outputs, new["batch_stats"]

    return Case(model, variables["params"], variables["batch_stats"])


def equinox():
    class Net(eqx.Module):
        first: eqx.nn.Linear
        norm: eqx.nn.BatchNorm
        dropout: eqx.nn.Dropout
        second: eqx.nn.Linear

        def __init__(self, key):
            one, two = jax.random.split(key)
            real = {"dtype": jnp.float32}
            self.first = eqx.nn.Linear(FEATURES, HIDDEN, key=one, **real)
            self.norm = eqx.nn.BatchNorm(
                HIDDEN, axis_name="batch", momentum=MOMENTUM, mode="batch", **real
            )
            self.dropout = eqx.nn.Dropout(RATE)
            self.second = eqx.nn.Linear(HIDDEN, CLASSES, key=two, **real)

        def __call__(self, x, state, key):
            x, state = self.norm(self.first(x), state)
            return self.second(self.dropout(jnp.tanh(x), key=key)), state

    net, state = eqx.nn.make_with_state(Net)(jax.random.key(0))
    params, static = eqx.partition(net, eqx.is_inexact_array)

    def model(params, inputs, state, key):
        # A copy, because Equinox lets no State be used twice and trial points use it again.
        state = jax.tree.map(lambda x: x, state)
        one = jax.vmap(
            eqx.combine(params, static), in_axes=(0, None, 0), out_axes=(0, None), axis_name="batch"
        )
        return one(inputs, state, jax.random.split(key, len(inputs)))

    return Case(model, params, state)


def haiku():
    def forward(x):
        x = hk.BatchNorm(True, True, MOMENTUM)(hk.Linear(HIDDEN)(x), is_training=True)
        x = hk.dropout(hk.next_rng_key(), RATE, jnp.tanh(x))
        return hk.Linear(CLASSES)(x)

    net = hk.transform_with_state(forward)
    params, state = net.init(jax.random.key(0), jnp.ones((M, FEATURES), jnp.float32))

    def model(params, inputs, state, key):
        return net.apply(params, state, key, inputs)

    return Case(model, params, state)


FRAMEWORKS = {
    "plain": plain,
    "nnx": flax_nnx,
    "linen": flax_linen,
    "equinox": equinox,
    "haiku": haiku,
}
every_framework = pytest.mark.parametrize("name", FRAMEWORKS)
# More than the half of the slope that a full step realizes, so that searches backtrack.
RULE = proxlin.Armijo(gamma=10.0, beta=0.6)


@contextlib.contextmanager
def lenient(name):
    """The libraries promote ranks and dtypes inside; the plain function does not."""
    if name == "plain":
        yield
    else:
        with jax.numpy_rank_promotion("allow"), jax.numpy_dtype_promotion("standard"):
            yield


@functools.cache
def case(name):
    with lenient(name):
        return FRAMEWORKS[name]()


@functools.cache
def compiled(name):
    """An Armijo step and the plain objective with its statistics, compiled once for all tests."""
    model, _, aux, args_of = case(name)
    opt = proxlin.prox_linear(model, LOSS, step=RULE, has_aux=True, init_aux=aux)

    @jax.jit
    def step(params, state, inputs, targets, key):
        updates, state = opt.update(
            None, state, params, inputs=inputs, targets=targets, args=args_of(state.aux, key)
        )
        return updates, optax.apply_updates(params, updates), state

    @jax.jit
    def plain_apply(params, aux, inputs, targets, key):
        outputs, aux = model(params, inputs, *args_of(aux, key))
        return jnp.mean(LOSS.value(outputs, targets)), aux

    return opt, step, plain_apply


def data(seed=0):
    rng = np.random.default_rng(seed)
    centers = np.random.default_rng(1).normal(size=(CLASSES, FEATURES))
    y = rng.integers(0, CLASSES, M)
    x = centers[y] + 0.5 * rng.normal(size=(M, FEATURES))
    return jnp.asarray(x, jnp.float32), jnp.asarray(y)


def numbers(tree):
    """The arrays of a state as NumPy arrays, keys among them as what they hold."""
    is_key = lambda x: jnp.issubdtype(x.dtype, jax.dtypes.prng_key)
    leaves = [jax.random.key_data(x) if is_key(x) else x for x in jax.tree.leaves(tree)]
    return [np.asarray(x) for x in leaves]


def assert_close(got, want, **tolerance):
    for a, b in zip(numbers(got), numbers(want), strict=True):
        np.testing.assert_allclose(a, b, **tolerance)


def apart(one, other):
    """The largest difference between two states."""
    pairs = zip(numbers(one), numbers(other), strict=True)
    return max(float(np.max(np.abs(a - b))) for a, b in pairs)


def gauss_newton(model, params, inputs, targets, *args):
    """Gradient and Gauss-Newton matrix of the mean logistic loss, from an explicit Jacobian."""
    vector, unravel = ravel_pytree(params)
    fn = lambda w: model(unravel(w), inputs, *args)
    outputs, jacobian = jax.jit(lambda w: (fn(w), jax.jacobian(fn)(w)))(vector)
    f, j = np.asarray(outputs, np.float64), np.asarray(jacobian, np.float64)
    s = np.exp(f - f.max(axis=1, keepdims=True))
    s /= s.sum(axis=1, keepdims=True)
    g = s - np.eye(f.shape[1])[np.asarray(targets)]
    h = s[:, :, None] * np.eye(f.shape[1]) - s[:, :, None] * s[:, None, :]
    return np.einsum("nkp,nk->p", j, g) / len(f), np.einsum("nkp,nkl,nlq->pq", j, h, j) / len(f)


def krylov(gradient, matrix, gamma, steps):
    """Dual CG as a Galerkin method: d = gamma (g - G v) with v best in a Krylov space of g.

    The dual iterate is u = M* v, so that it minimizes the dual energy over that space.
    """
    basis = np.linalg.qr(
        np.stack([np.linalg.matrix_power(matrix, i) @ gradient for i in range(steps)], axis=1)
    )[0]
    image = matrix @ basis
    system = basis.T @ image / gamma + image.T @ image
    return gamma * (gradient - image @ np.linalg.solve(system, image.T @ gradient))


@every_framework
def test_direction_is_that_of_dense_matrices(name):
    model, params, aux, args_of = case(name)
    x, y = data()
    key = jax.random.key(3)
    with lenient(name):
        opt, step, _ = compiled(name)
        updates, _, state = step(params, opt.init(params), x, y, key)
        gradient, matrix = gauss_newton(lambda *a: model(*a)[0], params, x, y, *args_of(aux, key))
    d = krylov(gradient, matrix, RULE.gamma, steps=2)  # two steps of CG are the default
    assert jax.tree.structure(updates) == jax.tree.structure(params)
    assert float(state.info.slope) == pytest.approx(gradient @ d, rel=1e-3)
    assert relative_error(flat(updates), -float(state.eta) * d) < 1e-3


@every_framework
def test_training_lowers_the_loss(name):
    _, params, aux, _ = case(name)
    with lenient(name):
        opt, step, plain_apply = compiled(name)
        state = opt.init(params)
        first = params
        for t in range(8):
            _, params, state = step(params, state, *data(t % 2), jax.random.key(t))
        assert int(state.taken) >= 6
        before, after = (
            float(plain_apply(w, aux, *data(5), jax.random.key(9))[0]) for w in (first, params)
        )
    assert after < 0.7 * before


@every_framework
def test_statistics_and_dropout_at_trial_points(name):
    _, params, aux, _ = case(name)
    trials = []
    with lenient(name):
        opt, step, plain_apply = compiled(name)
        for seed in range(6):
            x, y = data(seed)
            key = jax.random.key(seed)
            updates, new, state = step(params, opt.init(params), x, y, key)
            value, here = plain_apply(params, aux, x, y, key)
            _, there = plain_apply(new, aux, x, y, key)
            # Statistics are those of the parameters at which the network was linearized.
            assert_close(state.aux, here, rtol=1e-5, atol=1e-6)
            assert apart(here, there) > 1e-4
            assert float(state.info.value) == pytest.approx(float(value), rel=1e-5)
            # With the same dropout, the first stepsize that passes by hand is the one taken.
            etas = [RULE.shrink**i for i in range(int(state.info.evaluations))]
            eta, slope = float(state.eta), float(state.info.slope)
            assert eta == pytest.approx(etas[-1], rel=1e-5)
            passed = []
            for t in etas:
                at = jax.tree.map(lambda w, u, c=t / eta: w + c * u, params, updates)
                decrease = float(value - plain_apply(at, aux, x, y, key)[0])
                passed.append(decrease >= RULE.beta * t * slope - 1e-6)
            assert passed == [False] * (len(etas) - 1) + [True]
            trials.append(len(etas))
    assert max(trials) > 1  # some searches did backtrack


@every_framework
def test_a_batch_that_is_not_finite_leaves_the_statistics(name):
    _, params, aux, _ = case(name)
    x, y = data()
    with lenient(name):
        opt, step, _ = compiled(name)
        _, params, state = step(params, opt.init(params), x, y, jax.random.key(0))
        _, same, after = step(params, state, x.at[2, 1].set(jnp.nan), y, jax.random.key(1))
    assert apart(state.aux, aux) > 0
    for a, b in zip(numbers((same, after.aux)), numbers((params, state.aux)), strict=True):
        assert a.tobytes() == b.tobytes()
    assert int(after.rejected) == int(state.rejected) + 1


# Adapters ---------------------------------------------------------------------------------------


def test_adapters_alone_are_trained():
    class Net(nnx.Module):
        def __init__(self, rngs):
            self.first = nnx.LoRALinear(FEATURES, HIDDEN, lora_rank=2, rngs=rngs)
            self.second = nnx.Linear(HIDDEN, CLASSES, rngs=rngs)

        def __call__(self, x):
            return self.second(jnp.tanh(self.first(x)))

    x, y = data()
    with lenient("nnx"):
        graph, adapters, frozen = nnx.split(Net(nnx.Rngs(0)), nnx.LoRAParam, ...)

        def model(adapters, inputs, frozen):
            return nnx.merge(graph, adapters, frozen, copy=True)(inputs)

        gradient, matrix = gauss_newton(model, adapters, x, y, frozen)
        want = np.linalg.solve(matrix + np.eye(len(gradient)) / 10, gradient)
        opt = proxlin.prox_linear(
            model, LOSS, step=proxlin.ModelStep(10.0), solver=proxlin.Cholesky()
        )
        update = jax.jit(opt.update)
        w, state = adapters, opt.init(adapters)
        values = []
        for _ in range(10):
            updates, state = update(None, state, w, inputs=x, targets=y, args=(frozen,))
            if not values:
                assert relative_error(flat(updates), -float(state.eta) * want) < 1e-4
            values.append(float(state.info.value))
            w = optax.apply_updates(w, updates)
    assert len(jax.tree.leaves(adapters)) == 2
    assert flat(adapters).size == 2 * (FEATURES + HIDDEN)
    assert values[-1] < 0.8 * values[0]


# bfloat16 ---------------------------------------------------------------------------------------


def dual_cg(model, params, inputs, targets, gamma, steps, dtype):
    """Conjugate gradients on the dual of the quadratic subproblem, all vectors of one dtype.

    The network and its Jacobian products keep the dtype of the parameters.
    """
    to = lambda tree, like: jax.tree.map(lambda v, w: v.astype(w.dtype), tree, like)
    lift = lambda tree: jax.tree.map(lambda v: v.astype(dtype), tree)
    f, push = jax.linearize(lambda w: model(w, inputs), params)
    pull = jax.linear_transpose(push, params)
    jvp = lambda u: lift(push(to(u, params)))
    vjp = lambda v: lift(pull(to(v, f))[0])
    s = jax.nn.softmax(lift(f))
    r, n = jnp.sqrt(s), jnp.asarray(len(f), dtype)
    mv = lambda v: (r * v - s * jnp.sum(r * v, axis=1, keepdims=True)) / jnp.sqrt(n)
    rmv = lambda v: r * (v - jnp.sum(s * v, axis=1, keepdims=True)) / jnp.sqrt(n)
    gradient = vjp((s - jax.nn.one_hot(targets, s.shape[1], dtype=dtype)) / n)
    dot = lambda a, b: sum(
        jnp.sum(i * j) for i, j in zip(*map(jax.tree.leaves, (a, b)), strict=True)
    )
    misfit, shift = gradient, jnp.asarray(1 / gamma, dtype)
    res = q = rmv(jvp(gradient))
    for _ in range(steps):
        mq = vjp(mv(q))
        a = dot(res, res) / (shift * dot(q, q) + dot(mq, mq))
        misfit = jax.tree.map(lambda u, v, a=a: u - a * v, misfit, mq)
        new = res - a * (shift * q + rmv(jvp(mq)))
        res, q = new, new + dot(new, new) / dot(res, res) * q
    return gamma * flat(misfit)


def test_bfloat16_parameters_leave_the_algebra_in_float32():
    params, x, y = problem("logistic", jnp.bfloat16, m=32, hidden=16, features=8)
    gamma, steps = 30.0, 4
    # Not under jit, where XLA may or may not round between two operations in bfloat16.
    fn = proxlin.value_and_direction(network, LOSS, solver=proxlin.CG(steps))
    (value, info), d = fn(params, x, y, gamma=gamma)
    assert {leaf.dtype for leaf in jax.tree.leaves(d)} == {jnp.dtype(jnp.bfloat16)}
    assert {v.dtype for v in (value, info.slope, info.residual)} == {jnp.dtype(jnp.float32)}
    # The same parameters and inputs in double precision: what the direction should be.
    up = lambda tree: jax.tree.map(lambda v: v.astype(jnp.float64), tree)
    exact = dual_cg(network, up(params), up(x), y, gamma, steps, jnp.float64)
    assert relative_error(flat(d), exact) < 3e-2
    # The same network in bfloat16 with exact and with bfloat16 vectors: on the algebra alone
    # nearly nothing is lost, but for the rounding of the direction itself.
    algebra = dual_cg(network, params, x, y, gamma, steps, jnp.float64)
    narrow = dual_cg(network, params, x, y, gamma, steps, jnp.bfloat16)
    error = relative_error(flat(d), algebra)
    assert error < 3e-3
    assert error < 0.1 * relative_error(narrow, algebra)


def test_inner_products_of_bfloat16_models_are_not_taken_in_bfloat16():
    params, x, y = problem("logistic", jnp.bfloat16, m=32, hidden=16, features=8)
    fn = proxlin.value_and_direction(network, LOSS, solver=proxlin.CG(3))
    text = str(jax.make_jaxpr(fn)(params, x, y))
    dots = [line for line in text.splitlines() if "dot_general" in line and "[] =" in line]
    assert len(dots) > 10
    assert all(":f32[]" in line for line in dots)
