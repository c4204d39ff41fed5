r"""What an objective is made of: one model with its loss, or a weighted sum of several.

A sum has a tuple wherever one term has an array: inputs, targets, weights, outputs, and all
vectors in output space. The subproblems and solvers work on such pytrees.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import optax
from jaxtyping import PyTree

from proxlin.batch import Batch, check_inputs, make_batch
from proxlin.linearize import (
    Linearization,
    Model,
    Outputs,
    Params,
    algebra_dtype,
    check_outputs,
    evaluate,
    linearize,
)
from proxlin.losses import Loss

# A number of examples, or a function that takes it from the size of the batch.
Size: TypeAlias = int | Callable[[int], int]


@dataclasses.dataclass(frozen=True)
class Term:
    r"""A model and its loss, with a weight: :math:`\lambda\, \frac1m \sum_i \ell_i(f_i(w))`.

    Attributes:
        model: ``model(params, inputs, *args) -> outputs`` of shape ``(m, ..., k)``.
        loss: a convex loss.
        weight: :math:`\lambda`, a positive number.

    Raises:
        TypeError, ValueError: for anything else.
    """

    model: Model
    loss: Loss
    weight: float = 1.0

    def __post_init__(self) -> None:
        if not callable(self.model):
            raise TypeError(f"model must be a function model(params, inputs), not {self.model!r}")
        _loss(self.loss)
        if not isinstance(self.weight, int | float) or not 0 < self.weight < math.inf:
            raise ValueError(
                f"Term(weight={self.weight!r}): give a positive number, and leave out terms of "
                "weight zero"
            )

    def batch(
        self,
        params: Params,
        inputs: PyTree,
        targets: PyTree,
        args: tuple[Any, ...],
        weights: Any,
        *,
        has_aux: bool,
        per_example: bool,
    ) -> Batch:
        """The batch, checked before any work is done; its weights sum to the one of the term."""
        per_example |= weights is not None
        check_inputs(inputs, example_axis=per_example)
        outputs = jax.eval_shape(lambda w, x: self.model(w, x, *args), params, inputs)
        if has_aux:
            if not isinstance(outputs, tuple) or len(outputs) != 2:
                raise TypeError(
                    f"has_aux=True: the model must return (outputs, aux), not {outputs}"
                )
            outputs = outputs[0]
        check_outputs(outputs)
        examples = jnp.shape(jax.tree.leaves(inputs)[0])[0] if per_example else outputs.shape[0]
        if examples != outputs.shape[0]:
            raise ValueError(
                f"inputs of {examples} examples, outputs of {outputs.shape[0]}: mismatched batch "
                "sizes; weights, curvature_size and chunk_size need outputs for each example"
            )
        outputs = jax.ShapeDtypeStruct(outputs.shape, algebra_dtype(params, outputs))
        return self._weighted(make_batch(self.loss, outputs, inputs, targets, weights))

    def some(self, batch: Batch, size: Size) -> Batch:
        """That many examples of a batch, spread over it; the batch itself if it has no more."""
        m = batch.weights.shape[0]
        size = size(m) if callable(size) else size
        if not 1 <= size <= m:
            raise ValueError(
                f"curvature_size={size} for a batch of {m} examples: give at least one, and at "
                "most as many as the batch has"
            )
        return batch if size == m else self._weighted(batch.part(size))

    def linearize(
        self,
        params: Params,
        inputs: PyTree,
        args: tuple[Any, ...],
        *,
        has_aux: bool,
        chunk_size: int | None,
    ) -> Linearization:
        """The network at the parameters."""
        return linearize(self.model, params, inputs, *args, has_aux=has_aux, chunk_size=chunk_size)

    def evaluate(
        self,
        params: Params,
        inputs: PyTree,
        args: tuple[Any, ...],
        *,
        has_aux: bool,
        chunk_size: int | None,
    ) -> Outputs:
        """Its outputs alone."""
        return evaluate(self.model, params, inputs, *args, has_aux=has_aux, chunk_size=chunk_size)

    def _weighted(self, batch: Batch) -> Batch:
        return batch if self.weight == 1 else batch._replace(weights=self.weight * batch.weights)


@dataclasses.dataclass(frozen=True, init=False)
class Sum:
    r"""A sum of terms, in the place of model and loss.

    .. math:: h(w) = \sum_t \lambda_t\, \frac1{m_t} \sum_{i=1}^{m_t} \ell_{t,i}(f_{t,i}(w))

    such as the interior, the boundary and the data of a physics-informed network, or several
    tasks. One subproblem has them all: the models are linearised at the same parameters, and
    each keeps its own loss. ``Sum(Term(model, loss))`` is the objective of ``model, loss``.

    Inputs, targets and, where they are given, the weights of examples are tuples with one entry
    for each term, and so is what models return beside their outputs. ``args`` go to every model.
    A Jacobian product is one with all terms.

    Args:
        *terms: the terms, one or more.

    Raises:
        TypeError, ValueError: for anything that is not a term, or no term at all.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from proxlin import Squared, Sum, Term, value_and_direction
        >>> u = lambda w, x: x @ w
        >>> slope = lambda w, x: jax.vmap(jax.grad(lambda x: u(w, x)[0]))(x)
        >>> objective = Sum(Term(slope, Squared()), Term(u, Squared(), weight=10.0))
        >>> fn = value_and_direction(objective)
        >>> w, inputs = jnp.zeros((1, 1)), (jnp.ones((5, 1)), jnp.zeros((1, 1)))
        >>> (value, info), d = fn(w, inputs, (jnp.ones((5, 1)), jnp.zeros((1, 1))), gamma=1e4)
        >>> value, jnp.round(w - d, 2)
        (Array(0.5, dtype=float32), Array([[1.]], dtype=float32))
    """

    terms: tuple[Term, ...]

    def __init__(self, *terms: Term) -> None:
        if not terms:
            raise ValueError("Sum(): give at least one term, Sum(Term(model, loss), ...)")
        for term in terms:
            if not isinstance(term, Term):
                raise TypeError(f"Sum takes terms, Term(model, loss, weight), not {term!r}")
        object.__setattr__(self, "terms", terms)

    @property
    def loss(self) -> tuple[Loss, ...]:
        """The loss of each term."""
        return tuple(term.loss for term in self.terms)

    def batch(
        self,
        params: Params,
        inputs: PyTree,
        targets: PyTree,
        args: tuple[Any, ...],
        weights: Any,
        **options: Any,
    ) -> Batch:
        """The batches of all terms as one."""
        inputs, targets = self._split("inputs", inputs), self._split("targets", targets)
        weights = self._split("weights", (None,) * len(self.terms) if weights is None else weights)
        batches = []
        for number, term in enumerate(self.terms):
            with _in_term(number):
                own = inputs[number], targets[number], args, weights[number]
                batches.append(term.batch(params, *own, **options))
        dtypes = [str(batch.dtype) for batch in batches]
        if len(set(dtypes)) > 1:
            raise TypeError(
                f"the terms of a sum have outputs of dtypes {dtypes}, but share one algebra; give "
                "their inputs in one dtype"
            )
        return _join(batches)

    def some(self, batch: Batch, size: Size) -> Batch:
        """That many examples of each term, or all of a term that has fewer."""
        own = zip(batch.inputs, batch.targets, batch.weights, batch.weighted, strict=True)
        parts = [Batch(x, y, w, batch.good, weighted) for x, y, w, weighted in own]
        at_most = size if callable(size) else lambda m: min(size, m)
        some = [term.some(part, at_most) for term, part in zip(self.terms, parts, strict=True)]
        whole = all(kept is part for kept, part in zip(some, parts, strict=True))
        return batch if whole else _join(some)

    def linearize(
        self,
        params: Params,
        inputs: PyTree,
        args: tuple[Any, ...],
        *,
        has_aux: bool,
        chunk_size: int | None,
    ) -> Linearization:
        """All models at the same parameters."""
        parts = [
            term.linearize(params, x, args, has_aux=has_aux, chunk_size=chunk_size)
            for term, x in zip(self.terms, inputs, strict=True)
        ]

        def vjp(v: tuple[Outputs, ...]) -> Params:
            pulls = [part.vjp(own) for part, own in zip(parts, v, strict=True)]
            total = pulls[0]
            for pull in pulls[1:]:
                total = optax.tree.add(total, pull)
            return total

        return Linearization(
            outputs=tuple(part.outputs for part in parts),
            jvp=lambda u: tuple(part.jvp(u) for part in parts),
            vjp=vjp,
            rows=tuple(part.rows for part in parts),
            rounding=max(part.rounding for part in parts),
            aux=tuple(part.aux for part in parts) if has_aux else None,
        )

    def evaluate(
        self, params: Params, inputs: PyTree, args: tuple[Any, ...], **options: Any
    ) -> tuple[Outputs, ...]:
        """The outputs of all models."""
        return tuple(
            term.evaluate(params, x, args, **options)
            for term, x in zip(self.terms, inputs, strict=True)
        )

    def _split(self, name: str, given: Any) -> tuple[Any, ...]:
        if not isinstance(given, tuple) or len(given) != len(self.terms):
            what = f"a tuple of {len(given)}" if isinstance(given, tuple) else f"{type(given)}"
            raise TypeError(
                f"{name} of a Sum of {len(self.terms)} terms: got {what}; give a tuple with one "
                "entry for each term"
            )
        return given


def make_terms(model: Model | Sum, loss: Loss | None) -> Term | Sum:
    """What ``model`` and ``loss`` of a public function mean.

    Raises:
        TypeError: for a sum with a loss beside it, or a model without one.
    """
    if isinstance(model, Sum):
        if loss is not None:
            raise TypeError(
                f"a Sum has the losses of its terms, but loss={loss!r} was given too; leave it out"
            )
        return model
    if isinstance(model, Term):
        raise TypeError("one Term alone is not an objective; write Sum(term), or model, loss")
    return Term(model, _loss(loss))


def _loss(given: Any) -> Loss:
    """What was given, if it is a loss."""
    if not isinstance(given, Loss):
        raise TypeError(
            f"loss must be a proxlin.Loss such as Logistic(), not {given!r}; wrap a convex "
            "function as FromFunction(fn)"
        )
    return given


def _join(batches: list[Batch]) -> Batch:
    """Batches of several terms as one, of tuples."""
    inputs, targets, weights, good, weighted = zip(*batches, strict=True)
    return Batch(inputs, targets, weights, jnp.all(jnp.stack(good)), weighted)


@contextlib.contextmanager
def _in_term(number: int) -> Iterator[None]:
    try:
        yield
    except (TypeError, ValueError) as error:
        error.add_note(f"This is term {number} of the Sum, counted from 0.")
        raise
