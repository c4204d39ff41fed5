r"""What a subproblem is made of: the convex model of the objective and the proximity term.

Around parameters :math:`w` with outputs :math:`f`, and with weights :math:`\omega` that sum to one
(:math:`1/m` each, if all examples count the same; in a sum of terms, to the weight of their term),
a prox-linear direction minimises

.. math:: \sum_i \omega_i\, \ell_i(f_i - J_i d) + r(d), \qquad
    r(d) = \tfrac{1}{2 \gamma} \|d\|^2 + \rho(w - d)

Gamma, the regularizer and the weights live in these files only.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PyTree

from proxlin.linearize import Linearization, Outputs, Params
from proxlin.losses import Factor, Loss, Losses, each, weighted_grad, weighted_value
from proxlin.metrics import Inverse
from proxlin.regularizers import Regularizer, Zero
from proxlin.solvers.system import Pair, Vector, add_scaled, dot, scale

Scalar = Float[Array, ""]


@dataclasses.dataclass(frozen=True)
class PartialLinearization:
    r"""The convex model of the objective: its loss, on the linearised network.

    .. math:: \mathrm{plin}(d) = \sum_i \omega_i\, \ell_i(f_i - J_i d)

    Attributes:
        linearization: the network at the parameters.
        loss: the convex loss.
        targets: the targets.
        weights: :math:`\omega`, one for each example, of sum one.
        grad: the gradient of the objective.
        params: the parameters :math:`w`, in the dtype of the algebra.
        regularizer: :math:`\rho`.
        same_examples: whether the gradient is that of these examples, and not of a larger batch
            of which these are the ones that curvature is taken from. If not, the model is
            corrected by a linear term so that its gradient is the one of the whole batch.
        source: the linear term of the subproblem: the gradient and the momentum; None for the
            gradient alone.
        inverse: :math:`P^{-1}` for a proximity term in a metric :math:`P`; None for the identity.

    For a sum of terms loss, targets and weights are tuples, as the outputs are.
    """

    linearization: Linearization
    loss: Losses
    targets: PyTree
    weights: PyTree[Float[Array, "*n"]]
    grad: Params
    params: Params
    regularizer: Regularizer
    same_examples: bool = True
    source: Params | None = None
    inverse: Inverse | None = None

    @property
    def linear_term(self) -> Params:
        """The gradient, and the momentum where there is one."""
        return self.grad if self.source is None else self.source

    def lift(self, covector: Params) -> Vector:
        r""":math:`P^{-1} y` as a vector of the space with the metric :math:`P`."""
        return covector if self.inverse is None else Pair(covector, self.inverse(covector))

    def value(self, outputs: Outputs) -> Scalar:
        r""":math:`\sum_i \omega_i\, \ell_i` at some outputs."""
        return weighted_value(self.loss, outputs, self.targets, self.weights)

    def pull(self, outputs: Outputs) -> Outputs:
        r"""The gradient of :meth:`value`, :math:`\omega \nabla \ell`."""
        return weighted_grad(self.loss, outputs, self.targets, self.weights)

    def weigh(self, x: Outputs) -> Outputs:
        r""":math:`\omega x`, example by example."""
        return jax.tree.map(lambda w, v: w[..., None] * v, self.weights, x)

    def factors(self) -> PyTree[Factor]:
        r"""The factor :math:`\sqrt{\omega} B` of the Hessian at the outputs, of each term."""
        f = self.linearization.outputs
        return each(_weighted_factor, self.loss, f, self.targets, self.weights)

    def curvature(self, change: Outputs) -> Scalar:
        r"""From :math:`J d`: :math:`\langle d, G d \rangle`, :math:`G` the Gauss-Newton matrix."""
        root = joined(self.factors()).rmv(change)
        return dot(root, root)

    def predicted(self, d: Vector, gamma: Scalar, curvature: Scalar) -> Scalar:
        r"""How much the quadratic model and the regularizer promise to fall.

        .. math:: \langle d, \nabla h \rangle - \tfrac12 \langle d, (G + I / \gamma) d \rangle
            + \rho(w) - \rho(w - d)

        with the momentum added to the gradient, and :math:`P` in the place of :math:`I`.
        """
        decrease = dot(vector_of(d), self.linear_term) - 0.5 * (curvature + dot(d, d) / gamma)
        if isinstance(self.regularizer, Zero):
            return decrease
        after = self.regularizer.value(add_scaled(self.params, -1, d))
        return decrease + self.regularizer.value(self.params) - after


def vector_of(x: Vector) -> Params:
    """The vector of a pair, or the vector itself."""
    return x.vector if isinstance(x, Pair) else x


def joined(factors: PyTree[Factor]) -> Factor:
    """The factors of all terms as one."""
    if isinstance(factors, Factor):
        return factors
    preimages = tuple(b.preimage for b in factors)
    return Factor(
        mv=lambda u: tuple(b.mv(x) for b, x in zip(factors, u, strict=True)),
        rmv=lambda v: tuple(b.rmv(x) for b, x in zip(factors, v, strict=True)),
        preimage=None if any(v is None for v in preimages) else preimages,
    )


def _weighted_factor(
    loss: Loss, outputs: Outputs, targets: PyTree, weights: Float[Array, "*n"]
) -> Factor:
    r"""The factor :math:`\sqrt{\omega} B` of the Hessian of one weighted loss."""
    mv, rmv, preimage = loss.hessian_factor(outputs, targets)
    root = jnp.sqrt(weights)[..., None]
    return Factor(
        mv=lambda u: root * mv(u),
        rmv=lambda v: rmv(root * v),
        preimage=None if preimage is None else root * preimage,
    )


@dataclasses.dataclass(frozen=True)
class Proximity:
    r"""The strongly convex :math:`r(d) = \tfrac{1}{2 \gamma} \|d\|^2 + \rho(w - d)`.

    Its conjugate is smooth, with :math:`\nabla r^*(u) = w - \operatorname{prox}_{\gamma \rho}(w -
    \gamma u)`.

    Attributes:
        gamma: the regularisation.
        regularizer: :math:`\rho`.
        params: :math:`w`.
    """

    gamma: Scalar
    regularizer: Regularizer
    params: Params

    @classmethod
    def of(cls, plin: PartialLinearization, gamma: Scalar) -> Proximity:
        """The proximity term at the parameters of a model."""
        return cls(gamma, plin.regularizer, plin.params)

    @property
    def strength(self) -> Scalar:
        r""":math:`\mu = 1 / \gamma + \lambda`, with which :math:`r` is strongly convex."""
        return 1 / self.gamma + self.regularizer.modulus

    def value(self, d: Params) -> Scalar:
        r""":math:`r(d)`."""
        square = dot(d, d) / (2 * self.gamma)
        if isinstance(self.regularizer, Zero):
            return square
        return square + self.regularizer.value(add_scaled(self.params, -1, d))

    def conjugate(self, u: Params) -> Scalar:
        r""":math:`r^*(u) = \sup_d \langle u, d \rangle - r(d)`."""
        d = self.conjugate_grad(u)
        return dot(u, d) - self.value(d)

    def conjugate_grad(self, u: Params) -> Params:
        r""":math:`\nabla r^*(u)`, the direction that belongs to :math:`u = J^* \alpha`."""
        return self.arc(jnp.ones_like(self.gamma), u)

    def arc(self, eta: Scalar, u: Params) -> Params:
        r""":math:`w - \operatorname{prox}_{\eta \gamma \rho}(w - \eta \gamma u)`."""
        step = eta * self.gamma
        if isinstance(self.regularizer, Zero):
            return scale(step, u)
        point = self.regularizer.prox(add_scaled(self.params, -step, u), step)
        return add_scaled(self.params, -1, point)

    def prox(self, x: Params, stepsize: Scalar) -> Params:
        r""":math:`\operatorname{argmin}_d r(d) + \tfrac{1}{2 t} \|d - x\|^2`."""
        shrink = self.gamma / (self.gamma + stepsize)
        shrunk = scale(shrink, x)
        if isinstance(self.regularizer, Zero):
            return shrunk
        point = self.regularizer.prox(add_scaled(self.params, -1, shrunk), shrink * stepsize)
        return add_scaled(self.params, -1, point)


class Subsolution(NamedTuple):
    r"""An approximate solution of a subproblem.

    Attributes:
        d: the direction; with a metric :math:`P` the pair of :math:`P d` and :math:`d`.
        pull: :math:`J^* \alpha`, of which the direction is :math:`\nabla r^*`; None where there is
            no regularizer and the direction is a multiple of it.
        predicted: the decrease the model promises, where it came for free, else None.
        primal: the value of the convex subproblem at :math:`d`, NaN for the quadratic ones.
        dual: the value of its dual, a lower bound of the minimum; likewise.
        steps: inner steps.
        residual: the relative residual before the last one.
        jvps: how many JVPs were spent.
        vjps: how many VJPs were spent.
        status: a :class:`proxlin.Status`.
    """

    d: Vector
    pull: Params | None
    predicted: Scalar | None
    primal: Scalar
    dual: Scalar
    steps: Int[Array, ""]
    residual: Scalar
    jvps: Int[Array, ""]
    vjps: Int[Array, ""]
    status: Int[Array, ""]


Subproblem = Callable[[PartialLinearization, Scalar, Any], Subsolution]
