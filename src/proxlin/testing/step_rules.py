"""A checker for step rules of your own."""

from __future__ import annotations

import dataclasses
from collections import Counter
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float

from proxlin.algebra import Params, count, scale, zeros_like
from proxlin.direction import Direction, Oracle
from proxlin.losses import Squared
from proxlin.metrics import Diagonal
from proxlin.optimizer import prox_linear
from proxlin.regularizers import L1
from proxlin.solvers import CG, LinearSolver, NormalSystem, Solution
from proxlin.steps import Step, StepRule
from proxlin.testing.findings import Findings, counted, tolerance_of


def check_step_rule(rule: StepRule, *, tolerance: float | None = None) -> None:
    r"""Tests a step rule against the identities that the library relies on.

    On a small regression, with and without a metric, where the subproblem has no usable solution,
    at a minimum, and with a regularizer if the rule says it is composite:

    - gamma is one positive, finite number, whatever the direction is worth;
    - the displacement is ``direction.displacement(eta)``, in the dtypes of the parameters: momentum
      keeps :math:`\eta P d`, and with a regularizer only the prox arc has exact zeros;
    - at a minimum it is zero, and nothing is NaN;
    - ``evaluations`` and ``info.jvps`` count the forward passes and the JVPs that were made, and
      the rest of the report is that of the direction;
    - the state keeps structure, shapes and dtypes;
    - :func:`proxlin.prox_linear` with this rule takes the same step under ``jit`` and
      ``lax.scan``.

    Args:
        rule: the step rule.
        tolerance: relative; ten times the root of the rounding error when None.

    Raises:
        ValueError: that names every identity that does not hold, and by how much.

    Example:
        >>> from proxlin import Fixed
        >>> check_step_rule(Fixed(gamma=0.1))
    """
    check = _Check(rule, tolerance)
    check.gammas()
    if not check.wrong:
        seen = check.step("on a regression", _oracle())
        check.step("in a metric", _oracle(metric=Diagonal(), momentum=0.5))
        check.step("where the subproblem has no solution", _oracle(solver=_Nowhere()))
        check.step("at a minimum", _oracle(), at_a_minimum=True)
        if rule.composite:
            check.step("with a regularizer", _oracle(regularizer=L1(0.1)))
        if not check.wrong:
            check.compiles(seen)
    check.conclude(rule, "step rule")


class _Seen(NamedTuple):
    """A direction, and what the rule decided about it."""

    direction: Direction
    step: Step
    calls: Counter[str]


class _Check(Findings):
    def __init__(self, rule: StepRule, tolerance: float | None):
        self.rule = rule
        super().__init__(tolerance_of(jnp.float32) if tolerance is None else tolerance)

    def gammas(self) -> None:
        first = self.rule.first_gamma()
        for name, gamma in (
            ("first_gamma", first),
            ("gamma_at", self.rule.gamma_at(count(3), first)),
        ):
            if self.same_kind(name, gamma, jnp.zeros((), jnp.result_type(float))):
                self.positive(name, gamma)

    def step(self, where: str, oracle: Oracle, *, at_a_minimum: bool = False) -> _Seen:
        seen = self._decide(oracle, at_a_minimum=at_a_minimum)
        direction, step, _ = seen
        self.same_kind(f"state {where}", step.state, self.rule.init(direction.params))
        self.positive(f"gamma {where}", step.gamma)
        self.report(where, seen)
        alike = self.same_kind(f"accepted {where}", step.accepted, direction.usable)
        alike &= self.same_kind(f"displacement {where}", step.displacement, direction.params)
        if alike and bool(step.accepted & direction.usable):
            self.displacement(where, direction, step)
            if at_a_minimum:
                zero = zeros_like(direction.params)
                self.near("displacement of zero at a minimum", step.displacement, zero)
            if not all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(step.state)):
                self.note(f"finite state {where}", "it has entries that are not finite")
        return seen

    def displacement(self, where: str, direction: Direction, step: Step) -> None:
        what = f"displacement(eta) {where}"
        if not float(step.eta) >= 0:
            self.note(f"eta >= 0 {where}", f"it is {float(step.eta):.1e}")
        own = direction.displacement(step.eta)
        if direction.proximity.smooth:
            self.near(what, step.displacement, own)
            return
        # A rule may turn to the arc of the gradient, as that of a line search that fails.
        other = direction.displacement(step.eta, direction.model.grad)
        far = lambda arc: float(optax.tree.norm(optax.tree.sub(step.displacement, arc)))
        self.near(what, step.displacement, min((own, other), key=far))

    def report(self, where: str, seen: _Seen) -> None:
        direction, step, calls = seen
        jvps = int(step.info.jvps) - int(direction.cost.jvps)
        if int(step.evaluations) != calls["pass"]:
            how = f"{int(step.evaluations)} where there were {calls['pass']} forward passes"
            self.note(f"evaluations {where}", how)
        if jvps != calls["jvp"]:
            self.note(f"info.jvps {where}", f"{jvps} more where there were {calls['jvp']} JVPs")
        for name in ("grad", "slope", "status"):
            leaves = [jax.tree.leaves(getattr(i, name)) for i in (step.info, direction.info)]
            pairs = zip(*leaves, strict=True)
            if not all(np.array_equal(a, b, equal_nan=True) for a, b in pairs):
                self.note(f"info.{name} {where}", "not that of the direction")

    def compiles(self, seen: _Seen) -> None:
        """Compares with the optimizer, which runs in a scan."""
        params, x, y = _problem()
        opt = prox_linear(_model, Squared(), step=self.rule)

        def body(carry: tuple[Params, Any], _: None) -> tuple[tuple[Params, Any], tuple[Any, ...]]:
            params, state = carry
            updates, state = opt.update(None, state, params, inputs=x, targets=y)
            params = optax.apply_updates(params, updates)
            return (params, state), (params, state.gamma, state.rule)

        _, steps = jax.lax.scan(body, (params, opt.init(params)), None, length=2)
        first = jax.tree.map(lambda leaf: leaf[0], steps)
        direction, step, _ = seen
        taken = bool(step.accepted & direction.usable)
        moved = optax.tree.sub(params, step.displacement) if taken else params
        state = step.state if taken else self.rule.init(params)
        for name, got, want in zip(
            ("parameters", "gamma", "state"), first, (moved, step.gamma, state), strict=True
        ):
            self.near(f"{name} under jit and lax.scan", got, want)

    def _decide(self, oracle: Oracle, *, at_a_minimum: bool) -> _Seen:
        params, x, y = _problem()
        targets = _model(params, x) if at_a_minimum else y
        gamma = self.rule.gamma_at(count(0), self.rule.first_gamma())
        direction = oracle.direction(params, x, targets, (), gamma, None, oracle.init(params))
        calls: Counter[str] = Counter()
        linearizations = tuple(
            dataclasses.replace(lin, jvp=counted(lin.jvp, calls, "jvp"))
            for lin in direction.model.linearizations
        )
        watched = dataclasses.replace(
            direction,
            model=dataclasses.replace(direction.model, linearizations=linearizations),
            objective=counted(direction.objective, calls, "pass"),
        )
        step = self.rule.step(watched, count(0), self.rule.init(params))
        jax.effects_barrier()
        return _Seen(direction=direction, step=step, calls=calls)


class _Nowhere(LinearSolver):
    """Conjugate gradients gone wrong: the answer is not finite, and the report looks fine."""

    def solve(self, system: NormalSystem) -> Solution:
        solution = CG().solve(system)
        return solution._replace(misfit=scale(jnp.nan, solution.misfit))


def _model(params: Params, x: Float[Array, "m 3"]) -> Float[Array, "m 2"]:
    return jnp.tanh(x @ params["w"]) + params["b"][None]


def _problem() -> tuple[Params, Float[Array, "m 3"], Float[Array, "m 2"]]:
    """Parameters, inputs and targets, in single precision whatever the default is."""
    rng = np.random.default_rng(0)
    draw = lambda *shape: jnp.asarray(rng.normal(size=shape), jnp.float32)
    return {"w": draw(3, 2), "b": draw(2)}, draw(6, 3), draw(6, 2)


def _oracle(**options: Any) -> Oracle:
    return Oracle(model=_model, loss=Squared(), **options)
