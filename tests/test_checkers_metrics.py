"""check_metric accepts all metrics of the library, and names what is wrong with broken ones."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import proxlin
from proxlin.metrics import inverse_roots
from proxlin.testing import check_metric

PARAMS = {"w": jnp.ones((3, 2)), "b": jnp.ones(2)}


pytestmark = pytest.mark.usefixtures("quick_compilation")


METRICS = [
    proxlin.Euclidean(),
    proxlin.Diagonal(),
    proxlin.Marquardt(),
    proxlin.Kronecker(),
    proxlin.Kronecker(root=4, every=1, block_size=2),
    proxlin.Kronecker(epsilon=1e-12),
]


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float32, jnp.float64])
@pytest.mark.parametrize("metric", METRICS, ids=repr)
def test_metrics_of_the_library_pass(metric, dtype):
    check_metric(metric, jax.tree.map(lambda w: w.astype(dtype), PARAMS))


@pytest.mark.parametrize("root", [2, 4])
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64])
def test_roots_of_singular_moments_are_finite_however_small_epsilon(dtype, root):
    """Eigenvalues of zero, rounded to negative ones, made Newton's iteration diverge."""
    rng = np.random.default_rng(0)
    epsilon = 10 * float(jnp.finfo(dtype).eps)  # what a smaller one is raised to
    for n in (2, 16):
        g = jnp.asarray(rng.normal(size=(n, 1)), dtype)
        moments = (g @ g.T)[None], (g.T @ g)[None]
        tiny, least = (inverse_roots(g, moments, root, e)[0] for e in (1e-30, epsilon))
        np.testing.assert_allclose(tiny, least, rtol=1e-6)
        # (A / |A| + eps)^(-1/q) |A|^(-1/q) on the complement of g, where A vanishes
        off = jnp.linalg.eigvalsh(tiny[0])[-1]
        norm = jnp.linalg.norm(moments[0])
        np.testing.assert_allclose(off, epsilon ** (-1 / root) * norm ** (-1 / root), rtol=0.2)


@dataclasses.dataclass(frozen=True)
class Scaled(proxlin.Metric):
    """Twice the identity, with a count of what it has learned; the base of the broken ones."""

    def init(self, params):
        return jnp.zeros((), jnp.int32)

    def update(self, state, grad, taken):
        return state + 1

    def inverse(self, state, linear_term, taken):
        return lambda x: jax.tree.map(lambda leaf: 0.5 * leaf, x)


class SaysItIsTheIdentity(Scaled):
    is_identity: ClassVar[bool] = True


class NoInverse(Scaled):
    def inverse(self, state, linear_term, taken):
        return None


class GrowingState(Scaled):
    def init(self, params):
        return jnp.zeros(0)

    def update(self, state, grad, taken):
        return jnp.append(state, 1.0)


class OtherDtypeOfState(Scaled):
    def update(self, state, grad, taken):
        return state.astype(jnp.float32)


class CountsInPython(Scaled):
    """The count is frozen when it is traced."""

    calls: ClassVar[list[int]] = []

    def init(self, params):
        return jnp.zeros(())

    def update(self, state, grad, taken):
        self.calls.append(1)
        return state + len(self.calls)


class Asymmetric(Scaled):
    def inverse(self, state, linear_term, taken):
        return lambda x: {"w": x["w"], "b": x["b"] + 0.1 * x["w"][0]}


class Indefinite(Scaled):
    def inverse(self, state, linear_term, taken):
        return lambda x: {"w": x["w"], "b": x["b"] * jnp.array([1.0, -1.0], x["b"].dtype)}


class Singular(Scaled):
    """The mean of each leaf: semidefinite, with a positive diagonal."""

    def inverse(self, state, linear_term, taken):
        return lambda x: jax.tree.map(lambda leaf: jnp.full_like(leaf, jnp.mean(leaf)), x)


class Nonlinear(Scaled):
    def inverse(self, state, linear_term, taken):
        return lambda x: jax.tree.map(lambda leaf: leaf + leaf**3, x)


class OtherDtype(Scaled):
    def inverse(self, state, linear_term, taken):
        return lambda x: jax.tree.map(lambda leaf: leaf.astype(jnp.float32), x)


class Flattened(Scaled):
    def inverse(self, state, linear_term, taken):
        return lambda x: jax.tree.map(jnp.ravel, x)


class NoEpsilon(proxlin.Diagonal):
    def inverse(self, state, linear_term, taken):
        roots = jax.tree.map(jnp.sqrt, state)
        return lambda x: jax.tree.map(jnp.divide, x, roots)


class Overflows(proxlin.Diagonal):
    """The eighth power of large gradients."""

    def update(self, state, grad, taken):
        return jax.tree.map(lambda g: (100 * g) ** 80, grad)


BROKEN = [
    (SaysItIsTheIdentity(), "inverse is None for the identity alone: it is not None"),
    (NoInverse(), "inverse is None for the identity alone: it is None"),
    (GrowingState(), "structure, shapes and dtypes of the state after an update: float64[1]"),
    (OtherDtypeOfState(), "structure, shapes and dtypes of the state after an update: float32[]"),
    (CountsInPython(), "state under jit and lax.scan: off by"),
    (Asymmetric(), "symmetry of P^-1 after gradients: off by"),
    (Indefinite(), "positive definite P^-1 after gradients: an entry of its diagonal is -1.0e+00"),
    (Singular(), "positive definite P^-1 after gradients: its least eigenvalue"),
    (Nonlinear(), "linearity of P^-1 after gradients: off by"),
    (OtherDtype(), "structure, shapes and dtypes of P^-1 x"),
    (Flattened(), "structure, shapes and dtypes of P^-1 x"),
    (NoEpsilon(), "finite P^-1 after gradients of zero"),
    (Overflows(), "finite P^-1 after large gradients"),
]


@pytest.mark.filterwarnings("ignore:overflow")
@pytest.mark.parametrize(("metric", "what"), BROKEN, ids=lambda x: type(x).__name__)
def test_a_broken_metric_is_named(metric, what):
    with pytest.raises(ValueError) as error:
        check_metric(metric, PARAMS)
    assert f"- {what}" in str(error.value)


def test_the_base_of_the_broken_ones_passes():
    check_metric(Scaled(), PARAMS)
