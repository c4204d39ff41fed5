r"""A direction, what it is worth, what it cost, and what to remember of it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from proxlin.linearize import Outputs, Params, cast_like
from proxlin.regularizers import Zero
from proxlin.solvers import Status
from proxlin.solvers.system import Vector, add_scaled, count, dot, scale, select
from proxlin.subproblems import (
    PartialLinearization,
    Proximity,
    Scalar,
    Subsolution,
    vector_of,
)


class Info(NamedTuple):
    r"""What a direction is worth and what it cost.

    Attributes:
        grad: the gradient :math:`\nabla h` of the mini-batch objective, free of charge.
        slope: :math:`\langle d, \nabla h \rangle`, positive for a descent direction :math:`-d`.
        predicted: the decrease :math:`\langle d, \nabla h \rangle - \tfrac12 \langle d, (G +
            I/\gamma) d \rangle` that the quadratic model promises; NaN where nothing asked for it.
        steps: inner steps.
        residual: the last relative residual of the subproblem that is known, before the last
            inner step (the one after it would cost a product more); NaN for a direct solver.
        jvps: Jacobian-vector products spent.
        vjps: vector-Jacobian products spent, the one for the gradient among them.
        status: a :class:`proxlin.Status`.
        aux: what the model returned beside its outputs.
        penalty: :math:`\rho(w)`, the regularizer at the parameters.
        primal: value of the convex subproblem at :math:`d`; NaN for the quadratic ones.
        dual: value of its dual, a lower bound of the minimum; likewise.
        gap: the difference of the two, which bounds the error of the subproblem's solution.
    """

    grad: Params
    slope: Scalar
    predicted: Scalar
    steps: Int[Array, ""]
    residual: Scalar
    jvps: Int[Array, ""]
    vjps: Int[Array, ""]
    status: Int[Array, ""]
    aux: Any
    penalty: Scalar
    primal: Scalar
    dual: Scalar
    gap: Scalar


class Memory(NamedTuple):
    r"""What directions learn from the steps before; a plain pytree, empty where not asked for.

    Attributes:
        metric: the state of the metric.
        momentum: :math:`P d` of the last step, in its own metric, as far as it was taken.
    """

    metric: Any = ()
    momentum: Params | tuple[()] = ()

    def after(self, eta: Scalar) -> Memory:
        """The same after a step of this length."""
        shorten = lambda x: eta.astype(x.dtype) * x
        return self._replace(momentum=jax.tree.map(shorten, self.momentum))


@dataclasses.dataclass(frozen=True)
class Direction:
    r"""A direction with all that a step rule may ask about it; lives inside one trace.

    Attributes:
        value: the objective :math:`h` at the parameters.
        d: the direction, in the dtypes of the parameters; zero where it is not usable.
        info: the report.
        usable: whether it is finite and descends, and no value was bad.
        sound: whether value and gradient are finite and no value was bad. If so and the direction
            is not usable, the subproblem is to blame, and a smaller gamma may help.
        gamma: the regularisation it was computed with.
        plin: the convex model it comes from.
        pull: :math:`J^* \alpha`, where a regularizer makes the way along the direction an arc.
        predicts: whether ``info.predicted`` is known.
        paired: the direction in the dtype of the algebra, and with a metric the pair of it.
        memory: what to remember of this direction, if it is taken to its end.
        objective: displacement -> :math:`(h + \rho)(w - \text{displacement})`, on the same batch
            and with the same ``args``; what the model returns beside its outputs is discarded.
    """

    value: Scalar
    d: Params
    info: Info
    usable: Bool[Array, ""]
    sound: Bool[Array, ""]
    gamma: Scalar
    plin: PartialLinearization
    pull: Params | None
    predicts: bool
    paired: Vector
    memory: Memory
    objective: Callable[[Params], Scalar]

    @property
    def total(self) -> Scalar:
        r""":math:`h + \rho` at the parameters."""
        return self.value if self.pull is None else self.value + self.info.penalty

    @property
    def rounding(self) -> Scalar:
        r"""By how much rounding may change the objective here.

        .. math:: 4\, \mathrm{eps} \Bigl(|h + \rho| + \sum_i \omega_i \langle |\nabla \ell_i|, |f_i|
            \rangle \Bigr)

        The second term is what the rounding of outputs does to their losses, much more than that
        of the losses where targets are nearly met.
        """
        outputs = self.plin.linearization.outputs
        return self._rounding_of(outputs) + 4 * _eps(self.value) * jnp.abs(self.total)

    def rounding_of_params(self) -> Scalar:
        r"""The same for the rounding of parameters; one JVP.

        .. math:: 4\, \mathrm{eps} \sum_i \omega_i \langle |\nabla \ell_i|, |J_i |w|| \rangle

        It is much more where large numbers cancel inside of the network.
        """
        sizes = jax.tree.map(jnp.abs, self.plin.params)
        return self._rounding_of(self.plin.linearization.jvp(sizes))

    def _rounding_of(self, outputs: Outputs) -> Scalar:
        """What a change of outputs by four units of rounding can do to the objective."""
        sizes = lambda tree: jax.tree.map(jnp.abs, tree)
        pull = self.plin.pull(self.plin.linearization.outputs)
        size = dot(sizes(pull), sizes(outputs)).astype(self.value.dtype)
        return 4 * _eps(self.value) * size

    @property
    def vector(self) -> Params:
        """The direction in the one dtype of the algebra."""
        return vector_of(self.paired)

    @property
    def square(self) -> Scalar:
        r""":math:`\|d\|_P^2 / \gamma`, twice the proximity term."""
        return dot(self.paired, self.paired) / self.gamma

    @property
    def fraction(self) -> Scalar:
        r"""How much of the slope of the gradient step the subproblem has kept.

        :math:`\langle d, s \rangle / (\gamma \langle s, P^{-1} s \rangle)` for the linear term
        :math:`s`: one where curvature is not felt, and less the more of it gamma lets through.
        """
        linear = self.plin.lift(self.plin.linear_term)
        square = self.gamma * dot(linear, linear)
        vanishes = square == 0
        kept = dot(self.vector, self.plin.linear_term) / jnp.where(vanishes, 1, square)
        return jnp.where(vanishes, 1, kept)

    def displacement(self, eta: Scalar, pull: Params | None = None) -> Params:
        r"""The way from the parameters to a trial point, in their dtypes.

        :math:`\eta d`, or with a regularizer the prox arc :math:`w - \operatorname{prox}_{\eta
        \gamma \rho}(w - \eta \gamma J^* \alpha)`, on which zeros are exact.
        """
        if self.pull is None:
            return jax.tree.map(lambda x: eta.astype(x.dtype) * x, self.d)
        pull = self.pull if pull is None else pull
        arc = Proximity.of(self.plin, self.gamma).arc(eta, pull)
        return cast_like(arc, self.d)

    def along(self, eta: Scalar) -> Scalar:
        r"""The objective at the trial point of :math:`\eta`."""
        return self.objective(self.displacement(eta))

    def with_prediction(self) -> Direction:
        """The same with ``info.predicted``; one JVP where the solver did not give it for free."""
        if self.predicts:
            return self
        curvature = self.plin.curvature(self.plin.linearization.jvp(self.vector))
        predicted = self.plin.predicted(self.paired, self.gamma, curvature)
        info = self.info._replace(predicted=predicted, jvps=self.info.jvps + 1)
        return dataclasses.replace(self, info=info, predicts=True)


def _eps(x: Scalar) -> float:
    return float(jnp.finfo(x.dtype).eps)


def descends(
    plin: PartialLinearization, solved: Subsolution, slope: Scalar, penalty: Scalar
) -> Bool[Array, ""]:
    """Whether the objective, linearized but for its regularizer, does not rise along ``d``."""
    if isinstance(plin.regularizer, Zero):
        return slope >= 0
    after = plin.regularizer.value(add_scaled(plin.params, -1, solved.d))
    # Near a minimum both sides cancel; of the regularizer, rounding is left.
    rounding = 10 * jnp.finfo(slope.dtype).eps * (jnp.abs(penalty) + jnp.abs(slope))
    return slope + penalty - after >= -rounding


def descending(
    plin: PartialLinearization, gamma: Scalar, solved: Subsolution
) -> tuple[PartialLinearization, Subsolution]:
    """The same, or without momentum and inner steps where momentum has turned ``d`` to ascent."""
    ascends = dot(vector_of(solved.d), plin.grad) <= 0
    gradient_step = lambda: scale(gamma, plin.lift(plin.grad))
    d = jax.lax.cond(ascends, gradient_step, lambda: solved.d)
    source = select(ascends, plin.grad, plin.linear_term)
    # A prediction that came for free would be that of the other direction.
    status = jnp.where(ascends & (solved.status == Status.OK), Status.INEXACT, solved.status)
    solved = solved._replace(d=d, predicted=None, status=count(status))
    return dataclasses.replace(plin, source=source), solved
