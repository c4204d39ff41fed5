r"""A direction and its report."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from proxlin.algebra import Params, Scalar, Vector, add_scaled, cast, cast_like, dot, plain
from proxlin.objective import TermOutputs
from proxlin.proximity import Proximity, ProximityState
from proxlin.solvers import Cost
from proxlin.subproblems import ConvexModel, Subsolution


class Info(NamedTuple):
    r"""The report of a direction.

    Attributes:
        grad: the gradient :math:`\nabla h` of the mini-batch objective, at no extra cost.
        slope: :math:`\langle d, \nabla h \rangle`, positive for a descent direction :math:`-d`.
        predicted: the decrease that the subproblem promises: :math:`(h + \rho)(w)` minus the value
            of its model at :math:`d`; NaN where it costs a JVP and nothing asked for it.
        penalty: :math:`\rho(w)`, the regularizer at the parameters, and weight decay.
        primal: the value of the convex subproblem at :math:`d`; NaN for the quadratic ones.
        dual: the value of its dual, a lower bound of the minimum; NaN for the quadratic ones.
        gap: the difference of the two, which bounds the error of the subproblem's solution.
        aux: the auxiliary output of the model.
        cost: inner steps, the residual before the last one, Jacobian products (including the VJP
            of the gradient) and a :class:`proxlin.Status`; ``info.jvps`` is short for
            ``info.cost.jvps``, and so on.
    """

    grad: Params
    slope: Scalar
    predicted: Scalar
    penalty: Scalar
    primal: Scalar
    dual: Scalar
    gap: Scalar
    aux: Any
    cost: Cost

    @property
    def steps(self) -> Int[Array, "..."]:
        """Inner steps."""
        return self.cost.steps

    @property
    def residual(self) -> Float[Array, "..."]:
        """The last known relative residual."""
        return self.cost.residual

    @property
    def jvps(self) -> Int[Array, "..."]:
        """Jacobian-vector products."""
        return self.cost.jvps

    @property
    def vjps(self) -> Int[Array, "..."]:
        """Vector-Jacobian products."""
        return self.cost.vjps

    @property
    def status(self) -> Int[Array, "..."]:
        """A :class:`proxlin.Status`."""
        return self.cost.status


@dataclasses.dataclass(frozen=True)
class Direction:
    r"""A direction with everything that a step rule may ask about it; lives inside one trace.

    Attributes:
        value: the objective :math:`h` at the parameters.
        slope: :math:`\langle d, \nabla h \rangle`.
        solved: the solution of the subproblem, usable or not; its cost is that of the whole
            direction.
        model: the convex model it comes from.
        proximity: the proximity term, with the gamma that was used.
        params: the parameters.
        aux: the auxiliary output of the model.
        sound: whether value and gradient are finite and no value was bad. If so, and the direction
            is not usable, the subproblem is to blame, and a smaller gamma may help.
        state: the state of the proximity term, not counting the step that is yet to be taken.
        objective: displacement -> :math:`(h + \rho)(w - \text{displacement})`, on the same batch
            and with the same ``args``; auxiliary outputs are discarded.
        outputs_at: displacement -> :math:`f(w - \text{displacement})`, on the examples that
            curvature is taken from.
    """

    value: Scalar
    slope: Scalar
    solved: Subsolution
    model: ConvexModel
    proximity: Proximity
    params: Params
    aux: Any
    sound: Bool[Array, ""]
    state: ProximityState
    objective: Callable[[Params], Scalar]
    outputs_at: Callable[[Params], TermOutputs]

    @property
    def d(self) -> Params:
        """The direction in the dtypes of the parameters; zero if it is not usable."""
        own = lambda x: jnp.where(self.usable, x, jnp.zeros_like(x))
        return cast_like(jax.tree.map(own, plain(self.solved.d)), self.params)

    @property
    def cost(self) -> Cost:
        """The cost so far."""
        return self.solved.cost

    @property
    def usable(self) -> Bool[Array, ""]:
        """Whether it is finite and descends, and no value was bad."""
        return self.cost.usable

    @property
    def predicted(self) -> Scalar:
        """The decrease that the subproblem promises; NaN before :meth:`with_prediction`."""
        return self._or_nan(self.solved.predicted)

    @property
    def info(self) -> Info:
        """The report."""
        primal, dual = self._or_nan(self.solved.primal), self._or_nan(self.solved.dual)
        return Info(
            grad=cast_like(self.model.grad, self.params),
            slope=self.slope,
            predicted=self.predicted,
            penalty=self.penalty,
            primal=primal,
            dual=dual,
            gap=primal - dual,
            aux=self.aux,
            cost=self.cost,
        )

    @property
    def gamma(self) -> Scalar:
        """The regularization it was computed with."""
        return self.proximity.gamma

    @property
    def total(self) -> Scalar:
        r""":math:`h + \rho` at the parameters."""
        return self.value + self.penalty

    @property
    def penalty(self) -> Scalar:
        """The regularizer and weight decay at the parameters."""
        penalty = self.proximity.penalty.astype(self.value.dtype)
        if self.model.objective.decay is None:
            return penalty
        return penalty + self.model.objective.decay.value(self.proximity.params)

    @property
    def rounding(self) -> Scalar:
        r"""How much rounding may change the objective here.

        .. math:: 4\, \mathrm{eps} \Bigl(|h + \rho| + \sum_i \omega_i \langle |\nabla \ell_i|, |f_i|
            \rangle \Bigr)

        The second term is the effect of rounding the outputs, which is much larger than that of
        rounding the losses if outputs are close to their targets.
        """
        outputs = self.model.sensitivity(self.model.outputs)
        return self._units(outputs) + self._units(jnp.abs(self.total))

    def rounding_of_params(self) -> Scalar:
        r"""The same for the rounding of parameters; one JVP.

        .. math:: 4\, \mathrm{eps} \sum_i \omega_i \langle |\nabla \ell_i|, |J_i |w|| \rangle

        It is much larger if large numbers cancel inside the network.
        """
        sizes = jax.tree.map(jnp.abs, self.proximity.params)
        return self._units(self.model.sensitivity(self.model.jvp(sizes)))

    def _or_nan(self, x: Scalar | None) -> Scalar:
        """Inside, None is what is not known; reports have NaN."""
        return jnp.full_like(self.slope, jnp.nan) if x is None else x

    def _units(self, size: Scalar) -> Scalar:
        """Four units of rounding of a number, in the precision of the objective."""
        return 4 * float(jnp.finfo(self.value.dtype).eps) * size.astype(self.value.dtype)

    @property
    def square(self) -> Scalar:
        r""":math:`\|d\|_P^2 / \gamma`, twice the proximity term."""
        return self.proximity.square(self.solved.d)

    @property
    def kept_slope(self) -> Scalar:
        """The slope of the direction, relative to that of the gradient step."""
        return self.proximity.kept_slope(self.solved.d, self.model.grad)

    def displacement(self, eta: Scalar, dual_image: Params | None = None) -> Params:
        r"""What to subtract from the parameters for a trial point, in their dtypes.

        :math:`\eta d`, or with a regularizer the prox arc :math:`w - \operatorname{prox}_{\eta
        \gamma \rho}(w - \eta \gamma J^* \alpha)`, on which zeros are exact.

        Args:
            eta: the stepsize.
            dual_image: :math:`J^* \alpha`; by default that of the direction.
        """
        own = self.solved.dual_image
        if own is None:
            return jax.tree.map(lambda x: eta.astype(x.dtype) * x, self.d)
        arc = self.proximity.arc(eta, own if dual_image is None else dual_image)
        return cast_like(arc, self.params)

    def promised(self, eta: Scalar, displacement: Params) -> Scalar:
        """The decrease of the objective, linearized except for its regularizer."""
        if self.solved.dual_image is None:
            return eta * self.slope
        wide = cast(displacement, eta.dtype)
        return dot(self.model.grad, wide) + self.proximity.penalty_decrease(wide)

    def change(self) -> tuple[Direction, tuple[Array, ...]]:
        r"""The direction and :math:`J d`; one JVP unless it is known already."""
        if self.solved.change is not None:
            return self, self.solved.change
        change = self.model.jvp(plain(self.solved.d))
        solved = self.solved._replace(change=change, cost=self.cost.plus(jvps=1))
        return dataclasses.replace(self, solved=solved), change

    def _root(self) -> tuple[Direction, TermOutputs]:
        r"""The direction and :math:`B^\top J d`; one JVP unless one of the two is known."""
        if self.solved.root is not None:
            return self, self.solved.root
        spent, change = self.change()
        return spent, self.model.factors().rmv(change)

    def with_prediction(self) -> Direction:
        """The same with ``predicted``; one JVP unless the solver gave it for free."""
        if self.solved.predicted is not None:
            return self
        spent, root = self._root()
        curvature = dot(root, root) + self.model.decay_along(plain(self.solved.d))
        predicted = self.proximity.predicted(self.solved.d, self.model.grad, curvature)
        return dataclasses.replace(spent, solved=spent.solved._replace(predicted=predicted))

    def acceleration(self) -> tuple[Direction, Vector]:
        r"""The geodesic acceleration, a correction :math:`e` of second order to the direction.

        .. math:: (P / \gamma + J^\top H J)\, e = J^\top H \bigl(f(w - d) - f(w) + J d\bigr)

        The bracket is half the second derivative of the outputs along the direction, up to third
        order. It costs a forward pass, and a JVP where the product with :math:`d` is not known.

        Raises:
            TypeError: if the subproblem has no linear system.
        """
        if self.solved.correction is None:
            raise TypeError(
                "acceleration needs a linear system: use subproblem=dual_quadratic or "
                "primal_quadratic, without a regularizer"
            )
        found, root = self._root()
        bent = add_scaled(self.outputs_at(self.d), -1, self.model.outputs)
        second = add_scaled(self.model.factors().rmv(bent), 1, root)
        return found, self.solved.correction(second)

    def next_state(self, eta: Scalar, taken: Bool[Array, ""]) -> ProximityState:
        r"""The state of the proximity term after a step :math:`\eta d`, if it is taken.

        If not, and the batch is not to blame, momentum may be, and the next direction does without.
        """
        return self.state.after(self.solved.d, eta, taken, drop=self.sound & ~taken)

    def spend(self, *, jvps: int | Array = 0) -> Direction:
        """The same, with more products in its cost."""
        solved = self.solved._replace(cost=self.cost.plus(jvps=jvps))
        return dataclasses.replace(self, solved=solved)
