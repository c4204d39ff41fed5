"""A model with its loss, and a weighted sum of several."""

from __future__ import annotations

import dataclasses
import math

from proxlin.linearize import Model
from proxlin.losses import Loss


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
        if not isinstance(self.loss, Loss):
            raise TypeError(
                f"loss must be a proxlin.Loss such as Logistic(), not {self.loss!r}; wrap a convex "
                "function as FromFunction(fn)"
            )
        if not isinstance(self.weight, int | float) or not 0 < self.weight < math.inf:
            raise ValueError(
                f"Term(weight={self.weight!r}): give a positive number, and leave out terms of "
                "weight zero"
            )


@dataclasses.dataclass(frozen=True, init=False)
class Sum:
    r"""A sum of terms, in place of a model and a loss.

    .. math:: h(w) = \sum_t \lambda_t\, \frac1{m_t} \sum_{i=1}^{m_t} \ell_{t,i}(f_{t,i}(w))

    such as the interior, the boundary and the data of a physics-informed network, or several
    tasks. One subproblem contains them all: the models are linearized at the same parameters, and
    each keeps its own loss. ``Sum(Term(model, loss))`` is the objective of ``model, loss``.

    Inputs, targets and, if given, the weights of examples are tuples with one entry for each term,
    and so is ``aux``. Every model gets the same ``args``. One Jacobian product covers all terms.

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
