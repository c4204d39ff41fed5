r"""The convex model of the objective: its losses of the linearized networks.

Around parameters :math:`w` with outputs :math:`f`, and with weights :math:`\omega` that sum to one
(:math:`1/m` each, if all examples count the same; in a sum of terms, to the weight of their term),
a prox-linear direction minimizes

.. math:: \sum_i \omega_i\, \ell_i(f_i - J_i d) + r(d)

with the proximity term :math:`r` of :mod:`proxlin.proximity`.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from proxlin.algebra import Params, Scalar, add_scaled, algebra_dtype, dot
from proxlin.batch import Batch
from proxlin.linearize import Linearization
from proxlin.losses import Factor
from proxlin.objective import Objective, TermOutputs
from proxlin.solvers import Rows, TermRows, matrix_of_terms
from proxlin.subproblems.rows import column_squares, rows_of, rows_of_products


@dataclasses.dataclass(frozen=True)
class Factors:
    r"""The factor :math:`\sqrt{\omega} B` of the Hessian of all terms, on their outputs.

    Attributes:
        terms: the factor of each term.
    """

    terms: tuple[Factor, ...]

    def mv(self, u: TermOutputs) -> TermOutputs:
        r""":math:`\sqrt{\omega} B u`."""
        return tuple(b.mv(x) for b, x in zip(self.terms, u, strict=True))

    def rmv(self, v: TermOutputs) -> TermOutputs:
        r""":math:`(\sqrt{\omega} B)^\top v`."""
        return tuple(b.rmv(x) for b, x in zip(self.terms, v, strict=True))

    @property
    def preimage(self) -> TermOutputs | None:
        r"""Some :math:`v` with :math:`\sqrt{\omega} B v = \omega g`, if all terms know one."""
        known = tuple(b.preimage for b in self.terms if b.preimage is not None)
        return known if len(known) == len(self.terms) else None


@dataclasses.dataclass(frozen=True)
class ConvexModel:
    r"""The convex model of the objective around the parameters, built once for each direction.

    .. math:: d \mapsto \sum_i \omega_i\, \ell_i(f_i - J_i d)

    Attributes:
        objective: the objective.
        batches: the examples of each term that curvature is taken from.
        linearizations: the network of each term on them.
        grad: the gradient of the objective, on the whole batch.
        params: the parameters.
        whole: whether these examples are the whole objective: the whole batch, and no decay. If
            not, the model is corrected by a linear term so that its gradient is that of the whole.
    """

    objective: Objective
    batches: tuple[Batch, ...]
    linearizations: tuple[Linearization, ...]
    grad: Params
    params: Params
    whole: bool = True

    @property
    def outputs(self) -> TermOutputs:
        """The outputs at the parameters."""
        return tuple(lin.outputs for lin in self.linearizations)

    @property
    def rounding(self) -> float:
        """The unit roundoff of the narrowest dtype among parameters and outputs."""
        return max(lin.rounding for lin in self.linearizations)

    @property
    def nonnegative(self) -> bool:
        """Whether no loss has values below zero."""
        return all(loss.nonnegative for loss in self.objective.losses)

    def jvp(self, u: Params) -> TermOutputs:
        r""":math:`J u`."""
        return tuple(lin.jvp(u) for lin in self.linearizations)

    def vjp(self, v: TermOutputs) -> Params:
        r""":math:`J^* v`, summed over the terms."""
        return vjp(self.linearizations, v)

    def value(self, outputs: TermOutputs) -> Scalar:
        r""":math:`\sum_i \omega_i\, \ell_i(f_i)` at some outputs."""
        return self.objective.value(outputs, self.batches)

    def output_grad(self, outputs: TermOutputs) -> TermOutputs:
        r"""The gradient of :meth:`value`, :math:`\omega \nabla \ell`."""
        return self.objective.output_grad(outputs, self.batches)

    def value_along(self, d: Params, change: TermOutputs) -> Scalar:
        r"""The model at :math:`d`, given the ``change`` :math:`J d`."""
        value = self.value(add_scaled(self.outputs, -1, change))
        if self.whole:
            return value
        own = dot(self.output_grad(self.outputs), change)
        return value + own - dot(self.grad, d) + 0.5 * self.decay_along(d)

    def slope_along(self, d: Params, change: TermOutputs) -> Callable[[Scalar], Scalar]:
        r"""The derivative of the model at :math:`\eta d` in :math:`\eta`, given :math:`J d`."""

        def own(eta: Scalar) -> Scalar:
            return -dot(change, self.output_grad(add_scaled(self.outputs, -eta, change)))

        if self.whole:
            return own
        correction = dot(d, self.grad) - dot(change, self.output_grad(self.outputs))
        decay = self.decay_along(d)
        return lambda eta: own(eta) - correction + eta * decay

    def weigh(self, x: TermOutputs) -> TermOutputs:
        r""":math:`\omega x`, example by example."""
        return tuple(batch.weights[..., None] * v for batch, v in zip(self.batches, x, strict=True))

    def factors(self) -> Factors:
        r"""The factor :math:`\sqrt{\omega} B` of the Hessian at the outputs, the same each time."""
        return self._factors

    @functools.cached_property
    def _factors(self) -> Factors:
        terms = zip(self.objective.losses, self.outputs, self.batches, strict=True)
        return Factors(
            tuple(
                loss.hessian_factor(f, batch.targets).weighted(batch.weights)
                for loss, f, batch in terms
            )
        )

    @functools.cached_property
    def rows(self) -> Rows:
        r"""Rows of :math:`\sqrt{\omega} B^\top J`, example by example, for direct solvers."""
        pairs = zip(self.linearizations, self.factors().terms, strict=True)
        terms = tuple(rows_of(lin, factor) for lin, factor in pairs)
        # Products over the longer side run along contiguous memory: half the time of the others.
        tall = sum(term.examples * term.per_example for term in terms) >= self._size
        return Rows(
            terms=terms,
            of_x=False,
            tolerance=self.rounding**0.5,
            dense=functools.cache(lambda: matrix_of_terms(terms, transposed=tall)),
        )

    @functools.cached_property
    def whole_rows(self) -> Rows:
        r"""The same by products with the whole batch, for models with examples that interact."""
        factors = self.factors()
        dense = functools.cache(
            lambda: rows_of_products(
                lambda d: factors.rmv(self.jvp(d)),
                lambda v: self.vjp(factors.mv(v)),
                self.grad,
                self.outputs,
            )
        )
        rows = TermRows(
            block=lambda numbers: dense()[numbers],
            examples=sum(f.size for f in self.outputs),
            per_example=1,
        )
        return Rows(terms=(rows,), of_x=False, tolerance=self.rounding**0.5, dense=dense)

    def diagonal(self, independent: bool, max_elements: int) -> Params:
        r"""The diagonal of the Gauss-Newton matrix :math:`J^\top B B^\top J`, from its rows."""
        rows = self.rows if independent else self.whole_rows
        return ravel_pytree(self.grad)[1](column_squares(rows, self._size, max_elements))

    @property
    def _size(self) -> int:
        """The number of parameters."""
        return sum(leaf.size for leaf in jax.tree.leaves(self.grad))

    def curvature(self, d: Params, change: TermOutputs) -> Scalar:
        r""":math:`\langle d, G d \rangle` for the Gauss-Newton matrix, given :math:`J d`."""
        root = self.factors().rmv(change)
        return dot(root, root) + self.decay_along(d)

    def decay_along(self, d: Params) -> Scalar:
        """The curvature of weight decay along d."""
        if self.objective.decay is None:
            return jnp.zeros((), algebra_dtype(self.grad))
        return dot(d, self.objective.decay.apply(d, self.params))

    def sensitivity(self, changes: TermOutputs) -> Scalar:
        r"""How much changes of the outputs by up to these amounts can change the objective.

        .. math:: \sum_i \omega_i \langle |\nabla \ell_i|, |v_i| \rangle
        """
        sizes = lambda tree: jax.tree.map(jnp.abs, tree)
        return dot(sizes(self.output_grad(self.outputs)), sizes(changes))


def vjp(linearizations: tuple[Linearization, ...], v: TermOutputs) -> Params:
    r""":math:`J^* v`, summed over the terms."""
    parts = [lin.vjp(own) for lin, own in zip(linearizations, v, strict=True)]
    return functools.reduce(lambda a, b: add_scaled(a, 1, b), parts)
