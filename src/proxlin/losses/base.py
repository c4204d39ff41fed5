r"""What a convex loss offers, and how each part follows from its value alone."""

from __future__ import annotations

import abc
from collections.abc import Callable
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Integer, PyTree, Real

Outputs = Float[Array, "*n k"]
PerExample = Float[Array, "*n"]
# Outputs, or their shape and dtype before the network has run.
OutputsLike = Float[Array | jax.ShapeDtypeStruct, "*n k"]
# Targets keep the dtype they have, and a loss may be asked outside of JAX.
Labels = Integer[Array | np.ndarray, "*n"] | Bool[Array | np.ndarray, "*n"]
TargetRows = Real[Array | np.ndarray, "*n k"] | Bool[Array | np.ndarray, "*n k"]

_NEWTON_STEPS = 100
_NEWTON_HALVINGS = 20


class Factor(NamedTuple):
    r"""A factor of the Hessian of a loss, :math:`H = B B^\top`, example by example.

    Attributes:
        mv: :math:`u \mapsto B u`.
        rmv: :math:`v \mapsto B^\top v`.
        preimage: some :math:`v` with :math:`B v = \nabla \ell(f)` where one is known without
            division by small numbers, else None.
    """

    mv: Callable[[Outputs], Outputs]
    rmv: Callable[[Outputs], Outputs]
    preimage: Outputs | None = None

    def weighted(self, weights: PerExample) -> Factor:
        r"""The factor :math:`\sqrt{\omega} B` of the weighted Hessian :math:`\omega H`."""
        root = jnp.sqrt(weights)[..., None]
        return Factor(
            mv=lambda u: root * self.mv(u),
            rmv=lambda v: self.rmv(root * v),
            preimage=None if self.preimage is None else root * self.preimage,
        )


class Loss(abc.ABC):
    r"""A convex loss :math:`\ell(f, y)` of the outputs :math:`f` of one example and its target.

    Outputs have shape ``(*n, k)``: all axes but the last are examples. A subclass is a frozen
    dataclass without arrays and gives at least :meth:`value`; all other methods then follow by
    automatic differentiation and linear algebra in :math:`R^{k \times k}`, and closed forms
    override them.

    Attributes:
        differentiable: whether :meth:`grad` is a gradient and not only a subgradient.
        twice_differentiable: whether there is a Hessian factor.
        quadratic: whether the loss is its own second-order expansion.
        nonnegative: whether no value is below zero.
    """

    differentiable: ClassVar[bool] = True
    twice_differentiable: ClassVar[bool] = True
    quadratic: ClassVar[bool] = False
    nonnegative: ClassVar[bool] = False

    @property
    def has_conjugate(self) -> bool:
        """Whether :meth:`conjugate` is implemented."""
        return type(self).conjugate is not Loss.conjugate

    @abc.abstractmethod
    def value(self, outputs: Outputs, targets: PyTree) -> PerExample:
        r""":math:`\ell(f_i, y_i)` for each example."""

    def check(self, outputs: OutputsLike, targets: PyTree) -> None:
        """Raises ValueError or TypeError unless shapes and dtypes of the targets fit."""
        for leaf in jax.tree.leaves(targets):
            examples = outputs.shape[:-1]
            if jnp.shape(leaf)[: len(examples)] != examples:
                raise ValueError(
                    f"targets of shape {jnp.shape(leaf)} do not fit outputs of shape "
                    f"{outputs.shape}: their first axes must be {examples}"
                )

    def valid(self, outputs: OutputsLike, targets: PyTree) -> Bool[Array, "*n"]:
        """For each example, whether the values of its target are allowed.

        Only the shape and dtype of the outputs may be used: this runs before the network does.
        """
        return jnp.ones(outputs.shape[:-1], bool)

    def allowed(self, outputs: OutputsLike) -> str:
        """The values of targets that :meth:`valid` allows, in words."""
        return "anything"

    def grad(self, outputs: Outputs, targets: PyTree) -> Outputs:
        r""":math:`g = \nabla \ell(f)`, with respect to the outputs."""
        return jax.grad(lambda f: jnp.sum(self.value(f, targets)))(outputs)

    def hvp(self, outputs: Outputs, targets: PyTree, v: Outputs) -> Outputs:
        r""":math:`H v = \nabla^2 \ell(f) v`."""
        return jax.jvp(lambda f: self.grad(f, targets), (outputs,), (v,))[1]

    def hessian(self, outputs: Outputs, targets: PyTree) -> Float[Array, "*n k k"]:
        r""":math:`H = \nabla^2 \ell(f)` as a matrix for each example."""
        k = outputs.shape[-1]
        basis = jnp.eye(k, dtype=outputs.dtype)
        columns = jax.vmap(
            lambda e: self.hvp(outputs, targets, jnp.broadcast_to(e, outputs.shape)), out_axes=-1
        )
        return columns(basis)

    def hessian_factor(self, outputs: Outputs, targets: PyTree) -> Factor:
        r""":math:`B` with :math:`H = B B^\top`; here :math:`B = U \sqrt{\max(\lambda, 0)}`."""
        eigenvalues, u = jnp.linalg.eigh(self.hessian(outputs, targets))
        b = u * jnp.sqrt(jnp.maximum(eigenvalues, 0))[..., None, :]
        return Factor(
            mv=lambda x: jnp.einsum("...ij,...j->...i", b, x),
            rmv=lambda x: jnp.einsum("...ji,...j->...i", b, x),
        )

    def shifted_solve(
        self, outputs: Outputs, targets: PyTree, shift: Float[Array, "*n 1"], rhs: Outputs
    ) -> Outputs:
        r""":math:`(H + \text{shift} I)^{-1} \text{rhs}`: Newton steps of proximity operators."""
        hessian = self.hessian(outputs, targets)
        identity = jnp.broadcast_to(jnp.eye(outputs.shape[-1], dtype=rhs.dtype), hessian.shape)
        shifted = hessian + shift[..., None] * identity
        return jnp.linalg.solve(shifted, rhs[..., None])[..., 0]

    def conjugate(self, duals: Outputs, targets: PyTree) -> PerExample:
        r""":math:`\ell^*(\alpha) = \sup_f \langle f, \alpha \rangle - \ell(f)`, inf off its domain.

        Raises:
            TypeError: if the loss has none.
        """
        raise TypeError(
            f"{self!r} has no conjugate; the quadratic subproblems do not need one. "
            "Pass one to FromFunction(fn, conjugate=...) or override Loss.conjugate"
        )

    def prox_conjugate(
        self, z: Outputs, targets: PyTree, stepsize: float | Float[Array, "..."]
    ) -> Outputs:
        r"""Proximity operator of the conjugate.

        .. math:: \operatorname{argmin}_\alpha
            \ell^*(\alpha) + \tfrac{1}{2 \sigma} \|\alpha - z\|^2 = \nabla \ell(f)
            \quad\text{with}\quad \nabla \ell(f) + \sigma f = z

        By Moreau's identity :math:`f` minimizes :math:`\ell(f) - \langle f, z \rangle +
        \tfrac{\sigma}{2} \|f\|^2`, a smooth and strongly convex function of :math:`k` variables,
        which damped Newton steps minimize without knowing :math:`\ell^*`.

        Args:
            z: the point, of the shape of outputs.
            targets: the targets.
            stepsize: :math:`\sigma > 0`, one number or one for each example.

        Returns:
            The minimizer; it lies in the domain of the conjugate.
        """
        # f has the size of z / sigma: with a smaller sigma, its rounding would dominate. Raising
        # sigma to this changes the result by no more than a multiple of it.
        largest = jnp.max(jnp.abs(z), axis=-1, keepdims=True)
        least = 8 * jnp.finfo(z.dtype).eps * jnp.maximum(largest, 1)
        sigma = jnp.maximum(per_example(stepsize, z), least)

        def objective(f: Outputs) -> PerExample:
            return self.value(f, targets) + jnp.sum(f * (0.5 * sigma * f - z), axis=-1)

        def residual(f: Outputs) -> Outputs:
            return z - sigma * f - self.grad(f, targets)

        def newton(f: Outputs) -> Outputs:
            return self.shifted_solve(f, targets, sigma, residual(f))

        f = damped_newton(objective, residual, newton, z)
        # One more Newton step, taken in the dual: where sigma is small, f is large and coarsely
        # rounded, and the search stops at sqrt(eps), where values are equal up to rounding.
        return self.grad(f, targets) + self.hvp(f, targets, newton(f))


def per_example(x: float | Float[Array, "..."], outputs: Outputs) -> Float[Array, "..."]:
    """A number, or one for each example, ready to multiply outputs."""
    x = jnp.asarray(x, outputs.dtype)
    return jnp.broadcast_to(x, outputs.shape[:-1])[..., None]


def damped_newton(
    objective: Callable[[Outputs], PerExample],
    residual: Callable[[Outputs], Outputs],
    newton: Callable[[Outputs], Outputs],
    like: Outputs,
) -> Outputs:
    """Minimizes one smooth, strongly convex function for each example, starting at zero.

    Args:
        objective: the value for each example.
        residual: its negative gradient.
        newton: its Newton step.
        like: an array of the shape and dtype of the minimizer.

    Returns:
        The minimizers. Their values are exact to rounding, they themselves to about its root.
    """
    eps = jnp.finfo(like.dtype).eps
    halvings = jnp.arange(_NEWTON_HALVINGS, dtype=like.dtype)
    fractions = jnp.expand_dims(0.5**halvings, range(1, like.ndim))

    def body(state: tuple[Array, Array, Array, Array]) -> tuple[Array, Array, Array, Array]:
        f, value, _, count = state
        step = newton(f)
        slope = jnp.sum(step * residual(f), axis=-1)
        trials = jax.vmap(lambda t: objective(f + t[..., None] * step))(fractions)
        wanted = (value + 4 * eps * jnp.abs(value))[None] - 0.1 * fractions * slope[None]
        t = 0.5 ** jnp.argmax(trials <= wanted, axis=0).astype(like.dtype)
        active = jnp.any(trials <= wanted, axis=0) & (slope > eps * eps * jnp.abs(value))
        moved = jnp.where(active[..., None], f + t[..., None] * step, f)
        return moved, objective(moved), active & jnp.any(moved != f, axis=-1), count + 1

    start = jnp.zeros_like(like)
    state = (start, objective(start), jnp.ones(like.shape[:-1], bool), jnp.asarray(0))
    return jax.lax.while_loop(lambda s: jnp.any(s[2]) & (s[3] < _NEWTON_STEPS), body, state)[0]
