"""Limited-memory BFGS for smooth problems, through Optax."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float, Int

from proxlin.solvers.system import Vector, count, dot


class SmoothSolution(NamedTuple):
    """An approximate minimiser.

    Attributes:
        x: the minimiser.
        steps: steps taken.
        residual: norm of the last gradient relative to that of the first.
        evaluations: how often value and gradient were computed.
        solved: whether the tolerance asked for was reached.
    """

    x: Vector
    steps: Int[Array, ""]
    residual: Float[Array, ""]
    evaluations: Int[Array, ""]
    solved: Bool[Array, ""]


class SmoothSolver(abc.ABC):
    """A minimiser of smooth functions; a frozen dataclass."""

    @abc.abstractmethod
    def minimise(
        self, value_and_grad: Callable[[Vector], tuple[Float[Array, ""], Vector]], start: Vector
    ) -> SmoothSolution:
        """Minimises the function, approximately."""


@dataclasses.dataclass(frozen=True)
class LBFGS(SmoothSolver):
    r"""``optax.lbfgs`` with its own line search, run on the subproblem.

    Attributes:
        max_steps: the largest number of steps.
        tolerance: stop when the gradient has fallen to this fraction of the first one.
    """

    max_steps: int = 100
    tolerance: float = 0.0

    def __post_init__(self) -> None:
        if not isinstance(self.max_steps, int) or self.max_steps < 0:
            raise ValueError(f"LBFGS(max_steps={self.max_steps!r}): give an integer of at least 0")

    def minimise(
        self, value_and_grad: Callable[[Vector], tuple[Float[Array, ""], Vector]], start: Vector
    ) -> SmoothSolution:
        """Steps until the gradient is small enough, or there were enough."""
        function = _with_gradient(value_and_grad)
        optimizer = optax.lbfgs()
        reuse = optax.value_and_grad_from_state(function)

        def step(s: _State) -> _State:
            value, grad = reuse(s.x, state=s.inner)
            updates, inner = optimizer.update(
                grad, s.inner, s.x, value=value, grad=grad, value_fn=function
            )
            x = optax.apply_updates(s.x, updates)
            searched = optax.tree.get(inner, "num_linesearch_steps")
            after = optax.tree.get(inner, "grad")
            return _State(
                x,
                inner,
                s.steps + 1,
                jnp.sqrt(dot(after, after)),
                s.evaluations + count(searched),
                (dot(updates, updates) == 0) | ~jnp.isfinite(value),
            )

        value, grad = value_and_grad(start)
        first = jnp.sqrt(dot(grad, grad))
        inner = optax.tree.set(optimizer.init(start), value=value, grad=grad)
        state = _State(start, inner, count(0), first, count(1), first == 0)
        # optax.lbfgs adds integers of different widths, which a strict setting would not allow
        with jax.numpy_dtype_promotion("standard"):
            state = jax.lax.while_loop(
                lambda s: ~s.done & (s.steps < self.max_steps) & (s.norm > self.tolerance * first),
                step,
                state,
            )
        residual = state.norm / jnp.where(first > 0, first, 1)
        solved = (residual <= self.tolerance) | (self.tolerance == 0)
        return SmoothSolution(state.x, state.steps, residual, state.evaluations, solved)


class _State(NamedTuple):
    x: Vector
    inner: Any
    steps: Int[Array, ""]
    norm: Float[Array, ""]
    evaluations: Int[Array, ""]
    done: Array


def _with_gradient(
    value_and_grad: Callable[[Vector], tuple[Float[Array, ""], Vector]],
) -> Callable[[Vector], Float[Array, ""]]:
    """The function whose derivative JAX takes from ``value_and_grad``, not from its trace."""

    @jax.custom_vjp
    def function(x: Vector) -> Float[Array, ""]:
        return value_and_grad(x)[0]

    function.defvjp(value_and_grad, lambda grad, scale: (optax.tree.scale(scale, grad),))
    return function
