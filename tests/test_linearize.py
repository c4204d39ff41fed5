"""The linearized network: products against dense Jacobians, dtypes, chunks, and their memory."""

from __future__ import annotations

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax.flatten_util import ravel_pytree

import proxlin
from proxlin.linearize import evaluate
from tests import cases

DTYPES = [jnp.float32, jnp.float64]
each_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=["f32", "f64"])
seeds = st.integers(0, 2**31)


def normal_like(tree, seed: int):
    rng = np.random.default_rng(seed)
    return jax.tree.map(lambda x: jnp.asarray(rng.normal(size=x.shape), x.dtype), tree)


def inner(x, y) -> float:
    return float(cases.flat(x) @ cases.flat(y))


@jax.jit
def dense_jacobian(params, inputs):
    """(m, ..., k, p), with columns in the order of the leaves."""
    flat, unravel = ravel_pytree(params)
    jacobian = jax.jacobian(lambda w: cases.network(unravel(w), inputs))(flat)
    return jacobian.astype(jnp.float64)


@functools.partial(jax.jit, static_argnames=("model", "chunk_size"))
def products(params, inputs, u, v, *, model=cases.network, chunk_size=None):
    lin = proxlin.linearize(model, params, inputs, chunk_size=chunk_size)
    return lin.outputs, lin.jvp(u), lin.vjp(v)


@functools.partial(jax.jit, static_argnames="model")
def independent(params, inputs, *args, model):
    solver = proxlin.Cholesky(independent=True)
    fn = proxlin.value_and_direction(model, proxlin.Squared(), solver=solver)
    targets = jnp.zeros_like(model(params, inputs, *args))
    return fn(params, inputs, targets, *args)[0][1].status != proxlin.Status.BAD_VALUE


@functools.partial(jax.jit, static_argnames="model")
def rows(params, inputs, indices, *, model=cases.network):
    return proxlin.linearize(model, params, inputs).rows(indices)


@pytest.mark.parametrize("n", [None, 2])
def test_rows_are_the_same_made_by_columns(n):
    params, _, _ = cases.problem("squared", jnp.float64)
    inputs, indices = normal_like(jnp.zeros((4, 3, 5)), 1), jnp.array([2, 0, 3])
    factor = None if n is None else normal_like(jnp.zeros((3, 3, 3, n)), 2)
    made = proxlin.linearize(cases.network, params, inputs).rows
    by_rows = np.asarray(made(indices, factor))
    by_columns = np.asarray(made(indices, factor, transposed=True))
    np.testing.assert_allclose(by_columns, by_rows.reshape(-1, by_rows.shape[-1]).T, atol=1e-14)


# Products.


@each_dtype
@pytest.mark.parametrize("shape", [(6, 5), (2, 3, 5)], ids=["batch", "sequence"])
def test_products_are_those_of_the_jacobian(dtype, shape):
    params, _, _ = cases.problem("squared", dtype)
    inputs = normal_like(jnp.zeros(shape, dtype), 1)
    jacobian = np.asarray(dense_jacobian(params, inputs))
    u, v = normal_like(params, 2), normal_like(jnp.zeros((*shape[:-1], 3), dtype), 3)
    outputs, ju, jv = products(params, inputs, u, v)
    tolerance = 20 * float(jnp.finfo(dtype).eps)
    np.testing.assert_allclose(outputs, cases.network(params, inputs), rtol=0, atol=tolerance)
    assert cases.relative_error(np.asarray(ju), jacobian @ cases.flat(u)) < tolerance
    want = np.tensordot(np.asarray(v, np.float64), jacobian, axes=v.ndim)
    assert cases.relative_error(cases.flat(jv), want) < tolerance


@each_dtype
@pytest.mark.parametrize("chunk_size", [None, 3, 4], ids=str)
def test_vjp_is_the_adjoint_of_jvp(dtype, chunk_size):
    @given(seeds)
    def check(seed):
        params, inputs, _ = cases.problem("squared", dtype, seed=seed % 100)
        u, v = normal_like(params, seed), normal_like(jnp.zeros((6, 3), dtype), seed + 1)
        _, ju, jv = products(params, inputs, u, v, chunk_size=chunk_size)
        size = np.linalg.norm(cases.flat(ju)) * np.linalg.norm(cases.flat(v))
        size += np.linalg.norm(cases.flat(u)) * np.linalg.norm(cases.flat(jv))
        assert abs(inner(ju, v) - inner(u, jv)) <= 10 * float(jnp.finfo(dtype).eps) * size

    check()


@each_dtype
@pytest.mark.parametrize(
    ("m", "chunk_size"), [(6, 6), (6, 100), (6, 2), (6, 4), (20, 2), (20, 1), (19, 2)]
)
def test_chunks_do_not_change_the_products(dtype, m, chunk_size):
    """Few chunks are unrolled, many run in a loop; the last may be filled up."""
    params, inputs, _ = cases.problem("squared", dtype, m=m)
    u, v = normal_like(params, 1), normal_like(jnp.zeros((m, 3), dtype), 2)
    want = products(params, inputs, u, v)
    got = products(params, inputs, u, v, chunk_size=chunk_size)
    for one, other in zip(got, want, strict=True):
        assert jax.tree.structure(one) == jax.tree.structure(other)
        error = cases.relative_error(cases.flat(one), cases.flat(other))
        assert error < 10 * float(jnp.finfo(dtype).eps)
    forward = functools.partial(evaluate, cases.network, chunk_size=chunk_size)
    outputs = jax.jit(forward)(params, inputs)
    np.testing.assert_allclose(outputs, want[0], rtol=0, atol=10 * float(jnp.finfo(dtype).eps))


# Dtypes.


def test_bfloat16_products_are_the_models_own_in_float32():
    params, inputs, _ = cases.problem("squared", jnp.bfloat16)
    model = lambda w: cases.network(w, inputs)
    u, v = normal_like(params, 1), normal_like(jnp.zeros((6, 3), jnp.bfloat16), 2)
    lift = lambda tree: jax.tree.map(lambda x: x.astype(jnp.float32), tree)

    outputs, ju = jax.jit(lambda w, u: jax.jvp(model, (w,), (u,)))(params, u)
    (jv,) = jax.jit(lambda w, v: jax.vjp(model, w)[1](v))(params, v)
    lifted = products(params, inputs, lift(u), lift(v))
    for got, want in zip(lifted, (outputs, ju, jv), strict=True):
        assert {x.dtype for x in jax.tree.leaves(got)} == {jnp.dtype(jnp.float32)}
        # linearize and jvp order the operations differently, which bfloat16 shows.
        assert cases.relative_error(cases.flat(got), cases.flat(want)) < 0.01
    # Vectors are rounded to the model's precision, not the model lifted to theirs.
    finer = jax.tree.map(lambda x: x * (1 + 2.0**-12), lift(u))
    np.testing.assert_array_equal(products(params, inputs, finer, lift(v))[1], lifted[1])


def mixed(params, x):
    hidden = jnp.tanh(x @ params["low"].astype(jnp.float32))
    return hidden @ params["single"] + params["double"].astype(jnp.float32)[None]


@pytest.mark.parametrize("chunk_size", [None, 4], ids=str)
def test_leaves_of_mixed_dtypes(chunk_size):
    params = {
        "low": normal_like(jnp.zeros((5, 4), jnp.bfloat16), 0),
        "single": normal_like(jnp.zeros((4, 3), jnp.float32), 1),
        "double": normal_like(jnp.zeros(3, jnp.float64), 2),
    }
    inputs = normal_like(jnp.zeros((6, 5), jnp.float32), 3)
    up = lambda tree: jax.tree.map(lambda x: x.astype(jnp.float64), tree)
    u, v = up(normal_like(params, 4)), normal_like(jnp.zeros((6, 3)), 5)
    got = products(params, inputs, u, v, model=mixed, chunk_size=chunk_size)
    assert {x.dtype for x in jax.tree.leaves(got)} == {jnp.dtype(jnp.float64)}

    # The same model in float64 throughout, to the precision of its leaves.
    exact = lambda w: jnp.tanh(up(inputs) @ w["low"]) @ w["single"] + w["double"][None]
    want = jax.jit(lambda w: (*jax.jvp(exact, (w,), (u,)), jax.vjp(exact, w)[1](v)[0]))(up(params))
    assert cases.relative_error(cases.flat(got[0]), cases.flat(want[0])) < 1e-6
    assert cases.relative_error(cases.flat(got[1]), cases.flat(want[1])) < 1e-6
    for name, tolerance in {"low": 0.01, "single": 1e-6, "double": 1e-6}.items():
        error = cases.relative_error(cases.flat(got[2][name]), cases.flat(want[2][name]))
        assert error < tolerance, name


# Models with more to take and more to give.


def test_aux_and_further_arguments():
    def model(params, inputs, state, scale):
        hidden = jnp.tanh(inputs["x"] @ params["w1"] + inputs["shift"])
        outputs = scale * hidden @ params["w2"]
        return outputs, {"calls": state + 1, "mean": jnp.mean(hidden)}

    @jax.jit
    def f(params, inputs, state, u, v):
        lin = proxlin.linearize(model, params, inputs, state, 2.0, has_aux=True)
        forward = evaluate(model, params, inputs, state, 2.0, has_aux=True)
        return (lin.outputs, lin.jvp(u), lin.vjp(v)), lin.aux, forward

    params, x, _ = cases.problem("squared", jnp.float64)
    params.pop("b1")
    inputs = {"x": x, "shift": jnp.asarray(0.1)}  # not per example: fine without chunks
    u, v = normal_like(params, 1), normal_like(jnp.zeros((6, 3)), 2)
    got, aux, forward = f(params, inputs, jnp.asarray(3), u, v)
    plain = lambda w, x: 2.0 * jnp.tanh(x @ w["w1"] + 0.1) @ w["w2"]
    want = products(params, x, u, v, model=plain)
    np.testing.assert_allclose(cases.flat(got), cases.flat(want), rtol=1e-12)
    np.testing.assert_allclose(forward, want[0], rtol=1e-12)
    assert int(aux["calls"]) == 4
    hidden = np.tanh(np.asarray(x) @ np.asarray(params["w1"]) + 0.1)
    np.testing.assert_allclose(aux["mean"], np.mean(hidden), rtol=1e-12)


@pytest.mark.parametrize("chunk_size", [None, 4], ids=str)
def test_inputs_may_be_trees(chunk_size):
    params, x, _ = cases.problem("squared", jnp.float64)
    inputs = (x[:, :2], {"rest": x[:, 2:]})
    model = lambda w, x: cases.network(w, jnp.concatenate([x[0], x[1]["rest"]], axis=1))
    u, v = normal_like(params, 1), normal_like(jnp.zeros((6, 3)), 2)
    got = products(params, inputs, u, v, model=model, chunk_size=chunk_size)
    want = products(params, x, u, v)
    np.testing.assert_allclose(cases.flat(got), cases.flat(want), rtol=1e-12)
    got = rows(params, inputs, jnp.arange(6), model=model)
    np.testing.assert_allclose(got, dense_jacobian(params, x), rtol=1e-12, atol=1e-15)


# Rows.


@each_dtype
@pytest.mark.parametrize("shape", [(6, 5), (6, 3, 5)], ids=["batch", "sequence"])
def test_rows_are_those_of_the_jacobian(dtype, shape):
    params, _, _ = cases.problem("squared", dtype)
    inputs = normal_like(jnp.zeros(shape, dtype), 1)
    picked = np.asarray([4, 0, 0])
    want = np.asarray(dense_jacobian(params, inputs))[picked]
    got = np.asarray(rows(params, inputs, picked), np.float64)
    assert got.shape == want.shape
    assert cases.relative_error(got, want) < 20 * float(jnp.finfo(dtype).eps)
    assert bool(independent(params, inputs, model=cases.network))


def centered(params, inputs):
    outputs = cases.network(params, inputs)
    return outputs - jnp.mean(outputs, axis=0, keepdims=True)


def softmaxed(params, inputs):
    return jax.nn.softmax(cases.network(params, inputs))


def summed(params, inputs):
    return jnp.cumsum(cases.network(params, inputs), axis=0)


def dropped(params, inputs, key):
    keep = jax.random.bernoulli(key, 0.5, (*inputs.shape[:-1], 4))
    return jnp.where(keep, jnp.tanh(inputs @ params["w1"]), 0) @ params["w2"]


@each_dtype
def test_dependence_between_examples_is_noticed(dtype):
    params, inputs, _ = cases.problem("squared", dtype)
    assert independent(params, inputs, model=cases.network)
    # The outputs of one example sum to one: their sum has no gradient but rounding.
    assert independent(params, inputs, model=softmaxed)
    assert not independent(params, inputs, model=centered)
    assert not independent(params, inputs, model=summed)
    assert not independent(params, inputs, jax.random.key(0), model=dropped)


def test_rows_of_a_dead_network_agree():
    params, inputs, _ = cases.problem("squared", jnp.float32)
    dead = lambda w, x: 0 * cases.network(w, x)
    assert independent(params, inputs, model=dead)
    zeros = np.zeros((2, 3, 5 * 4 + 4 + 4 * 3))
    np.testing.assert_array_equal(rows(params, inputs, jnp.arange(2), model=dead), zeros)


# What is rejected.

X = jnp.ones((4, 2))
W = jnp.ones((2, 3))

REFUSED = {
    "integer leaf": (
        lambda w, x: x @ w["w"], {"w": W, "n": jnp.asarray(3)}, TypeError,
        r"params\['n'\] has dtype int.*real floating-point.*`args`",
    ),
    "key leaf": (
        lambda w, x: x @ w["w"], {"w": W, "key": jax.random.key(0)}, TypeError,
        r"params\['key'\] has dtype key",
    ),
    "complex leaf": (
        lambda w, x: jnp.real(x @ w), W.astype(complex), TypeError,
        r"params has dtype complex128; parameters must be real",
    ),
    "Python number": (
        lambda w, x: x * w, 2.0, TypeError, r"params is 2.0.*must be real floating-point arrays",
    ),
    "no leaves": (lambda w, x: x, {}, ValueError, "params has no leaves"),
    "flat outputs": (
        lambda w, x: x @ w[:, 0], W, ValueError, r"shape \(4,\); return \(m, 1\) instead of \(m,\)",
    ),
    "tuple of outputs": (lambda w, x: (x @ w, x), W, TypeError, r"needs has_aux=True"),
    "integer outputs": (
        lambda w, x: jnp.argmax(x @ w, axis=-1, keepdims=True), W, TypeError,
        "must return one floating-point array",
    ),
    "no outputs": (lambda w, x: (x @ w)[:, :0], W, ValueError, r"empty batch.*shape \(4, 0\)"),
}  # fmt: skip


@pytest.mark.parametrize("chunk_size", [None, 3], ids=str)
@pytest.mark.parametrize("case", REFUSED)
def test_rejected(case, chunk_size):
    model, params, error, message = REFUSED[case]
    with pytest.raises(error, match=message):
        proxlin.linearize(model, params, X, chunk_size=chunk_size)


@pytest.mark.parametrize("chunk_size", [0, -1, 2.5])
@pytest.mark.usefixtures("unchecked")
def test_rejected_chunk_sizes(chunk_size):
    with pytest.raises(ValueError, match=rf"chunk_size={chunk_size}: give a positive integer"):
        proxlin.linearize(cases.network, *cases.problem("squared", jnp.float32)[:2],
                          chunk_size=chunk_size)  # fmt: skip


# Memory.

WIDTH, DEPTH, EXAMPLES = 32, 5, 512


def wide(params, x):
    for w in params[:-1]:
        x = jnp.tanh(x @ w)
    return x @ params[-1]


def wide_problem():
    rng = np.random.default_rng(0)
    sizes = [WIDTH] * DEPTH + [2]
    params = [
        jnp.asarray(rng.normal(size=shape) / np.sqrt(WIDTH), jnp.float32)
        for shape in itertools.pairwise(sizes)
    ]
    return params, jnp.asarray(rng.normal(size=(EXAMPLES, WIDTH)), jnp.float32)


def compiled(f, *args):
    """The result, and how many bytes the program needs beside arguments and result."""
    program = jax.jit(f).lower(*args).compile()
    return program(*args), program.memory_analysis().temp_size_in_bytes


@pytest.mark.parametrize("count", [4, 16], ids=["unrolled", "looped"])
def test_chunks_bound_the_memory_of_products(count):
    def f(params, inputs, chunk_size):
        lin = proxlin.linearize(wide, params, inputs, chunk_size=chunk_size)
        for _ in range(2):  # products of products, as in conjugate gradients
            params = lin.vjp(lin.jvp(params))
        return params

    args = wide_problem()
    want, whole = compiled(functools.partial(f, chunk_size=None), *args)
    got, bounded = compiled(functools.partial(f, chunk_size=EXAMPLES // count), *args)
    assert cases.relative_error(cases.flat(got), cases.flat(want)) < 1e-5
    assert bounded < whole / 2, (bounded, whole)


@pytest.mark.parametrize("count", [4, 16], ids=["unrolled", "looped"])
@pytest.mark.parametrize("subproblem", cases.SUBPROBLEMS)
def test_chunks_bound_the_memory_of_a_direction(subproblem, count):
    params, inputs = wide_problem()
    targets = jnp.asarray(np.random.default_rng(1).integers(0, 2, EXAMPLES))

    def f(chunk_size):
        fn = proxlin.value_and_direction(
            wide,
            proxlin.Logistic(),
            subproblem=cases.SUBPROBLEMS[subproblem],
            solver=proxlin.CG(2),
            chunk_size=chunk_size,
        )
        return compiled(fn, params, inputs, targets)

    ((h, _), d), whole = f(None)
    ((h_chunked, _), d_chunked), bounded = f(EXAMPLES // count)
    np.testing.assert_allclose(h_chunked, h, rtol=1e-5)
    assert cases.relative_error(cases.flat(d_chunked), cases.flat(d)) < 1e-4
    assert bounded < whole / 2, (bounded, whole)
