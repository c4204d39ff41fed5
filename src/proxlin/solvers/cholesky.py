"""Direct solves with the smaller of the two Gram matrices."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jax.scipy.linalg import cho_factor, cho_solve
from jaxtyping import Array, Bool, Float, Int

from proxlin.algebra import Scalar, Shapes, Vector, add_scaled, count, scale, zeros_like
from proxlin.checks import check_integer
from proxlin.solvers.system import (
    Cost,
    LinearSolver,
    NormalSystem,
    Rows,
    Solution,
    Status,
    TermRows,
)

Matrix = Float[Array, "n n"]
Products = tuple[int, int]  # how often M and M* are applied


@dataclasses.dataclass(frozen=True)
class Cholesky(LinearSolver):
    r"""Solves the system exactly by a Cholesky factorization of its small Gram matrix.

    It forms the smaller of :math:`M^* M` and :math:`M M^*`, of size :math:`\min(m k, p)`; the
    solution of the other system follows by the Woodbury formula. The misfit :math:`s - M x` of the
    dual would cancel for large gamma: with a preimage :math:`M v = s` it is computed as
    :math:`\text{shift} M (\text{shift} I + M^* M)^{-1} v`, else it is refined once.

    A matrix that is singular to rounding is factorized with rounding added to its diagonal. A shift
    that would be lost in a difference is raised to rounding level, which gives the result of a
    smaller gamma. In both cases the status is INEXACT.

    Besides what Jacobian products of the batch need, memory is bounded by
    :math:`4 \min(m k, p)^2 + 4\, \text{max\_elements}` numbers: the matrix, its symmetric and
    shifted copies and its factor, and the blocks it is made of.

    Attributes:
        independent: compute the rows of the Jacobian example by example instead of by products
            with the whole batch, about m times cheaper. Only for models in which no example
            influences another; this is checked with one product of the whole batch.
        max_elements: the largest number of elements in a block of the Jacobian; at least one
            example at a time. Blocks are computed again for each product with another block.

    Example:
        >>> import jax.numpy as jnp
        >>> a = jnp.array([[1.0, 2.0], [0.0, 1.0]])
        >>> system = NormalSystem(lambda x: a @ x, lambda y: a.T @ y, jnp.asarray(1.0),
        ...                       rhs=jnp.array([1.0, 0.0]))
        >>> x = Cholesky().solve(system).x
        >>> bool(jnp.allclose(x + a.T @ (a @ x), system.rhs, atol=1e-6))
        True
    """

    independent: bool = False
    max_elements: int = 2**26

    def __post_init__(self) -> None:
        check_integer(self, "max_elements", least=1)

    def solve(self, system: NormalSystem) -> Solution:
        """Forms the smaller Gram matrix, factorizes it and maps back."""
        x_like, image_like = _spaces(system)
        on_x = _size(x_like) <= _size(image_like)
        status = count(Status.OK)
        if self.independent:
            if system.rows is None:
                raise TypeError("Cholesky(independent=True) needs a system with rows")
            gram, agree, forming = _gram_of_rows(system, system.rows(), on_x, self.max_elements)
            status = jnp.where(agree, status, count(Status.BAD_VALUE))
        else:
            gram = _gram_of_products(system, x_like, image_like, on_x, self.max_elements)
            forming = (gram.shape[0], gram.shape[0])
        shift = _least_shift(system, gram) if _cancels(system, on_x) else system.shift
        inverse, singular = _inverse(gram, shift, x_like if on_x else image_like)
        exact = ~singular & (shift == system.shift)
        status = jnp.where(exact | (status != Status.OK), status, count(Status.INEXACT))
        map_back = _map_back_on_x if on_x else _map_back_on_image
        x, misfit, mapping = map_back(dataclasses.replace(system, shift=shift), inverse)
        if system.data is not None:
            # The direction is the misfit over the original shift.
            misfit = scale(system.shift / shift, misfit)
        return Solution(
            x=x,
            misfit=misfit,
            cost=Cost(
                steps=count(0),
                residual=jnp.full_like(system.shift, jnp.nan),
                jvps=count(forming[0] + mapping[0]),
                vjps=count(forming[1] + mapping[1]),
                status=status,
            ),
        )


def _spaces(system: NormalSystem) -> tuple[Shapes, Shapes]:
    """Shapes of x and of M x."""
    if system.rhs is not None:
        return system.rhs, jax.eval_shape(system.forward, system.rhs)
    return jax.eval_shape(system.adjoint, system.data), system.data


def _size(like: Shapes) -> int:
    return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(like))


def _unravel(like: Shapes) -> Callable[[Array], Vector]:
    return ravel_pytree(zeros_like(like))[1]


def _cancels(system: NormalSystem, on_x: bool) -> bool:
    """Whether mapping back from the Gram matrix takes a difference and divides by the shift."""
    if system.rhs is not None:
        return not on_x
    return on_x and system.preimage is None


def _rounding(gram: Matrix) -> float:
    """The relative change of the diagonal from forming and factorizing the matrix."""
    return (gram.shape[0] + 10) * float(jnp.finfo(gram.dtype).eps)


def _least_shift(system: NormalSystem, gram: Matrix) -> Scalar:
    """The shift, or that of a smaller gamma if a difference divided by it would be noise."""
    return jnp.maximum(system.shift, _rounding(gram) * jnp.max(jnp.diagonal(gram)))


def _inverse(
    gram: Matrix, shift: Scalar, like: Shapes
) -> tuple[Callable[[Vector], Vector], Bool[Array, ""]]:
    """The inverse of the shifted matrix, and whether that is singular to rounding.

    If so, rounding is added to its diagonal, because a pivot may be negative otherwise; entry by
    entry, because the factorization does not depend on the scale of rows.
    """
    matrix = gram + shift * jnp.eye(gram.shape[0], dtype=gram.dtype)
    diagonal = _rounding(gram) * jnp.diagonal(matrix)
    plain = cho_factor(matrix, lower=True)[0]
    singular = ~jnp.all(jnp.diagonal(plain) ** 2 > diagonal)
    factor = jax.lax.cond(
        singular, lambda: cho_factor(matrix + jnp.diag(diagonal), lower=True)[0], lambda: plain
    )
    unravel = _unravel(like)
    return lambda b: unravel(cho_solve((factor, True), ravel_pytree(b)[0])), singular


def _map_back_on_x(
    system: NormalSystem, inverse: Callable[[Vector], Vector]
) -> tuple[Vector, Vector, Products]:
    """From the inverse of shift I + M* M."""
    if system.rhs is not None:
        x = inverse(system.rhs)
        return x, scale(-1, system.forward(x)), (1, 0)
    if system.preimage is not None:
        z = scale(system.shift, inverse(system.preimage))
        return add_scaled(system.preimage, -1, z), system.forward(z), (1, 0)

    def reduced(s: Vector) -> tuple[Vector, Vector]:
        """x and s - M x = shift (shift I + M M*)^-1 s, with cancellation."""
        x = inverse(system.adjoint(s))
        return x, add_scaled(s, -1, system.forward(x))

    x, misfit = reduced(system.data)
    explained = add_scaled(misfit, 1 / system.shift, system.forward(system.adjoint(misfit)))
    misfit = add_scaled(misfit, 1, reduced(add_scaled(system.data, -1, explained))[1])
    return x, misfit, (3, 3)


def _map_back_on_image(
    system: NormalSystem, inverse: Callable[[Vector], Vector]
) -> tuple[Vector, Vector, Products]:
    """From the inverse of shift I + M M*."""
    if system.rhs is None:
        y = inverse(system.data)
        return system.adjoint(y), scale(system.shift, y), (0, 1)

    def reduced(b: Vector) -> Vector:
        """(shift I + M* M)^-1 b, with cancellation."""
        inner = system.adjoint(inverse(system.forward(b)))
        return scale(1 / system.shift, add_scaled(b, -1, inner))

    x = reduced(system.rhs)
    explained = add_scaled(system.adjoint(system.forward(x)), system.shift, x)
    x = add_scaled(x, 1, reduced(add_scaled(system.rhs, -1, explained)))
    return x, scale(-1, system.forward(x)), (4, 3)


def _gram_of_products(
    system: NormalSystem, x_like: Shapes, image_like: Shapes, on_x: bool, max_elements: int
) -> Matrix:
    """M* M or M M*, a few columns at a time."""
    first, second = (system.forward, system.adjoint) if on_x else (system.adjoint, system.forward)
    small, large = (x_like, image_like) if on_x else (image_like, x_like)
    unravel = _unravel(small)
    at_once = max(1, max_elements // _size(large))
    basis = jnp.eye(_size(small), dtype=jax.tree.leaves(small)[0].dtype)
    gram = jax.lax.map(
        lambda e: ravel_pytree(second(first(unravel(e))))[0],
        basis,
        batch_size=min(at_once, len(basis)),
    )
    return 0.5 * (gram + gram.T)


def _gram_of_rows(
    system: NormalSystem, rows: Rows, on_x: bool, max_elements: int
) -> tuple[Matrix, Bool[Array, ""], Products]:
    """A A^T or A^T A of the dense rows A; whether A is the matrix of the products; the cost.

    One VJP for each row of an example gives the rows of all examples. One more product checks that
    they are the same for the whole batch: it is compared with A times a vector.
    """
    like = system.data if rows.of_x else system.rhs
    # Not ones or any other pattern, so that nothing cancels by design.
    probe = jnp.cos(jnp.arange(_size(like), dtype=jax.tree.leaves(like)[0].dtype))
    product = (system.adjoint if rows.of_x else system.forward)(_unravel(like)(probe))
    gram, image = _gram_and_product(rows, on_x, max_elements, probe)
    want = ravel_pytree(product)[0]
    scale = jnp.linalg.norm(want) + jnp.linalg.norm(image)
    agree = jnp.linalg.norm(want - image) <= rows.tolerance * scale
    vjps = max(term.per_example for term in rows.terms)
    return gram, agree, ((vjps, 1) if rows.of_x else (1, vjps))


def _gram_and_product(
    rows: Rows, on_x: bool, max_elements: int, probe: Float[Array, " p"]
) -> tuple[Matrix, Float[Array, " rows"]]:
    """A A^T or A^T A, and A times a vector, from blocks of bounded size."""
    p, terms = probe.size, rows.terms
    if on_x != rows.of_x:
        gram, images = jnp.zeros((p, p), probe.dtype), []
        for term in terms:
            gram, image = _add_outer_products(gram, term, max_elements // p, probe)
            images.append(image)
        return gram, jnp.concatenate(images)
    if sum(term.examples * term.per_example for term in terms) * p <= max_elements:
        a = jnp.concatenate([term.block(jnp.arange(term.examples)) for term in terms])
        return _times(a, a.T), _times(a, probe)
    over_blocks = lambda fn: jnp.concatenate(
        [_over_blocks(term, max_elements // p, fn) for term in terms]
    )
    gram = over_blocks(lambda a: over_blocks(lambda b: _times(b, a.T)).T)
    return gram, over_blocks(lambda a: _times(a, probe[:, None]))[:, 0]


def _blocks(term: TermRows, max_rows: int) -> Int[Array, "blocks size"]:
    """The indices of the examples of each block; in the last one, some may be too large."""
    size = min(term.examples, max(1, max_rows // term.per_example))
    return jnp.arange(-(-term.examples // size) * size).reshape(-1, size)


def _block(term: TermRows, numbers: Int[Array, " b"]) -> Float[Array, "rows p"]:
    """The rows of some examples; an index too large gives those of the last example."""
    return term.block(jnp.minimum(numbers, term.examples - 1))


def _over_blocks(
    term: TermRows, max_rows: int, fn: Callable[[Array], Array]
) -> Float[Array, "rows n"]:
    """``fn`` of all rows, a block at a time."""
    blocks = jax.lax.map(lambda i: fn(_block(term, i)), _blocks(term, max_rows))
    return blocks.reshape(-1, blocks.shape[-1])[: term.examples * term.per_example]


def _add_outer_products(
    total: Matrix, term: TermRows, max_rows: int, probe: Float[Array, " p"]
) -> tuple[Matrix, Float[Array, " rows"]]:
    """Adds A^T A of one term, a block at a time; and A times a vector."""

    def add(total: Matrix, numbers: Array) -> tuple[Matrix, Array]:
        real = jnp.repeat(numbers < term.examples, term.per_example)
        a = jnp.where(real[:, None], _block(term, numbers), 0)
        return total + _times(a.T, a), _times(a, probe)

    total, images = jax.lax.scan(add, total, _blocks(term, max_rows))
    return total, images.reshape(-1)[: term.examples * term.per_example]


def _times(a: Array, b: Array) -> Array:
    return jnp.matmul(a, b, precision=jax.lax.Precision.HIGHEST)
