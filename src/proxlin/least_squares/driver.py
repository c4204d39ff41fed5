r"""``least_squares``: the Levenberg-Marquardt method with stopping rules."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Float, Int, PyTree

from proxlin.algebra import Params, Scalar, all_finite, count, dot, plain, select
from proxlin.direction import Direction, Oracle
from proxlin.least_squares.bounds import Bounds, as_bounds
from proxlin.least_squares.options import check_residuals, positive, rule_of
from proxlin.least_squares.result import Ending, History, LeastSquaresResult, covariance
from proxlin.linearize import check_params
from proxlin.losses import Squared
from proxlin.metrics import Marquardt
from proxlin.proximity import ProximityState
from proxlin.solvers import QR, LinearSolver
from proxlin.steps import Step, TrustRegion
from proxlin.subproblems import primal_quadratic

# Steps whose prediction is below rounding may still gain digits of the parameters.
_QUIET_STEPS = 10


def least_squares(
    residuals: Callable[..., PyTree[Array]],
    params: Params,
    *args: Any,
    bounds: Any = None,
    max_steps: int = 500,
    gtol: float | None = None,
    xtol: float | None = None,
    ftol: float | None = None,
    gamma: float | tuple[float, ...] = (1e-2, 1e8),
    acceleration: float | None = 0.75,
    solver: LinearSolver = QR(),
) -> LeastSquaresResult:
    r"""Minimizes a sum of squares, :math:`\tfrac12 \|r(w)\|^2`, by the Levenberg-Marquardt method.

    The steps are those of :func:`proxlin.levenberg_marquardt`. The result does not depend on the
    units of the parameters. It can be compiled by ``jax.jit``, and ``jax.vmap`` solves many
    problems at once.

    Args:
        residuals: ``residuals(params, *args)`` -> an array, or a pytree of arrays.
        params: the first guess, a pytree of floating-point arrays.
        *args: passed on unchanged, such as the data.
        bounds: None, or a pair of a lower and an upper bound; each a number or a pytree like
            ``params``, maybe infinite.
        max_steps: the largest number of steps from each first gamma.
        gtol: ends when every column of the Jacobian is orthogonal to the residuals, up to this
            cosine; None is the rounding error to the power 3/4.
        xtol: ends when a step is shorter than this, relative to the parameters, both in the metric;
            None is the same.
        ftol: ends when the model promises a smaller decrease of the cost, relative to it; None is
            the square of the same.
        gamma: the first gamma. With several, each is tried, and the best result is returned: a
            small one keeps close to the first guess, and a large one begins with a full step, which
            leads to other minima. A single one takes half the time of two.
        acceleration: as in :func:`proxlin.levenberg_marquardt`.
        solver: a linear solver.

    Returns:
        The parameters, the reason for the end (``result.message``), cost, gradient, covariance of
        the parameters, counts and the history of the path that led there.

    Raises:
        TypeError, ValueError: for what is not allowed, before any work is done.

    Example:
        >>> import jax.numpy as jnp
        >>> x = jnp.linspace(0.0, 1.0, 9)
        >>> y = 3.0 * jnp.exp(-2.0 * x)
        >>> fit = lambda w, x, y: w["height"] * jnp.exp(-w["rate"] * x) - y
        >>> first = {"height": jnp.asarray(1.0), "rate": jnp.asarray(1.0)}
        >>> result = least_squares(fit, first, x, y)
        >>> f"{result.params['height']:.4f} {result.params['rate']:.4f}", bool(result.converged)
        ('3.0000 2.0000', True)
    """
    if not callable(residuals):
        raise TypeError(f"residuals must be a function residuals(params, *args), not {residuals!r}")
    check_params(params)
    params = jax.tree.map(jnp.asarray, params)
    check_residuals(jax.eval_shape(residuals, params, *args))
    gammas = tuple(np.atleast_1d(gamma).tolist())
    problem = _Problem(
        residuals=lambda w: residuals(w, *args),
        bounds=as_bounds(bounds, params),
        rule=rule_of(gammas, acceleration),
        solver=solver,
        max_steps=positive("max_steps", max_steps, int),
        tolerances=tuple(
            positive(name, value, float) if value is not None else None
            for name, value in (("gtol", gtol), ("xtol", xtol), ("ftol", ftol))
        ),
    )
    if problem.bounds is not None:
        params = problem.bounds.clip(params)
    results = jax.lax.map(lambda first: problem.solve(params, first), jnp.asarray(gammas))
    costs = jnp.where(jnp.isfinite(results.cost), results.cost, jnp.inf)
    # The first of those that are equal up to rounding: others may be further from the first guess.
    good = costs <= jnp.min(costs) * (1 + jnp.finfo(costs.dtype).eps ** 0.5)
    return jax.tree.map(lambda x: x[jnp.argmax(good)], results)


class _Loop(NamedTuple):
    params: Params
    gamma: Scalar
    proximity: ProximityState
    rule: Any
    steps: Int[Array, ""]
    rejected: Int[Array, ""]
    quiet: Int[Array, ""]  # steps in a row that rounding hides
    ending: Int[Array, ""]
    history: History


@dataclasses.dataclass(frozen=True)
class _Problem:
    residuals: Callable[[Params], PyTree[Array]]
    bounds: Bounds | None
    rule: TrustRegion
    solver: LinearSolver
    max_steps: int
    tolerances: tuple[float | None, ...]

    def solve(self, params: Params, gamma: Scalar) -> LeastSquaresResult:
        """From a first guess and a first gamma to the end."""
        oracle = self._oracle()
        blank = jnp.full(self.max_steps, jnp.nan, jax.eval_shape(self._flat, params).dtype)
        start = _Loop(
            params=params,
            gamma=gamma.astype(self.rule.first_gamma().dtype),
            proximity=oracle.init(params),
            rule=self.rule.init(params),
            steps=count(0),
            rejected=count(0),
            quiet=count(0),
            ending=count(Ending.RUNNING),
            history=History._make(blank for _ in History._fields),
        )
        final = jax.lax.while_loop(
            lambda s: (s.ending == Ending.RUNNING) & (s.steps < self.max_steps),
            lambda s: self._step(oracle, s),
            start,
        )
        return self._result(oracle, final)

    def _oracle(self) -> Oracle:
        """Residuals as the outputs of a model whose inputs say which parameters are free."""

        def model(params: Params, free: Any) -> Float[Array, "n 1"]:
            if self.bounds is not None:
                hold = lambda w, own: jnp.where(own, w, jax.lax.stop_gradient(w))
                params = jax.tree.map(hold, params, free)
            return self._flat(params)[:, None]

        return Oracle(
            model=model,
            loss=Squared(),
            subproblem=primal_quadratic,
            metric=Marquardt(),
            solver=self.solver,
        )

    def _flat(self, params: Params) -> Float[Array, " n"]:
        return ravel_pytree(self.residuals(params))[0]

    def _free(self, params: Params, bounds: Bounds) -> PyTree[Bool[Array, "..."]]:
        """Which parameters no bound holds against the gradient."""
        half = lambda w: 0.5 * jnp.sum(self._flat(w) ** 2)
        return bounds.free(params, jax.grad(half)(params))

    def _direction(self, oracle: Oracle, state: _Loop) -> Direction:
        """The direction among the free parameters, short enough for the bounds."""
        free, residuals = jnp.zeros(1), jax.eval_shape(self._flat, state.params)
        if self.bounds is not None:
            free = self._free(state.params, self.bounds)
        targets = jnp.zeros((*residuals.shape, 1), residuals.dtype)
        direction = oracle.direction(
            state.params,
            free,
            targets,
            (),
            state.gamma,
            None,
            state.proximity,
        )
        return direction if self.bounds is None else self.bounds.project(direction)

    def _step(self, oracle: Oracle, state: _Loop) -> _Loop:
        direction = self._direction(oracle, state)
        step = self.rule.step(direction, state.steps, state.rule)
        ending, quiet, entry = self._judge(direction, step, state)
        taken = direction.usable & step.accepted & all_finite(step.displacement)
        taken &= (ending != Ending.GRADIENT) & (ending != Ending.NON_FINITE)
        moved = jax.tree.map(jnp.subtract, state.params, step.displacement)
        if self.bounds is not None:
            moved = self.bounds.clip(moved)
        kept = lambda new, old: select(taken, new, old) if jax.tree.leaves(old) else old
        entry = (*entry, taken.astype(entry[0].dtype))
        return _Loop(
            params=kept(moved, state.params),
            gamma=jnp.where(direction.sound, step.gamma.astype(state.gamma.dtype), state.gamma),
            proximity=direction.next_state(step.eta, taken),
            rule=kept(step.state, step.rejected_state),
            steps=state.steps + 1,
            rejected=state.rejected + count(~taken & (ending == Ending.RUNNING)),
            quiet=quiet,
            ending=ending,
            history=History._make(
                x.at[state.steps].set(e) for x, e in zip(state.history, entry, strict=True)
            ),
        )

    def _judge(
        self, direction: Direction, step: Step, state: _Loop
    ) -> tuple[Int[Array, ""], Int[Array, ""], tuple[Scalar, ...]]:
        """Whether a stopping rule holds; steps below rounding; an entry of the history."""
        value, proximity = direction.value, direction.proximity
        least = float(jnp.finfo(value.dtype).eps) ** 0.75
        gtol, xtol, ftol = (
            default if given is None else given
            for given, default in zip(self.tolerances, (least, least, least**2), strict=True)
        )
        size = jnp.sqrt(2 * value)
        along = proximity.space.inner(direction.model.grad)
        steepest = jnp.max(jnp.abs(ravel_pytree(along)[0]))
        cosine = steepest / jnp.where(size > 0, size, 1)
        flat = (steepest <= gtol * size) & direction.sound
        measure = lambda w: jnp.sqrt(dot(proximity.space.measured(w), w))
        length = measure(plain(direction.solved.d))
        length /= jnp.maximum(measure(proximity.params) + size, jnp.finfo(size.dtype).tiny)
        # A short step that was accepted means something if it is not gamma that makes it short.
        means = direction.usable & (~step.accepted | (direction.gamma >= 1))
        short = (length <= xtol) & means
        promised = step.info.predicted + 0.5 * direction.square
        level = (promised <= ftol * value) & means & step.accepted
        hidden = (step.info.predicted <= direction.rounding) | ~direction.usable
        quiet = jnp.where(hidden, state.quiet + 1, 0)
        silent = quiet >= _QUIET_STEPS
        endings = (
            (~direction.sound, Ending.NON_FINITE),
            (flat, Ending.GRADIENT),
            (short, Ending.STEP),
            (level | (silent & direction.usable), Ending.DECREASE),
            (silent, Ending.STALLED),
        )
        ending = jnp.select(
            [condition for condition, _ in endings],
            [count(own) for _, own in endings],
            count(Ending.RUNNING),
        )
        size_of = self._residual_count(state.params)
        return ending, quiet, (size_of * value, cosine, direction.gamma, length)

    def _residual_count(self, params: Params) -> int:
        return int(jax.eval_shape(self._flat, params).size)

    def _result(self, oracle: Oracle, final: _Loop) -> LeastSquaresResult:
        direction = self._direction(oracle, final)
        n = self._residual_count(final.params)
        free = jnp.ones(ravel_pytree(final.params)[0].size, bool)
        if self.bounds is not None:
            free = ravel_pytree(self._free(final.params, self.bounds))[0]
        running = (final.ending == Ending.RUNNING) | (final.steps == 0)
        return LeastSquaresResult(
            params=final.params,
            status=jnp.where(running, count(Ending.MAX_STEPS), final.ending),
            cost=n * direction.value,
            residuals=self.residuals(final.params),
            gradient=jax.tree.map(lambda g: g * n, direction.model.grad),
            covariance=covariance(direction.model.whole_rows.matrix(), 2 * direction.value, free),
            steps=final.steps,
            rejected=final.rejected,
            evaluations=final.steps * (1 if self.rule.acceleration is None else 2),
            history=final.history,
        )
