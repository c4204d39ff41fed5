r"""Step rules: how far to go along a direction, and with which gamma to look for the next one."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int

from proxlin.direction import Direction, Info
from proxlin.linearize import Params, algebra_dtype
from proxlin.solvers.system import add_scaled, count, dot, select
from proxlin.subproblems import Scalar

ScalarOrSchedule = float | Array | Callable[[Any], Any]


class Step(NamedTuple):
    r"""What a rule decided.

    Attributes:
        eta: the stepsize.
        displacement: the way to the new parameters, :math:`\eta d` or the prox arc at
            :math:`\eta`.
        accepted: whether to take the step.
        gamma: the gamma to carry on with.
        info: the report of the direction, with what the rule has added to it.
        evaluations: forward passes at trial points.
        memory: what the rule remembers of this step, if it is taken.
    """

    eta: Scalar
    displacement: Params
    accepted: Bool[Array, ""]
    gamma: Scalar
    info: Info
    evaluations: Int[Array, ""]
    memory: Any = ()


class StepRule(abc.ABC):
    """A frozen dataclass with a ``gamma`` that decides how far to go along a direction."""

    gamma: ScalarOrSchedule
    composite: ClassVar[bool] = True  # whether it can handle a regularizer

    def first_gamma(self) -> Scalar:
        """The gamma of the first step."""
        return _at(self.gamma, count(0))

    def gamma_at(self, steps: Int[Array, ""], carried: Scalar) -> Scalar:
        """The gamma for a step, given the number of steps before it and the one carried on."""
        return _at(self.gamma, steps)

    def remember(self, params: Params) -> Any:
        """What the rule remembers before the first step, a pytree; nothing, for most rules."""
        return ()

    @abc.abstractmethod
    def step(self, direction: Direction, steps: Int[Array, ""], memory: Any = ()) -> Step:
        """Decides; ``steps`` counts the steps taken before this one."""


@dataclasses.dataclass(frozen=True)
class Fixed(StepRule):
    r"""The same stepsize at every step, :math:`w - \eta\, d(\gamma)`.

    Attributes:
        gamma: the regularisation, a number or an Optax schedule.
        eta: the stepsize, a number or an Optax schedule.

    Example:
        >>> import optax
        >>> rule = Fixed(gamma=optax.exponential_decay(1.0, 100, 0.5), eta=1.0)
    """

    gamma: ScalarOrSchedule = 1.0
    eta: ScalarOrSchedule = 1.0

    def __post_init__(self) -> None:
        _check_positive(self, "gamma", "eta")

    def step(self, direction: Direction, steps: Int[Array, ""], memory: Any = ()) -> Step:
        """Always takes the step."""
        eta = _at(self.eta, steps).astype(direction.value.dtype)
        way = direction.displacement(eta)
        return Step(eta, way, jnp.asarray(True), direction.gamma, direction.info, count(0))


@dataclasses.dataclass(frozen=True)
class Armijo(StepRule):
    r"""Backtracking on the mini-batch objective.

    The first :math:`\eta` of ``max_eta``, ``max_eta * shrink``, ... that satisfies

    .. math:: h(w - \eta d) \le h(w) - \beta\, \eta \langle d, \nabla h \rangle
        + 4\, \mathrm{eps}\, |h(w)|

    is taken. Each search starts at ``max_eta``: nothing carries over from one batch to the next.
    Trial points see the same batch and the same ``args`` (so the same dropout), and their
    statistics are discarded. If no stepsize passes, the step is refused.

    With a regularizer the trial points lie on the prox arc, :math:`w_\eta =
    \operatorname{prox}_{\eta \gamma \rho}(w - \eta \gamma J^* \alpha)`, and the test is

    .. math:: (h + \rho)(w_\eta) \le (h + \rho)(w) - \beta \bigl(\langle \nabla h, w - w_\eta
        \rangle + \rho(w) - \rho(w_\eta)\bigr) + 4\, \mathrm{eps}\, |(h + \rho)(w)|

    with a positive bracket; if none passes, the search is repeated on the arc of the gradient.

    Attributes:
        gamma: the regularisation, a number or an Optax schedule.
        beta: the fraction of the slope that must be realised.
        shrink: the factor between two trials.
        max_eta: the first trial.
        max_backtracks: how often to shrink before giving up.
    """

    gamma: ScalarOrSchedule = 1.0
    beta: float = 1e-4
    shrink: float = 0.8
    max_eta: float = 1.0
    max_backtracks: int = 30

    def __post_init__(self) -> None:
        _check_positive(self, "gamma", "max_eta")
        _check_fraction(self, "beta", "shrink")
        if self.max_backtracks < 0:
            raise ValueError(f"Armijo(max_backtracks={self.max_backtracks}): give at least 0")

    def step(self, direction: Direction, steps: Int[Array, ""], memory: Any = ()) -> Step:
        """Searches; one forward pass for each trial."""
        eta, passed, evaluations = self._search(direction, direction.pull, direction.usable)
        way = direction.displacement(eta)
        if direction.pull is not None:
            again = direction.usable & ~passed
            slower, late, more = self._search(direction, direction.plin.grad, again)
            way = select(late, direction.displacement(slower, direction.plin.grad), way)
            eta, passed = jnp.where(late, slower, eta), passed | late
            evaluations += more
        return Step(eta, way, passed, direction.gamma, direction.info, evaluations)

    def _search(
        self, direction: Direction, pull: Params | None, start: Bool[Array, ""]
    ) -> tuple[Scalar, Bool[Array, ""], Int[Array, ""]]:
        """The first stepsize that passes, whether one did, and how many were tried."""
        total = direction.total
        slack = _rounding(total)

        def trial(state: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
            eta, _, evaluations = state
            way = direction.displacement(eta, pull)
            promised = _promised(direction, eta, way)
            enough = direction.objective(way) <= total - self.beta * promised + slack
            passed = enough & (promised >= 0)
            return jnp.where(passed, eta, self.shrink * eta), passed, evaluations + 1

        return jax.lax.while_loop(
            lambda s: ~s[1] & (s[2] <= self.max_backtracks) & start,
            trial,
            (jnp.asarray(self.max_eta, total.dtype), jnp.asarray(False), count(0)),
        )


def _promised(direction: Direction, eta: Scalar, way: Params) -> Scalar:
    """What the objective, linearised but for its regularizer, falls by."""
    if direction.pull is None:
        return eta * direction.info.slope
    plin = direction.plin
    lifted = jax.tree.map(lambda x: x.astype(eta.dtype), way)
    after = plin.regularizer.value(add_scaled(plin.params, -1, lifted))
    return dot(plin.grad, lifted) + direction.info.penalty - after


@dataclasses.dataclass(frozen=True)
class ModelStep(StepRule):
    r"""The best step along the direction on the convex model.

    .. math:: \eta = \operatorname{argmin}_{\eta \in [0, 1]}
        \sum_i \omega_i\, \ell_i(f_i - \eta J_i d) + \tfrac{\eta^2}{2 \gamma} \|d\|^2

    costs one JVP and no forward pass. The quadratic model does not see how far a saturated loss
    is from its quadratic expansion; the convex model does. Where curvature is taken from a part
    of the batch, so is the convex model, its slope corrected to that of the whole batch. It does
    not know regularizers.

    Attributes:
        gamma: the regularisation, a number or an Optax schedule.
    """

    gamma: ScalarOrSchedule = 1.0
    composite: ClassVar[bool] = False

    def __post_init__(self) -> None:
        _check_positive(self, "gamma")

    def step(self, direction: Direction, steps: Int[Array, ""], memory: Any = ()) -> Step:
        """Finds the root of the derivative by bisection, to three digits."""
        eta, info = _best_on_model(direction)
        return Step(eta, direction.displacement(eta), eta > 0, direction.gamma, info, count(0))


def _best_on_model(direction: Direction) -> tuple[Scalar, Info]:
    """The stepsize of :class:`ModelStep`, and the report with the JVP that it cost."""
    derivative = _model_derivative(direction)
    one = jnp.ones_like(direction.value)

    def halve(bounds: tuple[Scalar, Scalar]) -> tuple[Scalar, Scalar]:
        low, high = bounds
        middle = 0.5 * (low + high)
        beyond = ~(derivative(middle) <= 0)
        return jnp.where(beyond, low, middle), jnp.where(beyond, middle, high)

    whole = derivative(one) <= 0
    smallest = jnp.finfo(one.dtype).tiny / jnp.finfo(one.dtype).eps
    low, _ = jax.lax.while_loop(
        lambda b: ~whole & direction.usable & (b[1] - b[0] > 1e-3 * b[1]) & (b[1] > smallest),
        halve,
        (jnp.zeros_like(one), one),
    )
    eta = jnp.where(whole, one, low)
    return eta, direction.info._replace(jvps=direction.info.jvps + 1)


def _model_derivative(direction: Direction) -> Callable[[Scalar], Scalar]:
    """The derivative in eta of the convex model along the direction."""
    plin, d = direction.plin, direction.vector
    outputs = plin.linearization.outputs
    change = plin.linearization.jvp(d)

    def gain(eta: Scalar) -> Scalar:
        return dot(change, plin.pull(add_scaled(outputs, -eta, change)))

    zero = jnp.zeros_like(direction.value)
    complete = plin.same_examples and plin.source is None
    missing = zero if complete else dot(d, plin.linear_term) - gain(zero)
    proximity = dot(direction.paired, direction.paired) / direction.gamma
    return lambda eta: eta * proximity - gain(eta) - missing


@dataclasses.dataclass(frozen=True)
class TrustRegion(StepRule):
    r"""Full steps, with gamma adapted to how well the quadratic model predicts them.

    .. math:: \text{ratio} = \frac{h(w) - h(w - d)}
        {\langle d, \nabla h \rangle - \tfrac12 \langle d, (G + I/\gamma) d \rangle}

    on the same batch, with both sides raised by the rounding of :math:`h`. A regularizer counts on
    both sides. Below ``low`` gamma
    shrinks, above ``high`` it grows, and a ratio that is not positive, or not finite, refuses the
    step as well. Gamma does not grow while conjugate gradients are badly truncated: while they
    leave more than ``max_residual`` of the subproblem unsolved, or realise less than half of the
    decrease :math:`\tfrac12 \langle d, \nabla h \rangle` that an exact solution has. Few steps
    solve a less regularised subproblem even less.

    Attributes:
        gamma: the first gamma.
        low: below this ratio gamma shrinks.
        high: above this ratio gamma grows.
        shrink: the factor by which it shrinks.
        grow: the factor by which it grows.
        min_gamma: the least gamma.
        max_gamma: the largest gamma.
        max_residual: the largest relative residual, before the last inner step, to grow with.
    """

    gamma: float = 1.0
    low: float = 0.25
    high: float = 0.75
    shrink: float = 0.5
    grow: float = 2.0
    min_gamma: float = 1e-8
    max_gamma: float = 1e8
    max_residual: float = 0.5

    def __post_init__(self) -> None:
        if callable(self.gamma):
            raise TypeError("TrustRegion adapts gamma itself: give a first number, not a schedule")
        _check_positive(self, "gamma", "grow", "min_gamma", "max_gamma", "max_residual")
        _check_fraction(self, "low", "high", "shrink")
        if self.low > self.high or self.grow < 1 or self.min_gamma > self.max_gamma:
            raise ValueError(f"{self}: needs low <= high, grow >= 1 and min_gamma <= max_gamma")

    def gamma_at(self, steps: Int[Array, ""], carried: Scalar) -> Scalar:
        """The gamma carried on."""
        return carried

    def step(self, direction: Direction, steps: Int[Array, ""], memory: Any = ()) -> Step:
        """Compares the decrease with the prediction; one forward pass, at most one JVP."""
        direction = direction.with_prediction()
        total, info, gamma = direction.total, direction.info, direction.gamma
        one = jnp.ones_like(total)
        slack = _rounding(total)
        ratio = (total - direction.along(one) + slack) / (info.predicted + slack)
        ratio = jnp.where(info.predicted >= 0, ratio, -one)
        ratio = jnp.where(
            _vanishes(direction.d), one, ratio
        )  # a critical point: nothing to predict
        accepted = (ratio > 0) & jnp.isfinite(ratio)
        solved = ~(info.residual > self.max_residual) & (info.predicted >= 0.25 * info.slope)
        grows = accepted & (ratio > self.high) & solved
        factor = jnp.where(grows, self.grow, jnp.where(ratio >= self.low, 1.0, self.shrink))
        following = jnp.clip(gamma * factor.astype(gamma.dtype), self.min_gamma, self.max_gamma)
        following = jnp.where(direction.usable, following, gamma)
        return Step(one, direction.displacement(one), accepted, following, info, count(1))


class SlopeMemory(NamedTuple):
    r"""What :class:`StochasticTrustRegion` remembers.

    Attributes:
        way: the last displacement :math:`s`.
        slope: :math:`\langle \nabla h(w), s \rangle` where it began, on its own batch.
        begun: the average of the slopes where steps began.
        left: the average of the slopes where they ended, each on the batch after its own.
        ratio: the second average over the first.
    """

    way: Params
    slope: Scalar
    begun: Scalar
    left: Scalar
    ratio: Scalar


@dataclasses.dataclass(frozen=True)
class StochasticTrustRegion(StepRule):
    r"""Model steps, with gamma adapted to the slope that the next batch finds at their ends.

    A step :math:`s = w - w^+` begins with the slope :math:`\langle \nabla h_S(w), s \rangle` of
    its batch :math:`S`. Where it ends, the gradient of the next batch :math:`S^+`, which is
    computed anyway and knows nothing of the step, tells how much of it is left:

    .. math:: \text{ratio} = \frac{\operatorname{mean} \langle \nabla h_{S^+}(w^+), s \rangle}
        {\operatorname{mean} \langle \nabla h_S(w), s \rangle}

    is near one for short steps, zero for steps to the lowest point of their line, and minus one for
    steps that end as high as they began. Slopes are averaged over steps before they are divided,
    so that the noise of batches cancels. Above ``target`` gamma grows, below it shrinks, by a
    factor of at most :math:`e^{\text{rate}}` a step.

    Two things go faster. Gamma doubles while the subproblem feels no curvature (its solution keeps
    97 % of the gradient step's slope) and slopes do not turn: this is how it leaves a first gamma
    that was much too small. And it is halved when the convex model is lowest before the middle of
    the direction. The length of each step is that of :class:`ModelStep`.

    Costs one JVP, and one copy of the parameters in memory.

    Attributes:
        gamma: the first gamma; rather too small than too large.
        target: the ratio to keep.
        width: the distance from it at which gamma changes by the whole rate.
        rate: the largest change of the logarithm of gamma in one step, but for the two above.
        decay: of the averages.
        min_gamma: the least gamma.
        max_gamma: the largest gamma.
    """

    gamma: float = 1e-2
    target: float = -0.1
    width: float = 0.1
    rate: float = 0.1
    decay: float = 0.9
    min_gamma: float = 1e-8
    max_gamma: float = 1e8
    composite: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if callable(self.gamma):
            raise TypeError(f"{type(self).__name__} adapts gamma itself: give a first number")
        _check_positive(self, "gamma", "width", "rate", "min_gamma", "max_gamma")
        _check_fraction(self, "decay")
        if not -1 < self.target < 1 or self.min_gamma > self.max_gamma:
            raise ValueError(f"{self}: needs -1 < target < 1 and min_gamma <= max_gamma")

    def gamma_at(self, steps: Int[Array, ""], carried: Scalar) -> Scalar:
        """The gamma carried on."""
        return carried

    def remember(self, params: Params) -> SlopeMemory:
        """No step, and slopes of zero."""
        zero = jnp.zeros((), algebra_dtype(params))
        return SlopeMemory(jax.tree.map(jnp.zeros_like, params), zero, zero, zero, zero)

    def step(self, direction: Direction, steps: Int[Array, ""], memory: Any = ()) -> Step:
        """Asks the gradient of this batch about the last step; one JVP."""
        eta, info = _best_on_model(direction)
        way = direction.displacement(eta)
        ratio, begun, left = self._ratio(direction, memory)
        gamma = direction.gamma * self._factor(direction, eta, ratio)
        gamma = jnp.clip(gamma, self.min_gamma, self.max_gamma)
        kept = SlopeMemory(way, eta * info.slope, begun, left, ratio)
        kept = jax.tree.map(lambda new, old: new.astype(old.dtype), kept, memory)
        return Step(eta, way, eta > 0, gamma, info, count(0), kept)

    def _ratio(self, direction: Direction, memory: SlopeMemory) -> tuple[Scalar, Scalar, Scalar]:
        """What is left of the slopes, and the two averages; before the first step all of it is."""
        dtype = direction.value.dtype
        last = jax.tree.map(lambda x: x.astype(dtype), memory)
        average = lambda old, new: self.decay * old + (1 - self.decay) * new
        begun = average(last.begun, last.slope)
        left = average(last.left, dot(direction.plin.grad, last.way))
        one = jnp.ones_like(begun)
        return jnp.where(begun > 0, left / jnp.where(begun > 0, begun, one), one), begun, left

    def _factor(self, direction: Direction, eta: Scalar, ratio: Scalar) -> Scalar:
        """The factor from one gamma to the next."""
        slow = jnp.exp(self.rate * jnp.clip((ratio - self.target) / self.width, -1, 1))
        grows = (direction.fraction > 0.97) & (ratio > 0.1)
        return jnp.where(eta < 0.5, 0.5, jnp.where(grows, 2.0, slow)).astype(ratio.dtype)


def _at(value: ScalarOrSchedule, steps: Int[Array, ""]) -> Scalar:
    """A number, or a schedule at a step, in the default float dtype."""
    return jnp.asarray(value(steps) if callable(value) else value).astype(jnp.result_type(float))


def _vanishes(d: Params) -> Bool[Array, ""]:
    return jnp.all(jnp.stack([jnp.all(x == 0) for x in jax.tree.leaves(d)]))


def _rounding(value: Scalar) -> Scalar:
    return 4 * jnp.finfo(value.dtype).eps * jnp.abs(value)


def _check_positive(rule: StepRule, *names: str) -> None:
    for name in names:
        value = getattr(rule, name)
        if callable(value) or isinstance(value, jax.core.Tracer):
            continue
        if np.ndim(value) != 0 or not value > 0:
            raise ValueError(f"{type(rule).__name__}({name}={value!r}): give a positive number")


def _check_fraction(rule: StepRule, *names: str) -> None:
    for name in names:
        value = getattr(rule, name)
        if not isinstance(value, jax.core.Tracer) and not 0 < value < 1:
            raise ValueError(
                f"{type(rule).__name__}({name}={value!r}): give a number between 0 and 1"
            )
