r"""Two steps of conjugate gradients at once, and how far rounding lets one trust an iterate."""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from proxlin.algebra import Scalar, Vector, add_scaled, count, dot, scale, select
from proxlin.solvers.system import Cost, NormalSystem, Solution, Status


def two_steps(system: NormalSystem) -> Solution:
    r"""The solution in the space of :math:`b` and :math:`c = M^* M b`, for a right-hand side b.

    This is the second iterate of conjugate gradients. All numbers that it needs are products of
    :math:`b`, :math:`c` and their images, so the only sums of long vectors are those of the
    solution. Steps one by one would also need the residual and the next conjugate direction; in a
    metric each of them is a pair, and these sums would cost more than the products.

    With :math:`e = c - \kappa b` orthogonal to :math:`b`, the system in the basis
    :math:`(b, e)` is

    .. math::
        \begin{pmatrix} \sigma \|b\|^2 + \|M b\|^2 & \|e\|^2 \\
            \|e\|^2 & \sigma \|e\|^2 + \|M e\|^2 \end{pmatrix} x =
        \begin{pmatrix} \|b\|^2 \\ 0 \end{pmatrix}

    because :math:`\langle M b, M e \rangle = \langle c, e \rangle = \|e\|^2`.
    """
    b, shift = system.rhs, system.shift
    image = system.forward(b)
    c = system.adjoint(image)
    image_c = system.forward(c)
    bb, bc, cc = dot(b, b), dot(image, image), dot(c, c)
    kappa = bc / _or_one(bb)
    image_e = add_scaled(image_c, -kappa, image)
    ee, of_image_e = jnp.maximum(dot(image, image_e), 0), dot(image_e, image_e)
    # If b is an eigenvector, e is rounding.
    solved = ~(ee > 10 * jnp.finfo(ee.dtype).eps * cc)
    first = shift * bb + bc
    # The second step is along p = e - back b, conjugate to b.
    back = ee / _or_one(first)
    second = shift * ee + of_image_e - back * ee
    one = _is_positive(first)
    two = one & ~solved & _is_positive(second)
    of_e = jnp.where(two, -back * bb / _or_one(second), 0)
    of_b = jnp.where(one, (bb - ee * of_e) / _or_one(first), 0) - kappa * of_e
    combine = lambda x, y: select(two, add_scaled(scale(of_b, x), of_e, y), scale(of_b, x))
    misfit = scale(-1, combine(image, image_c))
    length = ee + back**2 * bb  # of p, squared
    of_image_p = of_image_e - 2 * back * ee + back**2 * bc
    status = rounding_status(
        system,
        stretch=jnp.maximum(kappa, jnp.where(two, of_image_p / _or_one(length), 0)),
        least=jnp.minimum(first / _or_one(bb), jnp.where(two, second / _or_one(length), jnp.inf)),
        misfit=misfit,
    )
    broken = (bb != 0) & ~(two | (one & solved))
    cost = Cost(
        steps=count(one) + count(two),
        residual=jnp.where(one & (two | solved), jnp.sqrt(bb) * jnp.sqrt(ee) / _or_one(first), 1),
        jvps=count(2),
        vjps=count(1),
        status=status,
    )
    return Solution(
        x=combine(b, c), misfit=misfit, cost=cost.with_status(Status.INEXACT, where=broken)
    )


def _or_one(x: Scalar) -> Scalar:
    """A divisor; one where there is nothing to divide by."""
    return jnp.where(x > 0, x, jnp.ones_like(x))


def _is_positive(x: Scalar) -> Bool[Array, ""]:
    return (x > 0) & jnp.isfinite(x)


def rounding_status(
    system: NormalSystem, stretch: Scalar, least: Scalar, misfit: Vector
) -> Int[Array, ""]:
    r"""OK, or INEXACT if rounding may have changed a tenth of the result.

    Args:
        system: what was solved.
        stretch: the largest :math:`\|M q\|^2 / \|q\|^2` seen.
        least: the least :math:`\langle q, A q \rangle / \|q\|^2`, for systems without a shift.
        misfit: the misfit of the result.
    """
    least = jnp.where(system.shift > 0, system.shift, least)
    condition = 1 + stretch / jnp.where(least > 0, least, 1)
    if system.data is not None:
        length = dot(misfit, misfit)
        share = jnp.sqrt(dot(system.data, system.data) / jnp.where(length > 0, length, 1))
        condition = jnp.sqrt(condition) * share
    small = jnp.finfo(condition.dtype).eps * condition <= 0.1
    return jnp.where(small, count(Status.OK), count(Status.INEXACT))
