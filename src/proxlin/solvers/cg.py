"""Conjugate gradients, with the products it does not need left out."""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from proxlin.solvers.system import (
    LinearSolver,
    NormalSystem,
    Solution,
    Status,
    Vector,
    add_scaled,
    count,
    dot,
    scale,
    select,
)

# Not lineax.CG or jax.scipy.sparse.linalg.cg: both loop, and Jacobian products of convolutions
# are some 18 times slower inside a loop on XLA:CPU (https://github.com/jax-ml/jax/issues/12868);
# and both apply M and M* at every step, while the last step here applies M alone.
_UNROLLED_STEPS = 10


@dataclasses.dataclass(frozen=True)
class CG(LinearSolver):
    r"""A fixed number of conjugate-gradient steps from :math:`x = 0`.

    Step by step :math:`M q` gives the curvature :math:`\langle q, A q \rangle = \text{shift}
    \|q\|^2 + \|M q\|^2` and updates :math:`M x`; only the next residual needs :math:`M^*`. So
    :math:`\tau` steps apply :math:`M` :math:`\tau` times and :math:`M^*` :math:`\tau - 1` times
    (once more for the right-hand side where the system has a source).

    The iterate is frozen at rounding level (residual below 10 eps of the right-hand side), at a
    breakdown (curvature not positive or not finite), and, where the system has a source
    :math:`s`, before :math:`\langle s - M x, s \rangle` falls below :math:`10\, \mathrm{eps}
    \|s\|^2`: in exact arithmetic it is positive at every step, and it is the slope of the dual
    direction. With ``max_steps=0`` the answer is the one for :math:`M = 0`.

    Attributes:
        max_steps: the number of steps; up to 10 are unrolled, more run in a loop that stops as
            soon as the iterate is frozen.

    Example:
        >>> import jax.numpy as jnp
        >>> a = jnp.array([[1.0, 2.0], [0.0, 1.0]])
        >>> system = NormalSystem(lambda x: a @ x, lambda y: a.T @ y, jnp.asarray(1.0),
        ...                       rhs=jnp.array([1.0, 0.0]))
        >>> x = CG(2).solve(system).x
        >>> bool(jnp.allclose(x + a.T @ (a @ x), system.rhs, atol=1e-6))
        True
    """

    max_steps: int = 2

    def __post_init__(self) -> None:
        if not isinstance(self.max_steps, int) or self.max_steps < 0:
            raise ValueError(f"CG(max_steps={self.max_steps!r}): give an integer of at least 0")

    def solve(self, system: NormalSystem) -> Solution:
        """Takes ``max_steps`` steps, or fewer where a guard stops them."""
        if self.max_steps == 0:
            return without_products(system)
        state = _start(system)
        if self.max_steps <= _UNROLLED_STEPS:
            for _ in range(self.max_steps - 1):
                state = _step(system, state, last=False)
        else:
            state = jax.lax.while_loop(
                lambda s: ~s.frozen & (s.products < self.max_steps - 1),
                lambda s: _step(system, s, last=False),
                state,
            )
        state = _step(system, state, last=True)
        return Solution(
            x=state.x,
            misfit=state.misfit,
            steps=state.steps,
            residual=state.residual,
            forwards=state.products,
            adjoints=state.products - (0 if system.rhs is None else 1),
            status=jnp.where(state.broken, count(Status.BREAKDOWN), count(Status.OK)),
        )


class _State(NamedTuple):
    x: Vector
    misfit: Vector  # source - M x
    r: Vector  # the residual of the system
    q: Vector  # the next conjugate direction
    rr: Float[Array, ""]  # <r, r>
    rr0: Float[Array, ""]  # the same at x = 0
    residual: Float[Array, ""]  # relative, before the last step taken
    steps: Int[Array, ""]
    products: Int[Array, ""]
    frozen: Bool[Array, ""]
    broken: Bool[Array, ""]


def _start(system: NormalSystem) -> _State:
    if system.rhs is not None:
        r = system.rhs
        image = jax.eval_shape(system.forward, r)
        misfit = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), image)
    else:
        r = system.adjoint(system.source)
        misfit = system.source
    rr = dot(r, r)
    zero = count(0)
    return _State(
        x=jax.tree.map(jnp.zeros_like, r),
        misfit=misfit,
        r=r,
        q=r,
        rr=rr,
        rr0=rr,
        residual=jnp.ones_like(rr),
        steps=zero,
        products=zero,
        frozen=rr == 0,
        broken=jnp.asarray(False),
    )


def _step(system: NormalSystem, state: _State, *, last: bool) -> _State:
    eps = jnp.finfo(state.rr.dtype).eps
    mq = system.forward(state.q)
    curvature = system.shift * dot(state.q, state.q) + dot(mq, mq)
    broken = ~state.frozen & ~((curvature > 0) & jnp.isfinite(curvature))
    a = state.rr / jnp.where(curvature > 0, curvature, 1)
    misfit = add_scaled(state.misfit, -a, mq)
    take = ~state.frozen & ~broken
    if system.source is not None:
        # The slope of the dual direction. Without the guard rounding turns rare directions, late
        # in the iteration and for large gamma, into ascent directions.
        take &= dot(misfit, system.source) > 10 * eps * dot(system.source, system.source)
    state = state._replace(
        x=select(take, add_scaled(state.x, a, state.q), state.x),
        misfit=select(take, misfit, state.misfit),
        residual=jnp.where(take, jnp.sqrt(state.rr) / jnp.sqrt(state.rr0), state.residual),
        steps=state.steps + count(take),
        products=state.products + 1,
        frozen=~take,
        broken=state.broken | broken,
    )
    if last:
        return state
    r = add_scaled(add_scaled(state.r, -a * system.shift, state.q), -a, system.adjoint(mq))
    rr = dot(r, r)
    q = add_scaled(r, rr / jnp.where(state.rr > 0, state.rr, 1), state.q)
    return state._replace(
        r=r, q=q, rr=rr, frozen=state.frozen | (rr <= (10 * eps) ** 2 * state.rr0)
    )


def without_products(system: NormalSystem) -> Solution:
    """The solution for M = 0."""
    if system.rhs is not None:
        x = scale(1 / system.shift, system.rhs)
        image = jax.eval_shape(system.forward, x)
        misfit = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), image)
    else:
        image = jax.eval_shape(system.adjoint, system.source)
        x = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), image)
        misfit = system.source
    zero = count(0)
    return Solution(x, misfit, zero, jnp.ones_like(system.shift), zero, zero, zero)
