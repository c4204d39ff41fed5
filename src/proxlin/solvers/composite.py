r"""Convex problems that are not linear systems, and accelerated proximal gradient for them."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from proxlin.algebra import Scalar, Vector, add_scaled, count, select
from proxlin.checks import check_integer
from proxlin.solvers.system import Cost, Status

_CHECK_EVERY = 10


@dataclasses.dataclass(frozen=True)
class CompositeProblem:
    r"""The problem :math:`\min_x \varphi(A x) + \psi(x)`, convex, with :math:`\varphi` smooth.

    Attributes:
        apply: :math:`A`.
        adjoint: :math:`A^*`, with respect to ``inner``.
        smooth_grad: :math:`\nabla \varphi`.
        prox: :math:`(x, t) \mapsto \operatorname{prox}_{t \psi}(x)`.
        inner: the inner product of the space of :math:`x`.
        image_inner: the inner product of the space of :math:`A x`.
        start: a first :math:`x`.
        start_image: :math:`A` of it.
        bounds: :math:`(x, A x) \mapsto` an upper and a lower bound, the values of this problem and
            of its dual, which meet at the solution; costs one ``adjoint``.
    """

    apply: Callable[[Vector], Vector]
    adjoint: Callable[[Vector], Vector]
    smooth_grad: Callable[[Vector], Vector]
    prox: Callable[[Vector, Scalar], Vector]
    inner: Callable[[Vector, Vector], Scalar]
    image_inner: Callable[[Vector, Vector], Scalar]
    start: Vector
    start_image: Vector
    bounds: Callable[[Vector, Vector], tuple[Scalar, Scalar]]


class CompositeSolution(NamedTuple):
    r"""An approximate solution of a :class:`CompositeProblem`.

    Attributes:
        x: the solution.
        image: :math:`A x`.
        upper: the upper bound.
        lower: the lower bound.
        cost: steps; as residual, the size of the last step relative to the first; products with
            :math:`A` (``jvps``) and :math:`A^*` (``vjps``); INEXACT if the gap was not reached.
    """

    x: Vector
    image: Vector
    upper: Scalar
    lower: Scalar
    cost: Cost


class CompositeSolver(abc.ABC):
    """A solver of :class:`CompositeProblem`; a frozen dataclass."""

    @abc.abstractmethod
    def solve(self, problem: CompositeProblem) -> CompositeSolution:
        """Solves the problem approximately."""


class _State(NamedTuple):
    x: Vector
    image: Vector
    before: Vector  # the x before
    image_before: Vector
    theta: Scalar  # Nesterov's sequence
    lipschitz: Scalar
    first: Scalar  # norms of the first and the last step
    last: Scalar
    steps: Int[Array, ""]
    applies: Int[Array, ""]
    looks: Int[Array, ""]
    done: Bool[Array, ""]


@dataclasses.dataclass(frozen=True)
class ProximalGradient(CompositeSolver):
    r"""Accelerated proximal gradient steps with backtracking and restarts.

    .. math:: x \leftarrow \operatorname{prox}_{\psi / L}(y - A^* \nabla \varphi(A y) / L)

    from an extrapolated :math:`y`. The constant :math:`L` doubles until :math:`\langle \nabla
    \varphi(A x) - \nabla \varphi(A y), A (x - y) \rangle \le L \|x - y\|^2`, so no step size is
    needed. The extrapolation restarts whenever it points uphill, which exploits strong convexity
    without knowing it. Since :math:`A y` is extrapolated like :math:`y`, a step costs one
    :math:`A^*` and one :math:`A`, and each doubling one more :math:`A`.

    The steps run in a loop, in which convolutions are slow on CPUs.

    Attributes:
        max_steps: the largest number of steps.
        gap: stop when the duality gap is this small; it is computed every 10 steps, with one more
            :math:`A^*`. None stops at rounding level.
    """

    max_steps: int = 100
    gap: float | None = None

    def __post_init__(self) -> None:
        check_integer(self, "max_steps", least=0)
        if self.gap is not None and not self.gap >= 0:
            raise ValueError(f"ProximalGradient(gap={self.gap!r}): give a number >= 0, or None")

    def solve(self, problem: CompositeProblem) -> CompositeSolution:
        """Iterates until the gap is closed, nothing moves, or for ``max_steps`` steps."""
        state = jax.lax.while_loop(
            lambda s: ~s.done & (s.steps < self.max_steps),
            lambda s: self._stop(problem, _step(problem, s)),
            _start(problem),
        )
        upper, lower = problem.bounds(state.x, state.image)
        solved = jnp.asarray(True) if self.gap is None else upper - lower <= self.gap
        return CompositeSolution(
            x=state.x,
            image=state.image,
            upper=upper,
            lower=lower,
            cost=Cost(
                steps=state.steps,
                residual=state.last / jnp.where(state.first > 0, state.first, 1),
                jvps=state.applies,
                vjps=state.steps + state.looks + 1,
                status=count(Status.OK),
            ).with_status(Status.INEXACT, where=~solved),
        )

    def _stop(self, problem: CompositeProblem, state: _State) -> _State:
        wanted = self.gap
        if wanted is None:
            return state

        def look() -> Bool[Array, ""]:
            upper, lower = problem.bounds(state.x, state.image)
            return upper - lower <= wanted

        due = state.steps % _CHECK_EVERY == 0
        closed = jax.lax.cond(due, look, lambda: jnp.asarray(False))
        return state._replace(done=state.done | closed, looks=state.looks + count(due))


def _start(problem: CompositeProblem) -> _State:
    x, image = problem.start, problem.start_image
    zero = jnp.zeros_like(problem.inner(x, x))
    none = count(0)
    return _State(
        x=x,
        image=image,
        before=x,
        image_before=image,
        theta=zero + 1,
        lipschitz=zero + 1e-3,
        first=zero,
        last=zero,
        steps=none,
        applies=none,
        looks=none,
        done=jnp.asarray(False),
    )


def _step(problem: CompositeProblem, state: _State) -> _State:
    theta = 0.5 * (1 + jnp.sqrt(1 + 4 * state.theta**2))
    momentum = (state.theta - 1) / theta
    ahead = lambda new, old: add_scaled(new, momentum, add_scaled(new, -1, old))
    y, image_y = ahead(state.x, state.before), ahead(state.image, state.image_before)
    smooth_grad = problem.smooth_grad(image_y)
    grad = problem.adjoint(smooth_grad)
    x, image, lipschitz, tries = _backtrack(problem, y, image_y, smooth_grad, grad, state.lipschitz)
    move = add_scaled(x, -1, state.x)
    uphill = problem.inner(add_scaled(y, -1, x), move) > 0
    change = add_scaled(x, -1, y)
    last = jnp.sqrt(problem.inner(change, change))
    size = jnp.sqrt(problem.inner(x, x))
    eps = jnp.finfo(last.dtype).eps
    return _State(
        x=x,
        image=image,
        # a restart forgets the direction of movement
        before=select(uphill, x, state.x),
        image_before=select(uphill, image, state.image),
        theta=jnp.where(uphill, 1, theta).astype(theta.dtype),
        lipschitz=lipschitz,
        first=jnp.where(state.steps == 0, last, state.first),
        last=last,
        steps=state.steps + 1,
        applies=state.applies + tries,
        looks=state.looks,
        done=(last <= eps * size) | ~jnp.isfinite(last),
    )


def _backtrack(
    problem: CompositeProblem,
    y: Vector,
    image_y: Vector,
    smooth_grad: Vector,
    grad: Vector,
    lipschitz: Scalar,
) -> tuple[Vector, Vector, Scalar, Int[Array, ""]]:
    """One proximal step from y, with the constant doubled until it bounds the curvature."""

    def attempt(lipschitz: Scalar) -> tuple[Vector, Vector, Bool[Array, ""]]:
        x = problem.prox(add_scaled(y, -1 / lipschitz, grad), 1 / lipschitz)
        image = problem.apply(x)
        change, image_change = add_scaled(x, -1, y), add_scaled(image, -1, image_y)
        turn = add_scaled(problem.smooth_grad(image), -1, smooth_grad)
        curvature = problem.image_inner(turn, image_change)
        square = problem.inner(change, change)
        # differences of nearly equal numbers: do not chase rounding
        noise = jnp.finfo(square.dtype).eps * (problem.inner(x, x) + square)
        return x, image, curvature <= lipschitz * (square + noise)

    def again(state: tuple[Vector, Vector, Scalar, Array, Array]) -> tuple[Vector, ...]:
        _, _, lipschitz, _, tries = state
        x, image, good = attempt(2 * lipschitz)
        return x, image, 2 * lipschitz, good, tries + 1

    x, image, good = attempt(lipschitz)
    x, image, lipschitz, _, tries = jax.lax.while_loop(
        lambda s: ~s[3] & jnp.isfinite(s[2]), again, (x, image, lipschitz, good, count(1))
    )
    return x, image, lipschitz, tries
