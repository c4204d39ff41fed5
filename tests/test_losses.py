"""Losses by their identities (calculus, Fenchel-Young, Moreau) and against outside references."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize
import scipy.special
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import proxlin
from tests import cases

M = 6


def pseudo_huber(f, y):
    return jnp.sum(jnp.sqrt(1 + (f - y) ** 2) - 1)


def pseudo_huber_conjugate(a, y):
    inside = jnp.all(jnp.abs(a) <= 1 + 8 * jnp.finfo(a.dtype).eps)
    root = jnp.sqrt(jnp.maximum(1 - a**2, 0))
    return jnp.where(inside, jnp.sum(1 - root + a * y), jnp.inf)


LOSSES = cases.LOSSES | {
    "distributions": proxlin.Logistic(),
    "huber": proxlin.FromFunction(pseudo_huber, conjugate=pseudo_huber_conjugate),
}
WITH_CONJUGATE = ["squared", "logistic", "distributions", "binary", "huber"]
DTYPES = [jnp.float32, jnp.float64]

each_loss = pytest.mark.parametrize("name", LOSSES)
each_conjugate = pytest.mark.parametrize("name", WITH_CONJUGATE)
each_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=["f32", "f64"])
seeds = st.integers(0, 2**31)

jit = functools.partial(jax.jit, static_argnums=0)


def vectors(k: int, bound: float):
    """Arrays (M, k) of numbers that float32 holds exactly; subnormal ones are flushed by XLA."""
    elements = st.floats(-bound, bound, width=32, allow_subnormal=False)
    return hnp.arrays(np.float64, (M, k), elements=elements)


def outputs(name: str, bound: float = 20.0):
    return vectors(cases.outputs_of(name), bound)


def targets_of(name: str, dtype, seed: int, examples: tuple[int, ...] = (M,)):
    if name == "distributions":
        y = np.random.default_rng(seed).dirichlet(np.ones(cases.outputs_of(name)), examples)
        y = y.astype(dtype)
        y[..., -1] = 1 - y[..., :-1].sum(axis=-1)  # a sum of one also in float32
        return jnp.asarray(np.maximum(y, 0))
    if name == "huber":
        return cases.targets_of("squared", examples, dtype, seed)
    return cases.targets_of(name, examples, dtype, seed)


def one_hot(y, k: int):
    y = np.asarray(y)
    return np.eye(k)[y] if np.issubdtype(y.dtype, np.integer) else y.astype(np.float64)


def up(y):
    """The same numbers in float64, labels as they are."""
    return y.astype(jnp.float64) if jnp.issubdtype(y.dtype, jnp.floating) else y


def close(got, want, dtype, ulps: float = 100, scale: float = 1.0) -> None:
    """Equal up to some units of rounding of the largest number involved."""
    got, want = np.asarray(got, np.float64), np.asarray(want, np.float64)
    assert np.all(np.isfinite(got))
    scale = max(scale, float(np.max(np.abs(want), initial=0)))
    np.testing.assert_allclose(got, want, rtol=0, atol=ulps * float(jnp.finfo(dtype).eps) * scale)


@jit
def by_autodiff(loss, f, y):
    """Value, gradient and Hessian of each example from the value alone, in float64."""
    single = lambda f, y: loss.value(f[None], y[None])[0]
    return (
        jax.vmap(single)(f, y),
        jax.vmap(jax.grad(single))(f, y),
        jax.vmap(jax.hessian(single))(f, y),
    )


@jit
def by_loss(loss, f, y, v, shift):
    """What the loss says itself, with B and B^T as matrices."""
    factor = loss.hessian_factor(f, y)
    basis = jnp.eye(f.shape[-1], dtype=f.dtype)
    columns = lambda op: jax.vmap(lambda e: op(jnp.broadcast_to(e, f.shape)), out_axes=-1)(basis)
    return {
        "value": loss.value(f, y),
        "grad": loss.grad(f, y),
        "hvp": loss.hvp(f, y, v),
        "hessian": loss.hessian(f, y),
        "b": columns(factor.mv),
        "bt": columns(factor.rmv),
        "solved": loss.shifted_solve(f, y, shift, v),
    }


value = jit(lambda loss, f, y: loss.value(f, y))
grad = jit(lambda loss, f, y: loss.grad(f, y))
conjugate = jit(lambda loss, a, y: loss.conjugate(a, y))
prox_conjugate = jit(lambda loss, z, y, s: loss.prox_conjugate(z, y, s))


# Calculus: everything follows from the value.


@each_dtype
@each_loss
def test_derivatives_are_those_of_the_value(name, dtype):
    @given(outputs(name), outputs(name), st.floats(-3, 3), seeds)
    def check(f, v, log_shift, seed):
        loss, y = LOSSES[name], targets_of(name, dtype, seed)
        shift = np.full((M, 1), 10.0**log_shift).astype(dtype)
        f, v, shift = (jnp.asarray(x, dtype) for x in (f, v, shift))
        got = by_loss(loss, f, y, v, shift)
        h, g, hessian = (np.asarray(x) for x in by_autodiff(loss, up(f), up(y)))
        wide = np.asarray(v, np.float64)

        close(got["value"], h, dtype, scale=40)
        close(got["grad"], g, dtype)
        close(got["hessian"], hessian, dtype)
        close(got["hvp"], np.einsum("nij,nj->ni", hessian, wide), dtype, scale=20)
        close(np.einsum("nij,nkj->nik", got["b"], got["b"]), hessian, dtype)
        # <B u, v> = <u, B^T v> for all u and v, that is:
        close(got["bt"], np.swapaxes(got["b"], 1, 2), dtype)
        matrix = hessian + np.asarray(shift, np.float64)[..., None] * np.eye(f.shape[-1])
        # Autodiff leaves errors of H that are relative to 1, or 5 for the singular loss, and to f;
        # (H + shift I)^-1 amplifies them.
        amplified = (1 + 5 / float(shift[0, 0])) * (1 + np.max(np.abs(f)))
        want = np.linalg.solve(matrix, wide[..., None])[..., 0]
        close(got["solved"], want, dtype, ulps=10 * amplified, scale=1e-30)

    check()


@each_dtype
@pytest.mark.parametrize("shift", [1e-6, 1.0])
def test_the_shifted_solve_of_the_logistic_loss_does_not_cancel(shift, dtype):
    """H vanishes on constant vectors, whatever the outputs."""
    f = 5 * np.random.default_rng(0).normal(size=(M, 3)).astype(dtype)
    y, ones = targets_of("logistic", dtype, 0), np.ones((M, 3), dtype)
    got = by_loss(LOSSES["logistic"], f, y, ones, np.full((M, 1), shift, dtype))["solved"]
    close(got, ones / shift, dtype, ulps=10, scale=1 / shift)


@given(outputs("squared"), seeds)
def test_the_preimage_of_the_squared_loss_is_mapped_to_the_gradient(f, seed):
    loss, y = LOSSES["squared"], targets_of("squared", jnp.float64, seed)
    factor = loss.hessian_factor(jnp.asarray(f), y)
    assert factor.preimage is not None
    np.testing.assert_array_equal(factor.mv(factor.preimage), loss.grad(jnp.asarray(f), y))


@each_loss
def test_a_preimage_is_given_only_where_it_needs_no_division(name):
    f, y = jnp.zeros((M, cases.outputs_of(name))), targets_of(name, jnp.float64, 0)
    preimage = jax.eval_shape(lambda f: LOSSES[name].hessian_factor(f, y).preimage, f)
    assert (preimage is not None) == (name == "squared")


@each_dtype
def test_a_function_of_the_softmax_is_the_logistic_loss(dtype):
    @given(outputs("logistic"), outputs("logistic"), st.floats(-3, 3), seeds)
    def check(f, v, log_sigma, seed):
        y, sigma = targets_of("logistic", dtype, seed), np.asarray(10.0**log_sigma, dtype)
        f, v = jnp.asarray(f, dtype), jnp.asarray(v, dtype)
        shift = jnp.full((M, 1), sigma)
        one = by_loss(LOSSES["logistic"], f, y, v, shift)
        other = by_loss(LOSSES["function"], f, y, v, shift)
        for key in ("value", "grad", "hvp", "hessian"):
            close(one[key], other[key], dtype, scale=40)
        # Factors of one Hessian differ by a rotation.
        square = lambda b: np.einsum("nij,nkj->nik", b, b)
        close(square(one["b"]), square(other["b"]), dtype)
        close(
            prox_conjugate(LOSSES["logistic"], f, y, sigma),
            prox_conjugate(LOSSES["function"], f, y, sigma),
            dtype,
            scale=20,
        )

    check()


def test_the_hessian_of_the_singular_loss_has_rank_one():
    f = jnp.asarray(np.random.default_rng(0).normal(size=(M, 2)))
    y = targets_of("singular", jnp.float64, 0)
    s = scipy.special.expit(np.asarray(f) @ [1, 2] - np.asarray(y))
    want = (s * (1 - s))[:, None, None] * np.outer([1, 2], [1, 2])
    got = by_loss(LOSSES["singular"], f, y, f, jnp.ones((M, 1)))
    close(got["hessian"], want, jnp.float64)
    np.testing.assert_array_equal(np.linalg.matrix_rank(np.asarray(got["b"]), tol=1e-7), 1)


# Conjugates.


@each_dtype
@each_conjugate
def test_fenchel_young(name, dtype):
    @given(outputs(name), outputs(name), seeds)
    def check(f, other, seed):
        loss, y = LOSSES[name], targets_of(name, dtype, seed)
        f, other = jnp.asarray(f, dtype), jnp.asarray(other, dtype)
        eps = float(jnp.finfo(dtype).eps)

        def gap(a):
            product = np.sum(np.asarray(f, np.float64) * np.asarray(a, np.float64), axis=-1)
            return np.asarray(value(loss, f, y) + conjugate(loss, a, y), np.float64) - product

        # Rounding of a, of eps, is multiplied by f; the squared loss has a as large as f.
        size = 1 + np.max(np.abs(f)) * (1 + np.max(np.abs(f)) * (name == "squared"))
        size += np.max(np.abs(other)) ** 2 * (name == "squared")
        assert np.all(gap(grad(loss, other, y)) >= -100 * eps * size)
        assert np.all(np.abs(gap(grad(loss, f, y))) <= 100 * eps * size)

    check()


@each_conjugate
def test_conjugate_is_the_supremum(name):
    @given(outputs(name, 3.0), seeds)
    def check(f, seed):
        loss, y = LOSSES[name], targets_of(name, jnp.float64, seed)
        a = grad(loss, jnp.asarray(f), y)
        got = np.asarray(conjugate(loss, a, y))
        shape = f.shape

        def negative(x):
            f = jnp.asarray(x.reshape(shape))
            values = value(loss, f, y) - jnp.sum(f * a, axis=-1)
            return float(jnp.sum(values)), np.asarray(grad(loss, f, y) - a).ravel()

        # The sum over examples at once, from zero: the conjugate is not told where to look.
        found = scipy.optimize.minimize(negative, np.zeros(f.size), jac=True, tol=1e-9)
        np.testing.assert_allclose(got.sum(), -found.fun, rtol=0, atol=1e-9)

    check()


@each_dtype
@given(k=st.sampled_from([0, 1, 2]), size=st.floats(1e-3, 1e3), seed=seeds)
def test_conjugates_are_infinite_off_their_domain(dtype, k, size, seed):
    f = jnp.asarray(np.random.default_rng(seed).normal(size=(M, 3)), dtype)
    for name in ("logistic", "distributions", "binary"):
        loss, y = LOSSES[name], targets_of(name, dtype, seed)
        low = -one_hot(y, 3)  # mu = 0
        below = np.array(grad(loss, f, y), np.float64)
        below[:, k] = low[:, k] - size
        assert np.all(np.isposinf(conjugate(loss, jnp.asarray(below, dtype), y))), name
    # The sum over classes is wrong.
    a = np.array(grad(LOSSES["logistic"], f, jnp.zeros(M, int)), np.float64)
    a[:, k] += size
    assert np.all(
        np.isposinf(conjugate(LOSSES["logistic"], jnp.asarray(a, dtype), jnp.zeros(M, int)))
    )
    # Above one.
    y = targets_of("binary", dtype, seed)
    above = np.array(1 - y, np.float64)
    above[:, k] += size
    assert np.all(np.isposinf(conjugate(LOSSES["binary"], jnp.asarray(above, dtype), y)))


@each_dtype
def test_conjugates_on_the_boundary_of_the_domain(dtype):
    """Entropies are finite at the corners, where mu log mu is a limit."""
    y = np.arange(M) % 3
    corners = (np.roll(np.eye(3), 1, axis=0) - np.eye(3))[y].astype(dtype)
    np.testing.assert_array_equal(conjugate(LOSSES["logistic"], corners, y), np.zeros(M))
    np.testing.assert_array_equal(conjugate(LOSSES["logistic"], 0 * corners, y), np.zeros(M))
    half = np.full((M, 3), 0.5, dtype)
    np.testing.assert_array_equal(conjugate(LOSSES["binary"], half, half), np.zeros(M))
    np.testing.assert_array_equal(conjugate(LOSSES["binary"], -half, half), np.zeros(M))


def test_a_function_has_no_conjugate_unless_given():
    f, y = jnp.zeros((1, 3)), jnp.zeros(1, int)
    with pytest.raises(TypeError, match=r"no conjugate.*FromFunction\(fn, conjugate=\.\.\.\)"):
        LOSSES["function"].conjugate(f, y)
    given_ = proxlin.FromFunction(cases.softmax_cross_entropy, conjugate=lambda a, y: a[y] - 1)
    np.testing.assert_array_equal(given_.conjugate(f + 3, y), [2])


# Proximity operators.


def reference_prox(name: str, z, y, sigma: float):
    """One example's prox of the conjugate by root finding, from z = grad l(f) + sigma f."""
    root = functools.partial(scipy.optimize.brentq, xtol=1e-15, rtol=1e-15, maxiter=1000)
    if name in ("logistic", "distributions", "function"):
        # mu_j + sigma log mu_j = z_j + y_j - sigma c for the log-partition c, so that mu_j is
        # Wright's omega function; c is where the mu_j sum to one.
        b = z + y
        mu = lambda c: sigma * scipy.special.wrightomega(b / sigma - c - np.log(sigma))
        low = (np.max(b) - 1) / sigma - 1  # c >= f_j >= (b_j - 1) / sigma
        high = np.max(b) / sigma + np.log(len(b)) + 1  # f_j <= b_j / sigma
        return mu(root(lambda c: np.sum(mu(c)) - 1, low, high)) - y
    if name == "singular":
        normal = np.array([1.0, 2.0])
        s = root(lambda s: s - scipy.special.expit(normal @ (z - s * normal) / sigma - y), 0, 1)
        return s * normal
    slope, least, most = {
        "squared": (lambda f, y: f - y, -np.inf, np.inf),
        "binary": (lambda f, y: scipy.special.expit(f) - y, -y, 1 - y),
        "huber": (lambda f, y: (f - y) / np.hypot(1, f - y), -1, 1),
    }[name]
    if name == "squared":
        f = (z + y) / (1 + sigma)
    else:
        # f is the prox of the loss itself, so that z - sigma f is Moreau's identity.
        low, high = np.broadcast_arrays((z - most) / sigma, (z - least) / sigma)
        pad = 1e-12 * (1 + np.abs(z) / sigma)
        equation = lambda f, z, y: slope(f, y) + sigma * f - z
        f = np.array(
            [
                root(equation, lo, hi, args=tuple(arguments))
                for lo, hi, *arguments in zip(low - pad, high + pad, z, y, strict=True)
            ]
        )
    return z - sigma * f if sigma < 1 else slope(f, y)


@each_dtype
@each_loss
def test_prox_conjugate_satisfies_moreaus_identity(name, dtype):
    k = cases.outputs_of(name)

    @given(outputs(name), st.sampled_from([0.1, 1.0]), st.floats(-4, 4), seeds)
    def check(z, size, log_sigma, seed):
        y = targets_of(name, dtype, seed)
        z, sigma = jnp.asarray(size * z, dtype), np.asarray(10.0**log_sigma, dtype)
        got = prox_conjugate(LOSSES[name], z, y, sigma)
        wide = one_hot(y, k) if name in ("logistic", "function") else np.asarray(up(y))
        rows = zip(np.asarray(z, np.float64), wide, strict=True)
        want = np.stack([reference_prox(name, zi, yi, float(sigma)) for zi, yi in rows])
        close(got, want, dtype, ulps=40, scale=1 + float(np.max(np.abs(z))))

    check()


@each_conjugate
def test_prox_conjugate_minimizes(name):
    loss = LOSSES[name]
    # From all of R^k onto the inside of the domain of the conjugate.
    domain = {
        "squared": lambda t, y: t,
        "logistic": lambda t, y: jax.nn.softmax(t) - jax.nn.one_hot(y, 3),
        "distributions": lambda t, y: jax.nn.softmax(t) - y,
        "binary": lambda t, y: jax.nn.sigmoid(t) - y,
        "huber": lambda t, y: jnp.tanh(t),
    }[name]

    def objective(a, z, y, sigma):
        return jnp.sum(loss.conjugate(a, y) + jnp.sum((a - z) ** 2, axis=-1) / (2 * sigma))

    through = jax.jit(
        jax.value_and_grad(lambda t, z, y, sigma: objective(domain(t, y), z, y, sigma))
    )
    at = jax.jit(objective)

    # Near the domain and for moderate sigma: elsewhere the search gets stuck in flat regions.
    @given(outputs(name, 0.5), st.floats(-1, 1), seeds)
    def check(z, log_sigma, seed):
        z, y = jnp.asarray(z), targets_of(name, jnp.float64, seed)
        sigma = np.asarray(10.0**log_sigma)
        p = prox_conjugate(loss, z, y, sigma)

        def flat(t):
            h, g = through(jnp.asarray(t.reshape(z.shape)), z, y, sigma)
            return float(h), np.asarray(g).ravel()

        found = scipy.optimize.minimize(flat, np.zeros(z.size), jac=True, options={"gtol": 1e-8})
        best, reached = float(found.fun), float(at(p, z, y, sigma))
        scale = 1 + abs(best)
        assert -1e-12 * scale <= best - reached <= 1e-5 * scale
        # The objective is 1/sigma-strongly convex: who is near in value is near.
        far = np.sum((np.asarray(domain(jnp.asarray(found.x.reshape(z.shape)), y)) - p) ** 2)
        assert far <= 2 * sigma * (best - reached + 1e-12 * scale)

    check()


@each_dtype
@pytest.mark.parametrize("name", ["squared", "logistic", "singular"])
def test_prox_conjugate_takes_one_stepsize_for_each_example(name, dtype):
    rng = np.random.default_rng(1)
    z = jnp.asarray(rng.normal(size=(M, cases.outputs_of(name))), dtype)
    y, sigmas = targets_of(name, dtype, 1), jnp.asarray(np.logspace(-3, 3, M), dtype)
    got = prox_conjugate(LOSSES[name], z, y, sigmas)
    each = [
        prox_conjugate(LOSSES[name], z, y, np.asarray(s, dtype))[i] for i, s in enumerate(sigmas)
    ]
    want = np.stack(each)
    close(got, want, dtype, ulps=10)


@each_dtype
@each_conjugate
def test_prox_conjugate_lies_in_the_domain(name, dtype):
    rng = np.random.default_rng(2)
    for sigma in np.asarray([1e-4, 1.0, 1e4], dtype):
        z = jnp.asarray(30 * rng.normal(size=(M, cases.outputs_of(name))), dtype)
        y = targets_of(name, dtype, 2)
        p = prox_conjugate(LOSSES[name], z, y, sigma)
        assert np.all(np.isfinite(conjugate(LOSSES[name], p, y))), sigma


# Shapes and sizes.


@pytest.mark.parametrize("name", ["squared", "logistic", "function"])
def test_sequences_are_flattened_examples(name):
    loss, k = LOSSES[name], cases.outputs_of(name)
    rng = np.random.default_rng(3)
    f, v = (jnp.asarray(rng.normal(size=(2, 3, k))) for _ in range(2))
    y = targets_of(name, jnp.float64, 3, (2, 3))
    flatten = lambda x: x.reshape(6, *x.shape[2:])
    shift = jnp.asarray(rng.uniform(1, 2, size=(2, 3, 1)))

    whole = by_loss(loss, f, y, v, shift)
    whole["prox"] = prox_conjugate(loss, f, y, shift[..., 0])
    flat = by_loss(loss, *(flatten(x) for x in (f, y, v, shift)))
    flat["prox"] = prox_conjugate(loss, flatten(f), flatten(y), flatten(shift)[:, 0])
    if name in WITH_CONJUGATE:
        whole["conjugate"] = conjugate(loss, whole["grad"], y)
        flat["conjugate"] = conjugate(loss, flat["grad"], flatten(y))
    for key, want in flat.items():
        assert whole[key].shape[:2] == (2, 3)
        close(flatten(whole[key]), want, jnp.float64, ulps=4)


@each_dtype
@pytest.mark.parametrize("name", ["logistic", "distributions", "binary", "function"])
def test_huge_logits(name, dtype):
    f = 1e4 * np.array([[1, -1, 0], [1, 1, -1], [-1, -1, -1], [0, 0.5, 1], [0, 0, 0], [1, 0.9, 1]])
    loss, y = LOSSES[name], targets_of(name, dtype, 4)
    p, ones = one_hot(y, 3), jnp.ones((M, 3), dtype)
    got = by_loss(loss, jnp.asarray(f, dtype), y, ones, ones[:, :1])
    if name == "binary":
        s = scipy.special.expit(f)
        want = np.sum(np.logaddexp(0, f) - p * f, axis=-1)
        hessian = (s * scipy.special.expit(-f))[..., None] * np.eye(3)
    else:
        s = scipy.special.softmax(f, axis=-1)
        want = scipy.special.logsumexp(f, axis=-1) - np.sum(p * f, axis=-1)
        hessian = s[..., None] * np.eye(3) - s[:, :, None] * s[:, None, :]
    close(got["value"], want, dtype, ulps=4, scale=1e4)
    close(got["grad"], s - p, dtype, ulps=4)
    close(np.einsum("nij,nkj->nik", got["b"], got["b"]), hessian, dtype, ulps=4)
    close(got["bt"], np.swapaxes(got["b"], 1, 2), dtype, ulps=4)
    if name in WITH_CONJUGATE:
        duals = got["grad"]
        gap = got["value"] + conjugate(loss, duals, y) - jnp.sum(jnp.asarray(f, dtype) * duals, -1)
        close(gap, np.zeros(M), dtype, ulps=8, scale=1e4)
    close(
        prox_conjugate(loss, jnp.asarray(f, dtype), y, np.asarray(1, dtype)),
        np.stack([reference_prox(name, fi, pi, 1.0) for fi, pi in zip(f, p, strict=True)]),
        dtype,
        scale=1e4,
    )


# What a loss is, and what it rejects.


def test_losses_are_values():
    assert proxlin.Squared() == proxlin.Squared() != proxlin.Logistic()
    assert len({proxlin.Logistic(), proxlin.Logistic(), proxlin.BinaryLogistic()}) == 2
    again = proxlin.FromFunction(pseudo_huber, pseudo_huber_conjugate)
    assert again == LOSSES["huber"] and hash(again) == hash(LOSSES["huber"])
    assert again != proxlin.FromFunction(pseudo_huber)
    assert again != proxlin.FromFunction(cases.singular, pseudo_huber_conjugate)


SHAPES = [
    ("squared", (M,), float, r"Squared: targets of shape \(6,\) for outputs of shape \(6, 3\)"),
    ("squared", (1, 3), float, r"Squared: targets of shape \(1, 3\).*nothing is broadcast"),
    ("binary", (M, 1), float, r"BinaryLogistic: targets of shape \(6, 1\).*nothing is broadcast"),
    ("logistic", (M, 1), int, r"Logistic: targets of shape \(6, 1\) and dtype int64"),
    ("logistic", (M,), float, r"dtype float64 .*integer labels of shape \(6,\) or distributions"),
    ("logistic", (M, 2), float, r"distributions of shape \(6, 3\)"),
    ("function", (3,), int, r"targets of shape \(3,\).*first axes must be \(6,\)"),
]


@pytest.mark.parametrize(("name", "shape", "kind", "message"), SHAPES)
def test_targets_that_do_not_fit(name, shape, kind, message):
    with pytest.raises(ValueError, match=message):
        LOSSES[name].check(jnp.zeros((M, 3)), jnp.zeros(shape, kind))


HALVES = [[0.5, 0.5, 0.0]] * 2
VALUES = [
    ("squared", [[0.0, 1.0, 2.0], [0.0, np.nan, 0.0]], "allowed are finite numbers"),
    ("logistic", [0, 3], r"Logistic: targets\[1\] is 3; allowed are labels 0\.\.2"),
    ("logistic", [0, -1], r"Logistic: targets\[1\] is -1; allowed are labels 0\.\.2"),
    ("logistic", [HALVES[0], [0.5, 0.4, 0.0]], r"non-negative rows that sum to one"),
    ("logistic", [HALVES[0], [1.5, -0.5, 0.0]], r"non-negative rows that sum to one"),
    ("binary", [HALVES[0], [0.0, 1.5, 0.0]], r"targets\[1\] is .*allowed are numbers in \[0, 1\]"),
    ("binary", [HALVES[0], [0.0, -0.1, 0.0]], r"BinaryLogistic: .*numbers in \[0, 1\]"),
]


@pytest.mark.parametrize(("name", "targets", "message"), VALUES)
def test_targets_with_values_that_are_not_allowed(name, targets, message):
    loss, targets = LOSSES[name], jnp.asarray(targets)
    np.testing.assert_array_equal(loss.valid(jnp.zeros((2, 3)), targets), [True, False])
    params, inputs, _ = cases.problem(name, jnp.float64, m=2)
    with pytest.raises(ValueError, match=message):
        proxlin.value_and_direction(cases.network, loss)(params, inputs, targets)


def test_distributions_may_be_rounded():
    """As they come from float16: their sum misses one by a little."""
    y = np.random.default_rng(0).dirichlet(np.ones(3), M).astype(np.float16)
    assert np.any(y.astype(np.float64).sum(axis=-1) != 1)
    assert np.all(proxlin.Logistic().valid(jnp.zeros((M, 3)), jnp.asarray(y)))


@pytest.mark.parametrize("loss", [proxlin.Logistic(), proxlin.Sparsemax()], ids=repr)
def test_value_and_gradient_agree_on_rounded_distributions(loss):
    y = jnp.asarray(np.round(np.random.default_rng(0).dirichlet(np.ones(4), 5), 3)) * 1.0005
    f = jnp.asarray(np.random.default_rng(1).normal(size=(5, 4)))
    assert loss.valid(f, y).all() and jnp.abs(jnp.sum(y, axis=-1) - 1).max() > 1e-4
    grad = jax.grad(lambda f: jnp.sum(loss.value(f, y)))(f)
    np.testing.assert_allclose(loss.grad(f, y), grad, atol=1e-12)
    shifted = loss.value(f + 100, y)  # and neither sees a constant added to all outputs
    np.testing.assert_allclose(shifted, loss.value(f, y), atol=1e-10)
