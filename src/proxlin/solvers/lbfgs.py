"""Limited-memory BFGS for smooth problems, through Optax."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Int

from proxlin.algebra import Scalar, Vector, count, dot
from proxlin.checks import check_integer
from proxlin.solvers.system import Cost, Status


class SmoothSolution(NamedTuple):
    """An approximate minimizer.

    Attributes:
        x: the minimizer.
        cost: steps; as residual, the norm of the last gradient relative to the first; one JVP and
            one VJP for each value and gradient; INEXACT if the tolerance was not reached.
    """

    x: Vector
    cost: Cost


class SmoothSolver(abc.ABC):
    """A minimizer of smooth functions; a frozen dataclass."""

    @abc.abstractmethod
    def minimize(
        self, value_and_grad: Callable[[Vector], tuple[Scalar, Vector]], start: Vector
    ) -> SmoothSolution:
        """Minimizes the function, approximately."""


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
        check_integer(self, "max_steps", least=0)
        if not self.tolerance >= 0:
            raise ValueError(f"LBFGS(tolerance={self.tolerance!r}): give a number >= 0")

    def minimize(
        self, value_and_grad: Callable[[Vector], tuple[Scalar, Vector]], start: Vector
    ) -> SmoothSolution:
        """Iterates until the gradient is small enough, or for ``max_steps`` steps."""
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
                x=x,
                inner=inner,
                steps=s.steps + 1,
                norm=jnp.sqrt(dot(after, after)),
                evaluations=s.evaluations + count(searched),
                done=(dot(updates, updates) == 0) | ~jnp.isfinite(value),
            )

        value, grad = value_and_grad(start)
        first = jnp.sqrt(dot(grad, grad))
        inner = optax.tree.set(optimizer.init(start), value=value, grad=grad)
        state = _State(
            x=start, inner=inner, steps=count(0), norm=first, evaluations=count(1), done=first == 0
        )
        # optax.lbfgs adds integers of different widths, which strict dtype promotion forbids
        with jax.numpy_dtype_promotion("standard"):
            state = jax.lax.while_loop(
                lambda s: ~s.done & (s.steps < self.max_steps) & (s.norm > self.tolerance * first),
                step,
                state,
            )
        residual = state.norm / jnp.where(first > 0, first, 1)
        solved = (residual <= self.tolerance) | (self.tolerance == 0)
        cost = Cost(
            steps=state.steps,
            residual=residual,
            jvps=state.evaluations,
            vjps=state.evaluations,
            status=count(Status.OK),
        )
        return SmoothSolution(x=state.x, cost=cost.with_status(Status.INEXACT, where=~solved))


class _State(NamedTuple):
    x: Vector
    inner: Any
    steps: Int[Array, ""]
    norm: Scalar
    evaluations: Int[Array, ""]
    done: Array


def _with_gradient(
    value_and_grad: Callable[[Vector], tuple[Scalar, Vector]],
) -> Callable[[Vector], Scalar]:
    """The function with the gradient of ``value_and_grad``, which JAX need not differentiate."""

    @jax.custom_vjp
    def function(x: Vector) -> Scalar:
        return value_and_grad(x)[0]

    function.defvjp(value_and_grad, lambda grad, scale: (optax.tree.scale(scale, grad),))
    return function
