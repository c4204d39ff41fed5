"""A checker for metrics of your own."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Float

from proxlin.algebra import Params, algebra_dtype, cast, count
from proxlin.linearize import check_params
from proxlin.metrics import Inverse, Metric
from proxlin.testing.findings import Findings, tolerance_of

_STEPS = 2


def check_metric(metric: Metric, params: Params, *, tolerance: float | None = None) -> None:
    r"""Tests a metric against the identities that the library relies on.

    The state is a pytree of arrays, and an update keeps its structure, shapes and dtypes and gives
    the same under ``jit`` and ``lax.scan``. After gradients of any size, and of none (or diagonals
    of a Gauss-Newton matrix, if it learns from those),
    :math:`P^{-1}` is finite, linear, symmetric and positive definite,

    .. math:: P^{-1} (x + 2 y) = P^{-1} x + 2 P^{-1} y, \qquad
        \langle x, P^{-1} y \rangle = \langle P^{-1} x, y \rangle, \qquad
        \langle x, P^{-1} x \rangle > 0,

    and keeps structure, shapes and dtypes. It is None if, and only if, the metric says it is the
    identity.

    Args:
        metric: the metric.
        params: a pytree of parameters; few of them, since the matrix of :math:`P^{-1}` is formed.
        tolerance: relative; ten times the root of the rounding error when None.

    Raises:
        ValueError: that names every identity that does not hold, and by how much.

    Example:
        >>> import jax.numpy as jnp
        >>> from proxlin import Kronecker
        >>> check_metric(Kronecker(), {"w": jnp.ones((3, 2)), "b": jnp.ones(2)})
    """
    check_params(params)
    params = jax.tree.map(jnp.asarray, params)
    check = _Check(metric, params, tolerance)
    check.none_for_the_identity()
    if check.wrong or metric.is_identity:
        check.conclude(metric, "metric")
        return
    if check.keeps_its_state():
        check.compiles()
        check.inverse("gradients", [check.lesson() for _ in range(_STEPS)])
        check.inverse("large gradients", [cast_scaled(1e4, check.lesson())])
        check.inverse("gradients of zero", [check.zero])
        check.inverse("a gradient, then zero", [check.lesson(), check.zero])
    check.conclude(metric, "metric")


def cast_scaled(factor: float, x: Params) -> Params:
    """``factor * x`` in the dtypes of ``x``."""
    return jax.tree.map(lambda leaf: jnp.asarray(factor, leaf.dtype) * leaf, x)


class _Check(Findings):
    def __init__(self, metric: Metric, params: Params, tolerance: float | None):
        self.metric, self.params = metric, params
        self.dtype = algebra_dtype(params)
        super().__init__(tolerance_of(self.dtype) if tolerance is None else tolerance)
        # Gradients come in the dtype of the algebra, whatever that of the parameters.
        self.zero = cast(jax.tree.map(jnp.zeros_like, params), self.dtype)
        self.rng = np.random.default_rng(0)
        self.update = jax.jit(metric.update)  # compiled once for all gradients

    def draw(self) -> Params:
        return jax.tree.map(
            lambda w: jnp.asarray(self.rng.normal(size=w.shape), w.dtype), self.zero
        )

    def lesson(self) -> Params:
        """What an update learns from: a gradient, or the diagonal of a Gauss-Newton matrix."""
        drawn = self.draw()
        return jax.tree.map(jnp.square, drawn) if self.metric.of_curvature else drawn

    def init(self) -> Any:
        """The first state, as an optimizer keeps it: numbers are arrays."""
        return jax.tree.map(
            lambda x: jnp.asarray(x, jnp.result_type(x)), self.metric.init(self.params)
        )

    def learn(self, grads: list[Params], *, compiled: bool = True) -> Any:
        state, update = self.init(), self.update if compiled else self.metric.update
        for taken, grad in enumerate(grads):
            state = update(state, grad, count(taken))
        return state

    def none_for_the_identity(self) -> None:
        grad = self.lesson()
        inverse = self.metric.inverse(self.learn([grad], compiled=False), grad, count(0))
        if (inverse is None) != self.metric.is_identity:
            found = "None" if inverse is None else "not None"
            self.note(
                "inverse is None for the identity alone",
                f"it is {found}, and is_identity is {self.metric.is_identity}",
            )

    def keeps_its_state(self) -> bool:
        what = "structure, shapes and dtypes of the state after an update"
        return self.same_kind(what, self.learn([self.lesson()]), self.init())

    def compiles(self) -> None:
        """Compares with updates in a scan, where counts and states are traced."""
        grads = [self.lesson() for _ in range(_STEPS)]
        stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *grads)
        body = lambda carry, grad: (
            (self.metric.update(carry[0], grad, carry[1]), carry[1] + 1),
            None,
        )
        (state, _), _ = jax.lax.scan(body, (self.init(), count(0)), stacked)
        self.near("state under jit and lax.scan", state, self.learn(grads, compiled=False))
        inverse: Any = self.metric.inverse
        apply = lambda s, x: inverse(s, grads[-1], count(_STEPS - 1))(x)
        self.near("inverse under jit", jax.jit(apply)(state, grads[0]), apply(state, grads[0]))

    def inverse(self, after: str, grads: list[Params]) -> None:
        """The identities of the inverse once these gradients are learned."""
        state = self.learn(grads)
        inverse: Any = self.metric.inverse(state, grads[-1], count(len(grads) - 1))
        x, y = self.draw(), self.draw()
        if not self.same_kind("structure, shapes and dtypes of P^-1 x", inverse(x), x):
            return
        matrix = self.matrix(inverse)
        if not np.all(np.isfinite(matrix)):
            self.note(f"finite P^-1 after {after}", "it has entries that are not finite")
            return
        # In units of its own, so that a tolerance means the same for all metrics.
        matrix /= np.max(np.abs(matrix)) or 1.0
        self.near(f"symmetry of P^-1 after {after}", matrix, matrix.T)
        self.definite(after, matrix)
        combined = inverse(jax.tree.map(lambda a, b: a + 2 * b, x, y))
        parts = jax.tree.map(lambda a, b: a + 2 * b, inverse(x), inverse(y))
        size = max(float(jnp.max(jnp.abs(leaf))) for leaf in jax.tree.leaves(parts)) or 1.0
        units = lambda tree: cast_scaled(1 / size, tree)
        self.near(f"linearity of P^-1 after {after}", units(combined), units(parts))

    def matrix(self, inverse: Inverse) -> Float[np.ndarray, "p p"]:
        flat, unravel = ravel_pytree(self.zero)
        column: Any = lambda e: ravel_pytree(inverse(unravel(e)))[0]
        return np.array(jax.lax.map(column, jnp.eye(flat.size, dtype=flat.dtype)), np.float64)

    def definite(self, after: str, matrix: Float[np.ndarray, "p p"]) -> None:
        """Eigenvalues of the matrix with ones on its diagonal, so that scales do not matter."""
        what = f"positive definite P^-1 after {after}"
        diagonal = np.diagonal(matrix)
        if not np.min(diagonal) > 0:
            self.note(what, f"an entry of its diagonal is {np.min(diagonal):.1e} of the largest")
            return
        root = np.sqrt(diagonal)
        least = np.min(np.linalg.eigvalsh((matrix + matrix.T) / (2 * np.outer(root, root))))
        if not least > len(matrix) * float(jnp.finfo(self.dtype).eps):
            self.note(what, f"its least eigenvalue, for ones on its diagonal, is {least:.1e}")
