"""Regularizers: values by hand, proximity operators by numerical minimization and identities."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import proxlin

SHAPE = (3, 2)


def elements(bound: float = 3.0):
    """Numbers that float32 holds exactly; subnormal ones are flushed by XLA."""
    numbers = st.floats(-bound, bound, width=32, allow_subnormal=False)
    return hnp.arrays(np.float64, SHAPE, elements=numbers)


strengths = st.floats(0.05, 2.0)
stepsizes = st.floats(0.05, 3.0)


def group_norms(w, axis: int):
    return sum(np.linalg.norm(part) for part in np.moveaxis(w, axis, 0))


# A maker from one strength, and the value by hand.
KINDS = {
    "zero": (lambda s: proxlin.Zero(), lambda w, s: 0.0),
    "l1": (proxlin.L1, lambda w, s: s * np.abs(w).sum()),
    "ridge": (proxlin.SquaredL2, lambda w, s: s / 2 * (w**2).sum()),
    "elastic": (
        lambda s: proxlin.ElasticNet(s, 0.7),
        lambda w, s: s * np.abs(w).sum() + 0.35 * (w**2).sum(),
    ),
    "columns": (proxlin.GroupL2, lambda w, s: s * group_norms(w, -1)),
    "rows": (lambda s: proxlin.GroupL2(s, axis=0), lambda w, s: s * group_norms(w, 0)),
}
each_kind = pytest.mark.parametrize("kind", KINDS)


@each_kind
@given(w=elements(), s=strengths)
def test_value_by_hand(kind, w, s):
    make, by_hand = KINDS[kind]
    np.testing.assert_allclose(make(s).value(jnp.asarray(w)), by_hand(w, s), rtol=1e-13)


@each_kind
@given(z=elements(), s=strengths, t=stepsizes)
def test_prox_minimizes(kind, z, s, t):
    """Against a search from the point itself, and against neighbors of the answer."""
    make, by_hand = KINDS[kind]
    objective = lambda w: by_hand(w.reshape(SHAPE), s) + ((w - z.ravel()) ** 2).sum() / (2 * t)
    got = np.asarray(make(s).prox(jnp.asarray(z), t))
    rng = np.random.default_rng(0)
    for size in (1e-6, 1e-3, 0.3):
        for step in rng.normal(size=(5, z.size)):
            # strongly convex: a neighbor is worse by its distance
            least = objective(got.ravel()) + (size * step) @ (size * step) / (2 * t)
            assert objective(got.ravel() + size * step) >= least * (1 - 1e-12) - 1e-13
    found = scipy.optimize.minimize(
        objective, z.ravel(), method="Powell", options={"xtol": 1e-9, "ftol": 1e-13}
    )
    assert objective(got.ravel()) <= found.fun + 1e-12
    if kind not in ("columns", "rows"):  # Powell may stop at the kink of a norm of vectors
        np.testing.assert_allclose(got.ravel(), found.x, atol=1e-5)


@each_kind
@given(z=elements(), s=strengths, t=stepsizes)
def test_residual_is_a_subgradient(kind, z, s, t):
    """(z - p) / t supports the regularizer at p: the optimality condition of the prox."""
    make, by_hand = KINDS[kind]
    p = np.asarray(make(s).prox(jnp.asarray(z), t))
    slope = (z - p) / t
    for other in (np.zeros(SHAPE), z, -z, 2 * p, np.ones(SHAPE)):
        below = by_hand(p, s) + np.sum(slope * (other - p))
        assert by_hand(other, s) >= below - 1e-11


@each_kind
@given(x=elements(), y=elements(), s=strengths, t=stepsizes)
def test_prox_is_firmly_nonexpansive(kind, x, y, s, t):
    regularizer = KINDS[kind][0](s)
    p, q = (np.asarray(regularizer.prox(jnp.asarray(z), t)) for z in (x, y))
    # and the more so with strong convexity
    factor = 1 + regularizer.modulus * t
    assert factor * np.sum((p - q) ** 2) <= np.sum((p - q) * (x - y)) + 1e-12


@given(z=elements(), s=strengths, t=stepsizes)
def test_moreau(z, s, t):
    """The conjugates of norms are indicators of balls, whose projections are known."""
    scaled = z / t
    ball = np.clip(scaled, -s, s)
    np.testing.assert_allclose(
        proxlin.L1(s).prox(jnp.asarray(z), t), t * (scaled - ball), atol=1e-13
    )
    for axis in (0, 1):
        norms = np.linalg.norm(scaled, axis=1 - axis, keepdims=True)
        ball = scaled * np.minimum(1, s / np.maximum(norms, 1e-300))
        got = proxlin.GroupL2(s, axis=axis).prox(jnp.asarray(z), t)
        np.testing.assert_allclose(got, t * (scaled - ball), atol=1e-13)


@given(z=elements(), l1=strengths, l2=strengths, t=stepsizes)
def test_elastic_net_is_a_ridge_around_soft_thresholds(z, l1, l2, t):
    """prox of l1 at the shrunk point and stepsize: a square only moves the center."""
    shrink = 1 / (1 + t * l2)
    want = proxlin.L1(l1).prox(jnp.asarray(shrink * z), shrink * t)
    np.testing.assert_allclose(proxlin.ElasticNet(l1, l2).prox(jnp.asarray(z), t), want, atol=1e-14)


@each_kind
@given(u=elements(), v=elements(), s=strengths)
def test_modulus_is_one_of_strong_convexity(kind, u, v, s):
    make, by_hand = KINDS[kind]
    lam = make(s).modulus
    middle = by_hand((u + v) / 2, s)
    chord = (by_hand(u, s) + by_hand(v, s)) / 2 - lam / 8 * np.sum((u - v) ** 2)
    assert middle <= chord + 1e-12


def test_modulus_needs_all_leaves():
    assert proxlin.SquaredL2(0.5).modulus == 0.5
    assert proxlin.ElasticNet(0.1, 0.5).modulus == 0.5
    anything = lambda path: True
    assert proxlin.SquaredL2(0.5, where=anything).modulus == 0
    assert proxlin.ElasticNet(0.1, 0.5, where=anything).modulus == 0


# ---------------------------------------------------------------- exact zeros and groups


def test_zeros_are_exact():
    z = jnp.asarray([0.3, -0.3, 0.1, -0.1, 0.300001, 0.0])
    np.testing.assert_array_equal(proxlin.L1(0.6).prox(z, 0.5) != 0, [0, 0, 0, 0, 1, 0])
    got = proxlin.ElasticNet(0.6, 2.0).prox(z, 0.5)
    np.testing.assert_array_equal(got != 0, [0, 0, 0, 0, 1, 0])


@pytest.mark.parametrize("axis", [0, 1, 2, -1, -2, -3])
def test_groups_along_each_axis(axis):
    """One slice is small and vanishes whole; the others keep their direction."""
    z = np.random.default_rng(0).normal(size=(3, 4, 2))
    small = np.moveaxis(z, axis, 0)
    small[1] *= 1e-3
    regularizer = proxlin.GroupL2(0.5, axis=axis)
    got = np.moveaxis(np.asarray(regularizer.prox(jnp.asarray(z), 1.0)), axis, 0)
    parts = np.moveaxis(z, axis, 0)
    assert np.all(got[1] == 0)
    for i in (i for i in range(len(parts)) if i != 1):
        norm = np.linalg.norm(parts[i])
        np.testing.assert_allclose(got[i], parts[i] * (1 - 0.5 / norm), rtol=1e-13)
    want = 0.5 * sum(np.linalg.norm(part) for part in parts)
    np.testing.assert_allclose(regularizer.value(jnp.asarray(z)), want, rtol=1e-13)


def test_groups_at_zero_stay_there_and_give_no_nan():
    z = jnp.zeros((2, 2))
    np.testing.assert_array_equal(proxlin.GroupL2(0.1).prox(z, 1.0), z)
    assert proxlin.GroupL2(0.1).value(z) == 0


@each_kind
@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float32, jnp.float64])
def test_prox_keeps_the_dtype(kind, dtype):
    z = np.random.default_rng(1).normal(size=SHAPE)
    z = jnp.asarray(z, dtype)
    regularizer = KINDS[kind][0](0.25)
    got = regularizer.prox({"w": z}, jnp.asarray(0.5))["w"]  # a stepsize in the default dtype
    want = regularizer.prox(z.astype(jnp.float64), 0.5)
    assert got.dtype == dtype
    bound = 8 * float(jnp.finfo(dtype).eps)
    np.testing.assert_allclose(np.asarray(got, np.float64), want, rtol=bound, atol=bound)


def test_value_of_mixed_and_low_precision():
    """bfloat16 would lose the small summands one by one."""
    params = {"a": jnp.full(1000, 0.01, jnp.bfloat16), "b": jnp.ones(3, jnp.float32)}
    want = 0.5 * (np.asarray(params["a"], np.float64).sum() + 3)
    value = proxlin.L1(0.5).value(params)
    assert value.dtype == jnp.float32
    np.testing.assert_allclose(value, want, rtol=1e-5)


# ---------------------------------------------------------------- where


class Layer(NamedTuple):
    kernel: Any
    bias: Any


def tree():
    ones = jnp.ones((2, 2))
    return {
        "layer": {"kernel": ones, "bias": ones},
        "list": [ones, {"kernel": ones}],
        "named": Layer(kernel=ones, bias=ones),
    }


PATHS = [
    "layer/bias",
    "layer/kernel",
    "list/0",
    "list/1/kernel",
    "named/kernel",
    "named/bias",
]


def test_paths():
    seen = []

    def where(path):
        seen.append(path)
        return False

    proxlin.L1(0.5, where=where).value(tree())
    assert seen == PATHS


@pytest.mark.parametrize("chosen", PATHS)
@pytest.mark.parametrize("kind", ["l1", "ridge", "elastic", "group"])
def test_where_picks_leaves_by_their_path(chosen, kind):
    where = lambda path: path == chosen
    regularizer, value, shrunk = {
        "l1": (proxlin.L1(0.5, where), 2.0, 0.5),
        "ridge": (proxlin.SquaredL2(1.0, where), 2.0, 0.5),
        "elastic": (proxlin.ElasticNet(0.5, 1.0, where), 4.0, 0.25),
        "group": (proxlin.GroupL2(1.0, where=where), 2 * np.sqrt(2), 1 - np.sqrt(0.5)),
    }[kind]
    np.testing.assert_allclose(regularizer.value(tree()), value, rtol=1e-14)
    got = regularizer.prox(tree(), 1.0)
    assert jax.tree.structure(got) == jax.tree.structure(tree())
    leaves = jax.tree_util.tree_leaves_with_path(got)
    for path, leaf in leaves:
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        np.testing.assert_allclose(leaf, shrunk if name == chosen else 1.0, rtol=1e-14)


def test_where_by_ending():
    kernels = proxlin.L1(1.0, where=lambda path: path.endswith("kernel"))
    assert kernels.value(tree()) == 12.0


# ---------------------------------------------------------------- what is rejected


@pytest.mark.parametrize("bad", [0.0, -1.0, float("nan")])
@pytest.mark.parametrize(
    "make, name",
    [
        (proxlin.L1, "L1(strength"),
        (proxlin.SquaredL2, "SquaredL2(strength"),
        (proxlin.GroupL2, "GroupL2(strength"),
        (lambda s: proxlin.ElasticNet(s, 1.0), "ElasticNet(l1"),
        (lambda s: proxlin.ElasticNet(1.0, s), "ElasticNet(l2"),
    ],
)
def test_strengths_are_positive(make, name, bad):
    with pytest.raises(ValueError) as raised:
        make(bad)
    assert str(raised.value) == f"{name}={bad!r}): give a positive number, or use Zero()"


@pytest.mark.parametrize("axis, shape", [(1, (3,)), (-2, (3,)), (0, ()), (2, (3, 2))])
def test_groups_need_their_axis(axis, shape):
    regularizer = proxlin.GroupL2(0.1, axis=axis)
    for call in (regularizer.value, lambda w: regularizer.prox(w, 1.0)):
        with pytest.raises(ValueError, match=rf"has no axis {axis}; choose other leaves with `wh"):
            call({"w": jnp.ones(shape)})
    # a leaf that is not chosen may have any shape
    free = proxlin.GroupL2(0.1, axis=axis, where=lambda path: path != "w")
    assert free.value({"w": jnp.ones(shape)}) == 0


@each_kind
def test_equal_regularizers_are_one_static_argument(kind):
    make = KINDS[kind][0]
    assert make(0.5) == make(0.5)
    assert hash(make(0.5)) == hash(make(0.5))
    assert kind == "zero" or make(0.5) != make(0.25)
    traces = []

    def value(regularizer, w):
        traces.append(regularizer)
        return regularizer.value(w)

    jitted = jax.jit(value, static_argnums=0)
    assert jitted(make(0.5), jnp.ones(SHAPE)) == jitted(make(0.5), jnp.ones(SHAPE))
    assert len(traces) == 1
