"""Leaves of one shape share what is computed, and a leaf can hold several matrices."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from optax.contrib import MuonDimensionNumbers

import proxlin
from proxlin.extend import axes_of
from tests.cases import flat, relative_error
from tests.test_metrics import root_by_eigenvalues

LAYERS, WIDTH = 3, 4


def drawn(shapes, seed=0):
    rng = np.random.default_rng(seed)
    return jax.tree.map(
        lambda shape: jnp.asarray(rng.normal(size=shape)),
        shapes,
        is_leaf=lambda x: isinstance(x, tuple),
    )


def inverse_of(metric, params, x, steps=3):
    """The inverse of the metric after a few gradients, applied to x; and its state."""
    state = metric.init(params)
    for i in range(steps):
        grad = jax.tree.map(lambda w, i=i: jnp.cos((i + 1) * w), params)
        state = metric.update(state, grad, jnp.asarray(i))
    return metric.inverse(state, grad, jnp.asarray(steps - 1))(x), state


METRIC = proxlin.Kronecker(block_size=3, every=2)


def test_leaves_of_one_shape_do_not_know_of_each_other():
    shapes = {"a": (5, 7), "b": (5, 7), "c": (7,), "d": (7,), "e": (2, 5, 7), "f": (5, 7, 1)}
    params, x = drawn(shapes), drawn(shapes, 1)
    together, state = inverse_of(METRIC, params, x)
    assert set(state.factors) == {"5x7", "7", "10x7", "35x1"}
    for name in shapes:
        alone, _ = inverse_of(METRIC, params[name], x[name])
        np.testing.assert_allclose(together[name], alone, rtol=1e-10)


@pytest.mark.parametrize("guessed", [True, False])
def test_stacked_layers_are_those_of_separate_leaves(guessed):
    shapes = {"kernel": (LAYERS, 3, 5), "bias": (LAYERS, 5)}
    axes = {"kernel": MuonDimensionNumbers(1, -1), "bias": MuonDimensionNumbers((), 1)}
    metric = METRIC if guessed else proxlin.Kronecker(block_size=3, every=2, axes=axes)
    params, x = drawn(shapes), drawn(shapes, 1)
    split = lambda tree: [jax.tree.map(lambda w, i=i: w[i], tree) for i in range(LAYERS)]
    stacked, state = inverse_of(metric, params, x)
    separate, same = inverse_of(METRIC, split(params), split(x))
    assert jax.tree.map(jnp.shape, state) == jax.tree.map(jnp.shape, same)
    for got, want in zip(split(stacked), separate, strict=True):
        np.testing.assert_allclose(flat(got), flat(want), rtol=1e-10)


def test_heads_by_dimension_numbers():
    """Columns of a head in one axis, heads in another; rows last."""
    axes = MuonDimensionNumbers(reduction_axis=-1, output_axis=1)
    params, x = drawn((2, 3, 5)), drawn((2, 3, 5), 1)
    got, _ = inverse_of(proxlin.Kronecker(every=2, axes=axes), params, x)
    for head in range(2):
        want, _ = inverse_of(proxlin.Kronecker(every=2), params[head].T, x[head].T)
        np.testing.assert_allclose(got[head], want.T, rtol=1e-10)


def test_none_is_a_vector():
    params, x = drawn((5, 3)), drawn((5, 3), 1)
    given = lambda tree: jax.tree.map(lambda w: None, tree)
    got, _ = inverse_of(proxlin.Kronecker(every=2, axes=given), params, x)
    want, _ = inverse_of(proxlin.Kronecker(every=2), params.ravel(), x.ravel())
    np.testing.assert_allclose(got.ravel(), want, rtol=1e-12)


@pytest.mark.parametrize("root", [2, 4])
@pytest.mark.parametrize("shape", [(9, 4), (4, 9), (9, 9)])
def test_a_side_that_is_too_long_has_its_diagonal(shape, root):
    metric = proxlin.Kronecker(longest=8, root=root, epsilon=1e-4)
    g, x = drawn(shape), drawn(shape, 1)
    state = metric.update(metric.init(g), g, jnp.asarray(0))
    got = metric.inverse(state, g, jnp.asarray(0))(x)

    def side(moments):
        if len(moments) <= 8:
            return root_by_eigenvalues(moments, root, 1e-4)
        squares = np.diag(moments)
        return np.diag((squares + 1e-4 * squares.max()) ** (-1 / root))

    g = np.asarray(g)
    left, right = side(g @ g.T), side(g.T @ g)
    length = np.linalg.norm(g) / np.linalg.norm(left @ g @ right)
    np.testing.assert_allclose(got, length * left @ np.asarray(x) @ right, rtol=1e-6)


def test_half_of_each_symmetric_matrix_is_kept():
    state = proxlin.Kronecker(block_size=4).init({"a": jnp.zeros((8, 6)), "b": jnp.zeros(6)})
    moments_and_roots = 2 * (2 * 4 * 5 / 2) + 2 * (2 * 3 * 4 / 2)
    assert sum(x.size for x in jax.tree.leaves(state)) == moments_and_roots + 2 * 6


def test_the_program_does_not_grow_with_the_number_of_leaves():
    """But for one copy of each leaf into its stack, and one out of it."""

    def text(leaves):
        params = {str(i): jnp.zeros((6, 5)) for i in range(leaves)}

        def step(state, grad, x):
            state = METRIC.update(state, grad, jnp.asarray(0))
            return state, METRIC.inverse(state, grad, jnp.asarray(0))(x)

        return str(jax.make_jaxpr(step)(METRIC.init(params), params, params))

    few, many = text(2), text(7)
    for name in ("dot_general", "while", "mul", "add", "div", "select_n", "transpose"):
        counts = [len(re.findall(rf" {name}[\[ ]", program)) for program in (few, many)]
        assert counts[0] == counts[1] > 0, name


def layers_in_a_row(params, x):
    for layer in params["layers"]:
        x = x + jnp.tanh(x @ layer["kernel"] + layer["bias"][None])
    return x @ params["last"]


def layers_in_a_scan(params, x):
    def one(x, layer):
        return x + jnp.tanh(x @ layer["kernel"] + layer["bias"][None]), None

    return jax.lax.scan(one, x, params["layers"])[0] @ params["last"]


def test_auto_trains_scanned_layers_as_it_trains_a_list_of_them():
    layer = {"kernel": (WIDTH, WIDTH), "bias": (WIDTH,)}
    separate = drawn({"layers": [layer] * LAYERS, "last": (WIDTH, 3)})
    together = {**separate, "layers": jax.tree.map(lambda *w: jnp.stack(w), *separate["layers"])}
    rng = np.random.default_rng(0)
    x = jnp.asarray(rng.normal(size=(4, 40, WIDTH)))
    y = jnp.asarray(rng.integers(0, 3, (4, 40)))
    ends = []
    for model, start in ((layers_in_a_row, separate), (layers_in_a_scan, together)):
        opt = proxlin.auto(model, proxlin.Logistic())

        def step(i, carry, opt=opt):
            params, state = carry
            batch = {"inputs": x[i % 4], "targets": y[i % 4]}
            updates, state = opt.update(None, state, params, **batch)
            return optax.apply_updates(params, updates), state

        run = jax.jit(functools.partial(jax.lax.fori_loop, 0, 12, step))
        params, state = run((start, opt.init(start)))
        assert int(state.taken) == 12
        ends.append(params)
    stacked = jax.tree.map(lambda *w: jnp.stack(w), *ends[0]["layers"])
    assert relative_error(flat(ends[1]), flat({**ends[0], "layers": stacked})) < 1e-9


@pytest.mark.parametrize(
    "shapes,stacked",
    [
        ({"kernel": (12, 64, 32), "bias": (12, 32)}, True),
        ({"conv": {"kernel": (12, 3, 3, 32, 32), "bias": (12, 32)}, "scale": (12, 32)}, True),
        ({"kernel": (3, 32, 64), "bias": (64,)}, False),  # a convolution in one dimension
        ({"kernel": (3, 32, 64)}, False),
        ({"first": (32, 32), "second": (32, 64)}, False),  # layers without biases
        ({"query": (64, 4, 16), "gate": (64, 128)}, False),  # heads: 64 is longer than 16
    ],
)
def test_the_guess(shapes, stacked):
    is_shape = lambda x: isinstance(x, tuple)
    tree = jax.tree.map(lambda s: jax.ShapeDtypeStruct(s, float), shapes, is_leaf=is_shape)
    axes = axes_of({"network": tree})["network"]
    is_axes = lambda x: x is None or isinstance(x, MuonDimensionNumbers)
    for leaf, own in zip(
        jax.tree.leaves(tree), jax.tree.leaves(axes, is_leaf=is_axes), strict=True
    ):
        if own is None:
            assert leaf.ndim == 1
            continue
        used = {i % leaf.ndim for i in (*own.reduction_axis, *np.atleast_1d(own.output_axis))}
        assert used == set(range(int(stacked), leaf.ndim))


@pytest.mark.parametrize(
    "axes,error,message",
    [
        (MuonDimensionNumbers(0, 2), ValueError, r"axes \(2,\) of a leaf of shape \(2, 3\)"),
        (MuonDimensionNumbers(0, (0, 1)), ValueError, "none can be of rows and columns"),
        (MuonDimensionNumbers((0, 1), ()), ValueError, "columns need an axis"),
        (0, TypeError, "axes contain 0; give optax.contrib.MuonDimensionNumbers, or None"),
    ],
)
@pytest.mark.usefixtures("unchecked")
def test_bad_axes(axes, error, message):
    with pytest.raises(error, match=message):
        proxlin.Kronecker(axes=lambda params: axes).init(jnp.zeros((2, 3)))
