"""Conjugate gradients, without the products they do not need."""

from __future__ import annotations

import dataclasses
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from proxlin.algebra import (
    MetricVector,
    Scalar,
    Vector,
    add_scaled,
    count,
    dot,
    scale,
    select,
    zeros_like,
)
from proxlin.checks import check_integer
from proxlin.solvers.krylov import rounding_status, two_steps
from proxlin.solvers.system import Cost, LinearSolver, NormalSystem, Solution, Status

# Not lineax.CG or jax.scipy.sparse.linalg.cg: both loop, and Jacobian products of convolutions
# are about 18 times slower inside a loop on XLA:CPU (https://github.com/jax-ml/jax/issues/12868);
# and both apply M and M* at every step, while the last step here applies M alone.
_UNROLLED_STEPS = 10


@dataclasses.dataclass(frozen=True)
class CG(LinearSolver):
    r"""A fixed number of conjugate-gradient steps from :math:`x = 0`.

    At each step :math:`M q` gives the curvature :math:`\langle q, A q \rangle = \text{shift}
    \|q\|^2 + \|M q\|^2` and updates :math:`M x`; only the next residual needs :math:`M^*`. So
    :math:`\tau` steps apply :math:`M` :math:`\tau` times and :math:`M^*` :math:`\tau - 1` times
    (once more for the right-hand side if the system has data).

    The iteration ends at rounding level (residual below 10 eps of the right-hand side) and at a
    breakdown (curvature that is not positive or not finite). If the system has data :math:`s`, the
    result is the last iterate whose misfit :math:`t = s - M x` satisfies

    .. math:: \langle t, s \rangle > 10\, \mathrm{eps}\, \|t\| \|s\|

    The left side is the slope of the dual direction, positive at every step in exact arithmetic.
    With ``max_steps=0`` the result is the one for :math:`M = 0`.

    The status is INEXACT after a breakdown, if the result is not the last iterate, and if
    rounding may have changed a tenth of the result. With :math:`\kappa = 1 + \|M\|^2 /
    \text{shift}` the relative error of :math:`x` at convergence is about :math:`\kappa\,
    \mathrm{eps}`, and that of a misfit about :math:`\sqrt \kappa\, \mathrm{eps}\, \|s\| / \|t\|`:
    the residual of the system is of the order of :math:`\mathrm{eps} \|M\| \|s\|`, and
    :math:`\|M A^{-1}\| \le \tfrac12 \text{shift}^{-1/2}`.

    Attributes:
        max_steps: the number of steps; up to 10 are unrolled, more run in a loop that ends
            with the iteration.

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
    takes_metric: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_integer(self, "max_steps", least=0)

    def solve(self, system: NormalSystem) -> Solution:
        """Takes ``max_steps`` steps, or fewer if they are enough or one breaks down."""
        if self.max_steps == 0:
            return without_products(system)
        if self.max_steps == 2 and isinstance(system.rhs, MetricVector):
            return two_steps(system)
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
        early = state.broken | state.ahead
        trusted = rounding_status(system, state.stretch, state.least, state.kept.misfit)
        return Solution(
            x=state.kept.x,
            misfit=state.kept.misfit,
            cost=Cost(
                steps=state.steps,
                residual=state.residual,
                jvps=state.products,
                vjps=state.products - (0 if system.rhs is None else 1),
                status=trusted,
            ).with_status(Status.INEXACT, where=early),
        )


class _Iterate(NamedTuple):
    x: Vector
    misfit: Vector  # data - M x


class _State(NamedTuple):
    now: _Iterate
    kept: _Iterate  # the last one that descends
    r: Vector  # the residual of the system
    q: Vector  # the next conjugate direction
    rr: Scalar  # <r, r>
    rr0: Scalar  # the same at x = 0
    residual: Scalar  # relative, the last known one
    stretch: Scalar  # the largest |M q|^2 / |q|^2 so far
    least: Scalar  # the least <q, A q> / |q|^2
    steps: Int[Array, ""]
    products: Int[Array, ""]
    frozen: Bool[Array, ""]
    broken: Bool[Array, ""]
    ahead: Bool[Array, ""]  # the current iterate is not the kept one


def _start(system: NormalSystem) -> _State:
    if system.rhs is not None:
        r = system.rhs
        misfit = zeros_like(jax.eval_shape(system.forward, r))
    else:
        r = system.adjoint(system.data)
        misfit = system.data
    rr = dot(r, r)
    zero = count(0)
    first = _Iterate(zeros_like(r), misfit)
    return _State(
        now=first,
        kept=first,
        r=r,
        q=r,
        rr=rr,
        rr0=rr,
        residual=jnp.ones_like(rr),
        stretch=jnp.zeros_like(rr),
        least=jnp.full_like(rr, jnp.inf),
        steps=zero,
        products=zero,
        frozen=rr == 0,
        broken=jnp.asarray(False),
        ahead=jnp.asarray(False),
    )


def _step(system: NormalSystem, state: _State, *, last: bool) -> _State:
    mq = system.forward(state.q)
    qq, square = dot(state.q, state.q), dot(mq, mq)
    curvature = system.shift * qq + square
    broken = ~state.frozen & ~((curvature > 0) & jnp.isfinite(curvature))
    take = ~state.frozen & ~broken
    a = jnp.where(take, state.rr / jnp.where(curvature > 0, curvature, 1), 0)
    now, kept, keep = _advanced(system, state, a, mq, take)
    per_length = 1 / jnp.where(qq > 0, qq, 1)
    state = state._replace(
        now=now,
        kept=kept,
        residual=jnp.where(take, _relative(state.rr, state.rr0), state.residual),
        stretch=jnp.where(take, jnp.maximum(state.stretch, square * per_length), state.stretch),
        least=jnp.where(take, jnp.minimum(state.least, curvature * per_length), state.least),
        steps=state.steps + count(take),
        products=state.products + 1,
        frozen=~take,
        broken=state.broken | broken,
        ahead=jnp.where(take, ~keep, state.ahead),
    )
    if last:
        return state
    r = add_scaled(add_scaled(state.r, -a * system.shift, state.q), -a, system.adjoint(mq))
    rr = dot(r, r)
    q = add_scaled(r, rr / jnp.where(state.rr > 0, state.rr, 1), state.q)
    solved = take & (rr <= (10 * jnp.finfo(rr.dtype).eps) ** 2 * state.rr0)
    return state._replace(
        r=r,
        q=q,
        rr=rr,
        residual=jnp.where(solved, _relative(rr, state.rr0), state.residual),
        frozen=state.frozen | solved,
    )


def _advanced(
    system: NormalSystem, state: _State, a: Scalar, mq: Vector, take: Bool[Array, ""]
) -> tuple[_Iterate, _Iterate, Bool[Array, ""]]:
    """The next iterate, the one to return, and whether they are the same."""
    if system.data is None:  # every iterate descends
        step = lambda x, factor, y: select(take, add_scaled(x, factor, y), x)
        now = _Iterate(step(state.now.x, a, state.q), step(state.now.misfit, -a, mq))
        return now, now, take
    # Not finite after a breakdown, and then never returned.
    now = _Iterate(add_scaled(state.now.x, a, state.q), add_scaled(state.now.misfit, -a, mq))
    keep = take & _descends(system, now.misfit)
    return now, select(keep, now, state.kept), keep


def _relative(rr: Scalar, rr0: Scalar) -> Scalar:
    return jnp.sqrt(rr) / jnp.sqrt(jnp.where(rr0 > 0, rr0, 1))


def _descends(system: NormalSystem, misfit: Vector) -> Bool[Array, ""]:
    """Whether the slope of the dual direction exceeds rounding."""
    eps = jnp.finfo(system.shift.dtype).eps
    lengths = jnp.sqrt(dot(misfit, misfit)) * jnp.sqrt(dot(system.data, system.data))
    return dot(misfit, system.data) > 10 * eps * lengths


def without_products(system: NormalSystem) -> Solution:
    """The solution for M = 0."""
    if system.rhs is not None:
        x, misfit = scale(1 / system.shift, system.rhs), None  # -M x would be a product
    else:
        x = zeros_like(jax.eval_shape(system.adjoint, system.data))
        misfit = system.data
    none = count(0)
    cost = Cost(
        steps=none,
        residual=jnp.ones_like(system.shift),
        jvps=none,
        vjps=none,
        status=count(Status.OK),
    )
    return Solution(x=x, misfit=misfit, cost=cost)
