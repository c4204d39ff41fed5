"""check_step_rule accepts all step rules of the library, and names what is wrong with broken ones.

Where a rule goes wrong unchecked, the optimizer keeps numbers that are not finite from parameters.
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import proxlin
from proxlin.extend import dot, plain, scale
from proxlin.testing import check_step_rule

pytestmark = pytest.mark.usefixtures("quick_compilation")


RULES = [
    proxlin.Fixed(),
    proxlin.Fixed(gamma=optax.exponential_decay(1.0, 10, 0.5), eta=0.5),
    proxlin.Armijo(),
    proxlin.Armijo(gamma=1e3, beta=0.9, max_backtracks=1),  # which finds no step
    proxlin.ModelStep(gamma=1e3),
    proxlin.TrustRegion(),
    proxlin.TrustRegion(gamma=1e3),
    proxlin.StochasticTrustRegion(),
    proxlin.StochasticTrustRegion(gamma=100.0),
]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: type(rule).__name__)
def test_step_rules_of_the_library_pass(rule):
    check_step_rule(rule)


@dataclasses.dataclass(frozen=True)
class Broken(proxlin.Fixed):
    """A fixed step; what is broken is done to it."""

    def step(self, direction, steps, state=()):
        return self.break_(direction, super().step(direction, steps, state))

    def break_(self, direction, step):
        return step


class NegativeGamma(Broken):
    def first_gamma(self):
        return -super().first_gamma()

    def gamma_at(self, steps, carried):
        return -jnp.abs(carried)


class ManyGammas(Broken):
    def gamma_at(self, steps, carried):
        return jnp.ones(2)


class GammaFromTheSlope(Broken):
    """NaN where there is no solution, and then for ever."""

    def break_(self, direction, step):
        return step._replace(gamma=direction.gamma * jnp.exp(-direction.slope))


class GammaOverNothing(Broken):
    def break_(self, direction, step):
        return step._replace(gamma=direction.gamma + 1 / direction.square)


class TwiceAsFar(Broken):
    """The stepsize is not the one of the displacement, and momentum would keep half of the step."""

    def break_(self, direction, step):
        return step._replace(displacement=scale(2.0, step.displacement))


class Backwards(Broken):
    def break_(self, direction, step):
        return step._replace(eta=-step.eta, displacement=scale(-1.0, step.displacement))


class WithPd(Broken):
    """Takes the pair of a direction and its image under the metric for the direction."""

    def break_(self, direction, step):
        return step._replace(displacement=direction.solved.d)


class Straight(Broken):
    """Composite in name: along the line, on which parameters are not sparse."""

    def break_(self, direction, step):
        eta = jnp.asarray(0.5, direction.value.dtype)
        return step._replace(eta=eta, displacement=scale(0.5, direction.d))


class StraightAndSaysSo(Straight):
    composite: ClassVar[bool] = False


class Normalized(Broken):
    """No length of zero is expected."""

    def break_(self, direction, step):
        length = jnp.sqrt(dot(direction.d, direction.d))
        return step._replace(eta=1 / length, displacement=direction.displacement(1 / length))


class WideState(Broken):
    def init(self, params):
        return jnp.zeros((), jnp.float32)

    def step(self, direction, steps, state=()):
        return super().step(direction, steps)._replace(state=jnp.ones((), jnp.float64))


class NoState(Broken):
    def init(self, params):
        return params


class StateOverNothing(Broken):
    def init(self, params):
        return jnp.zeros((), jnp.float32)

    def break_(self, direction, step):
        return step._replace(state=1 / direction.square)


class Looks(Broken):
    def break_(self, direction, step):
        lower = direction.objective(step.displacement) <= direction.total
        return step._replace(accepted=lower | True)


class AsksForAProduct(Broken):
    def break_(self, direction, step):
        _, change = direction.change()
        turns = direction.model.slope_along(direction.d, change)(step.eta) > 0
        return step._replace(eta=jnp.where(turns, step.eta, step.eta))


class OwnReport(Broken):
    def break_(self, direction, step):
        cost = step.info.cost._replace(status=jnp.zeros_like(step.info.status))
        return step._replace(info=step.info._replace(cost=cost, slope=-step.info.slope))


class ManyVerdicts(Broken):
    def break_(self, direction, step):
        return step._replace(accepted=jnp.ones(3, bool))


class CountsInPython(Broken):
    calls: ClassVar[list[int]] = []

    def break_(self, direction, step):
        self.calls.append(1)
        return step._replace(gamma=direction.gamma * len(self.calls))


NOWHERE = "where the subproblem has no solution"
BROKEN = [
    (NegativeGamma(), "first_gamma: it is -1.0e+00"),
    (NegativeGamma(), "gamma_at: it is -1.0e+00"),
    (ManyGammas(), "gamma_at: float64[2] where float64[] is due"),
    (GammaFromTheSlope(), f"gamma {NOWHERE}: it is nan"),
    (GammaOverNothing(), "gamma at a minimum: it is inf"),
    (TwiceAsFar(), "displacement(eta) on a regression: off by"),
    (TwiceAsFar(), "displacement(eta) in a metric: off by"),
    (Backwards(), "eta >= 0 on a regression: it is -1.0e+00"),
    (WithPd(), "displacement in a metric: MetricVector("),
    (Straight(), "displacement(eta) with a regularizer: off by"),
    (Normalized(), "displacement of zero at a minimum: off by nan"),
    (WideState(), "state on a regression: float64[] where float32[] is due"),
    (NoState(), "state on a regression: () where {b: float32[2], w: float32[3, 2]} is due"),
    (StateOverNothing(), "finite state at a minimum: it has entries that are not finite"),
    (Looks(), "evaluations on a regression: 0 where there were 1 forward passes"),
    (AsksForAProduct(), "info.jvps on a regression: 0 more where there were 1 JVPs"),
    (OwnReport(), "info.slope on a regression: not that of the direction"),
    (OwnReport(), f"info.status {NOWHERE}: not that of the direction"),
    (ManyVerdicts(), "accepted on a regression: bool[3] where bool[] is due"),
    (CountsInPython(), "gamma under jit and lax.scan: off by"),
]


@pytest.mark.parametrize(("rule", "what"), BROKEN, ids=lambda x: type(x).__name__)
def test_a_broken_step_rule_is_named(rule, what):
    with pytest.raises(ValueError) as error:
        check_step_rule(rule)
    assert f"- {what}" in str(error.value)


def test_a_rule_that_is_not_composite_may_be_straight():
    check_step_rule(StraightAndSaysSo())


def test_only_what_is_wrong_with_a_rule_is_named():
    with pytest.raises(ValueError) as error:
        check_step_rule(Straight())
    assert len(str(error.value).splitlines()) == 2


class Hostile(Broken):
    """Accepts everything, and makes everything NaN."""

    def init(self, params):
        return jnp.zeros((), jnp.float32)

    def break_(self, direction, step):
        nowhere = scale(jnp.nan, plain(direction.d))
        return step._replace(displacement=nowhere, state=jnp.full((), jnp.nan, jnp.float32))


LINEAR = lambda w, x: x @ w.astype(x.dtype)
PARAMS, X, Y = jnp.ones((2, 1), jnp.float32), jnp.eye(2, dtype=jnp.float32), jnp.zeros((2, 1))


@pytest.mark.parametrize("rule", [Hostile(), *RULES], ids=lambda rule: type(rule).__name__)
def test_what_is_not_finite_never_reaches_parameters(rule):
    """From a batch of NaN, or from the rule itself: all stays as it was."""
    opt = proxlin.prox_linear(LINEAR, proxlin.Squared(), step=rule)
    start = opt.init(PARAMS)
    targets = Y.astype(jnp.float32)
    batches = [X * jnp.nan] if rule in RULES else [X, X * jnp.nan]
    for inputs in batches:
        updates, state = jax.jit(opt.update)(None, start, PARAMS, inputs=inputs, targets=targets)
        np.testing.assert_array_equal(updates, 0)
        assert (int(state.taken), int(state.rejected), float(state.eta)) == (0, 1, 0.0)
        for got, want in zip(
            jax.tree.leaves((state.rule, state.gamma, state.then)),
            jax.tree.leaves((start.rule, start.gamma, start.then)),
            strict=True,
        ):
            np.testing.assert_array_equal(got, want)


def test_a_step_too_long_for_its_dtype_is_rejected():
    """The direction is finite in the dtype of the algebra, and infinite in that of parameters."""
    opt = proxlin.prox_linear(LINEAR, proxlin.Squared(), step=proxlin.Fixed(gamma=1e4))
    params = jnp.ones((2, 1), jnp.float16)
    x = jnp.full((2, 2), 0.01, jnp.float32)
    y = jnp.full((2, 1), 3e3, jnp.float32)
    updates, state = opt.update(None, opt.init(params), params, inputs=x, targets=y)
    assert int(state.rejected) == 1 and np.all(np.asarray(updates) == 0)
