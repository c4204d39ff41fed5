r"""The objective: a weighted sum of convex losses of networks, in one term or several.

Inside the library there is always a tuple of terms, with one batch, one linearization and one
array of outputs for each. :class:`Objective` wraps what a user passes for one model.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias, cast

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from proxlin.algebra import Params, Scalar, algebra_dtype
from proxlin.batch import Batch, Share, Size, check_inputs, make_batch
from proxlin.linearize import Linearization, Model, check_outputs, evaluate, linearize
from proxlin.losses import Loss
from proxlin.objective.decay import Decay
from proxlin.objective.terms import Sum, Term

# A vector of output space: one array (m, ..., k) for each term.
TermOutputs: TypeAlias = tuple[Float[Array, "..."], ...]


@dataclasses.dataclass(frozen=True)
class Objective:
    r"""What is minimized, :math:`h(w) = \sum_t \sum_i \omega_{t,i}\, \ell_{t,i}(f_{t,i}(w))`.

    Attributes:
        terms: models with their losses and weights.
        is_sum: whether users pass tuples with one entry for each term; if not, there is one term.
        has_aux: whether models return ``(outputs, aux)``.
        chunk_size: how many examples to linearize at once; all when None.
        decay: the weight decay, which adds to it.
    """

    terms: tuple[Term, ...]
    is_sum: bool
    has_aux: bool = False
    chunk_size: int | None = None
    decay: Decay | None = None

    @classmethod
    def of(
        cls,
        model: Model | Sum,
        loss: Loss | None = None,
        *,
        has_aux: bool = False,
        chunk_size: int | None = None,
        decay: Decay | None = None,
    ) -> Objective:
        """The objective that ``model`` and ``loss`` of a public function stand for.

        Raises:
            TypeError: for a sum with another loss, or a model without one.
        """
        if isinstance(model, Term):
            raise TypeError("one Term alone is not an objective; write Sum(term), or model, loss")
        if not isinstance(model, Sum):
            term = Term(model=model, loss=cast(Loss, loss))  # which rejects None
            return cls(
                terms=(term,), is_sum=False, has_aux=has_aux, chunk_size=chunk_size, decay=decay
            )
        if loss is not None:
            raise TypeError(
                f"a Sum has the losses of its terms, but loss={loss!r} was given too; leave it out"
            )
        return cls(
            terms=model.terms, is_sum=True, has_aux=has_aux, chunk_size=chunk_size, decay=decay
        )

    @property
    def losses(self) -> tuple[Loss, ...]:
        """The loss of each term."""
        return tuple(term.loss for term in self.terms)

    def batches(
        self,
        params: Params,
        inputs: PyTree,
        targets: PyTree,
        args: tuple[Any, ...],
        weights: Any,
        *,
        per_example: bool,
    ) -> tuple[Batch, ...]:
        """The user's batch, split into one for each term and checked before any work is done.

        The weights of examples sum to the weight of their term.
        """
        if weights is None:
            weights = (None,) * len(self.terms) if self.is_sum else None
        given = inputs, targets, weights
        split = zip(
            *map(self._each, ("inputs", "targets", "weights"), given), self.terms, strict=True
        )
        batches = []
        for number, (x, y, w, term) in enumerate(split):
            with self._in_term(number):
                batches.append(self._batch(term, params, x, y, args, w, per_example))
        dtypes = [str(batch.dtype) for batch in batches]
        if len(set(dtypes)) > 1:
            raise TypeError(
                f"the terms of a sum have outputs of dtypes {dtypes}, but share one algebra; give "
                "their inputs in one dtype"
            )
        return tuple(batches)

    def part(self, batches: tuple[Batch, ...], size: Size) -> tuple[Batch, ...]:
        """``size`` examples of each term, spread over its batch; in a sum, all if it has fewer."""
        return tuple(
            self._part(term, batch, size) for term, batch in zip(self.terms, batches, strict=True)
        )

    def linearize(
        self, params: Params, batches: tuple[Batch, ...], args: tuple[Any, ...]
    ) -> tuple[Linearization, ...]:
        """All models at the same parameters."""
        return self._on_each(linearize, params, batches, args)

    def outputs(
        self, params: Params, batches: tuple[Batch, ...], args: tuple[Any, ...]
    ) -> TermOutputs:
        """The outputs alone, by a forward pass."""
        return self._on_each(evaluate, params, batches, args)

    def value(self, outputs: TermOutputs, batches: tuple[Batch, ...]) -> Scalar:
        r""":math:`\sum_i \omega_i\, \ell_i(f_i)`, over all terms."""
        values = [
            jnp.sum(batch.weights * loss.value(f, batch.targets))
            for loss, f, batch in zip(self.losses, outputs, batches, strict=True)
        ]
        return functools.reduce(jnp.add, values)

    def output_grad(self, outputs: TermOutputs, batches: tuple[Batch, ...]) -> TermOutputs:
        r""":math:`\omega_i \nabla \ell_i(f_i)`, the gradient with respect to the outputs."""
        return tuple(
            batch.weights[..., None] * loss.grad(f, batch.targets)
            for loss, f, batch in zip(self.losses, outputs, batches, strict=True)
        )

    def aux(self, linearizations: tuple[Linearization, ...]) -> Any:
        """The auxiliary outputs: a tuple for a sum, else those of the one model."""
        if not self.has_aux:
            return None
        found = tuple(lin.aux for lin in linearizations)
        return found if self.is_sum else found[0]

    def _on_each(
        self, fn: Callable[..., Any], params: Params, batches: tuple[Batch, ...], args: Any
    ) -> tuple[Any, ...]:
        options: dict[str, Any] = {"has_aux": self.has_aux, "chunk_size": self.chunk_size}
        return tuple(
            fn(term.model, params, batch.inputs, *args, **options)
            for term, batch in zip(self.terms, batches, strict=True)
        )

    def _batch(
        self,
        term: Term,
        params: Params,
        inputs: PyTree,
        targets: PyTree,
        args: tuple[Any, ...],
        weights: Any,
        per_example: bool,
    ) -> Batch:
        per_example |= weights is not None
        check_inputs(inputs, example_axis=per_example)
        with _called(term.model, inputs):
            outputs = jax.eval_shape(lambda w, x: term.model(w, x, *args), params, inputs)
        if self.has_aux:
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
        return make_batch(term.loss, outputs, inputs, targets, weights).scaled(term.weight)

    def _part(self, term: Term, batch: Batch, size: Size) -> Batch:
        m = len(batch.weights)
        if isinstance(size, Share):
            size = size.examples(m, batch.weights.size // m)
        elif callable(size):
            size = size(m)
        elif self.is_sum:
            size = min(size, m)
        if not 1 <= size <= m:
            raise ValueError(
                f"curvature_size={size} for a batch of {m} examples: give a number from 1 to {m}"
            )
        return batch if size == m else batch.part(size).scaled(term.weight)

    def _each(self, name: str, given: Any) -> tuple[Any, ...]:
        """What was passed, as one entry for each term."""
        if not self.is_sum:
            return (given,)
        if not isinstance(given, tuple) or len(given) != len(self.terms):
            what = f"a tuple of {len(given)}" if isinstance(given, tuple) else f"{type(given)}"
            raise TypeError(
                f"{name} of a Sum of {len(self.terms)} terms: got {what}; give a tuple with one "
                "entry for each term"
            )
        return given

    @contextlib.contextmanager
    def _in_term(self, number: int) -> Iterator[None]:
        try:
            yield
        except (TypeError, ValueError) as error:
            if self.is_sum:
                error.add_note(f"This is term {number} of the Sum, counted from 0.")
            raise


@contextlib.contextmanager
def _called(model: Model, inputs: PyTree) -> Iterator[None]:
    """Notes two likely causes on an error of the model, whose own message does not tell them."""
    try:
        yield
    except Exception as error:
        if isinstance(inputs, list):
            error.add_note(
                f"The inputs are a list of {len(inputs)}, which the model got as it is; if they "
                "are the examples of a batch, give one array: np.stack(inputs)."
            )
        if not inspect.isroutine(model) and not isinstance(model, functools.partial):
            error.add_note(
                f"The model is of type {type(model).__name__}, and was called as model(params, "
                "inputs). If it is a module with parameters of its own, write a function that puts "
                "params into it, such as lambda params, x: eqx.combine(params, static)(x)."
            )
        raise
