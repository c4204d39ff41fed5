"""How a state is divided over devices."""

from __future__ import annotations

from typing import Any

import jax
import optax
from jaxtyping import PyTree

from proxlin.algebra import Shapes


def state_shardings(optimizer: optax.GradientTransformation, params: Shapes) -> PyTree[Any]:
    """How the state of an optimizer is divided over devices, for parameters that are divided.

    What has the shapes of the parameters is divided as they are; the factors of
    :class:`proxlin.Kronecker` are stacks, which are divided over the same mesh axes if their number
    allows; every device has all the rest. A step keeps all of it in place.

    Args:
        optimizer: any method of this library, also inside of ``optax.chain`` and its like.
        params: the parameters, or ``jax.ShapeDtypeStruct`` with a sharding.

    Returns:
        A tree of the structure of the state, for ``out_shardings`` of ``jax.jit`` and for restoring
        checkpoints. It is read off a first state, which is made and dropped.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from jax.sharding import NamedSharding, PartitionSpec as P
        >>> from proxlin import Squared, auto
        >>> mesh = jax.make_mesh((1,), ("data",))
        >>> w = jax.device_put(jnp.zeros((8, 4)), NamedSharding(mesh, P("data")))
        >>> opt = auto(lambda w, x: x @ w, Squared())
        >>> state_shardings(opt, w).average.is_equivalent_to(w.sharding, w.ndim)
        True
    """
    return jax.tree.map(lambda x: x.sharding, optimizer.init(params))
