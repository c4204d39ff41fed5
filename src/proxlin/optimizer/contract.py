r"""What ``update`` of a prox-linear method accepts, and how it refuses the rest."""

from __future__ import annotations

import inspect
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jaxtyping import PyTree

# The code of the update of any chain, by which its frames are known.
_CHAINS = (
    optax.chain(optax.identity()).update.__code__,
    optax.named_chain(("identity", optax.identity())).update.__code__,
)


def check_call(updates: Any, params: PyTree, args: Any) -> None:
    """Raises unless ``update`` is called without a gradient, with parameters and a tuple of args.

    A tree without leaves is no gradient: some libraries make one of None.
    """
    if jax.tree.leaves(updates):
        raise ValueError(
            "a prox-linear method computes its own direction and ignores gradients: call "
            "update(None, state, params, inputs=..., targets=...), put it first in optax.chain, "
            "and give it the whole batch instead of wrapping it in optax.MultiSteps (chunk_size "
            "bounds memory)"
        )
    _check_first()
    if params is None:
        raise ValueError("a prox-linear method linearizes the model at params: pass them to update")
    check_unmasked(params)
    if not isinstance(args, tuple):
        raise TypeError(f"args must be a tuple, args=(x,) for one argument; got {type(args)}")


def check_unmasked(params: PyTree) -> None:
    """Raises if Optax hides parameters."""
    is_masked = lambda x: isinstance(x, optax.MaskedNode)
    if any(is_masked(leaf) for leaf in jax.tree.leaves(params, is_leaf=is_masked)):
        raise ValueError(
            "optax.masked (or optax.partition) around a prox-linear method hides parameters that "
            "the model needs. Freeze parameters before the method instead, which also saves their "
            "cost: write model(trainable, inputs, frozen) and pass args=(frozen,)"
        )


def _check_first() -> None:
    """Raises if a chain has called another transformation before this one.

    It had no gradient to transform, and so did nothing. Optax hands None from one to the next, and
    nothing but the chain that calls us knows how many there were.
    """
    frame = inspect.currentframe()
    while frame is not None and _between(frame.f_globals.get("__name__", "")):
        if frame.f_code in _CHAINS and frame.f_locals.get("new_state"):
            raise ValueError(
                "a prox-linear method must come first in optax.chain: what stands before it, such "
                "as optax.clip_by_global_norm, has no gradient to act on and would do nothing. "
                "Write optax.chain(method, optax.clip_by_global_norm(...)), which clips the step"
            )
        frame = frame.f_back


def _between(module: str) -> bool:
    """Whether code may stand between a chain and ours; a wrapper of a user's own may not."""
    return module.partition(".")[0] in ("optax", "proxlin", "jaxtyping")  # which checks annotations


def restored(state: Any, like: Any) -> Any:
    """A state in the structure that ``init`` gave it.

    Flax's ``nnx.Optimizer`` and restored checkpoints return the same arrays at the same places, but
    in containers of their own.

    Raises:
        TypeError: for the state of another method, or of other parameters.
    """
    found = placed(state, like)
    if found is None and hasattr(state, "aux"):  # which may have been replaced by another
        found = placed(state, like._replace(aux=state.aux))
    if found is None:
        raise TypeError(
            f"state is not that of this method for these parameters, but of type "
            f"{type(state).__name__}: pass what opt.init(params) or the last update returned. A "
            "state that was saved fits the method and the options that it was saved with"
        )
    return found


def restored_aux(new: Any, old: Any) -> Any:
    """What a model returned as aux, in the structure of ``init_aux``.

    Raises:
        ValueError: if structures, shapes or dtypes differ.
    """
    kinds = lambda tree: jax.tree.map(lambda x: (jnp.shape(x), str(jnp.result_type(x))), tree)
    # Flattened, because nodes such as equinox.nn.State are equal to nothing but themselves.
    if jax.tree.flatten(kinds(old)) == jax.tree.flatten(kinds(new)):
        return new
    found = placed(new, old)
    if found is None or jax.tree.leaves(kinds(found)) != jax.tree.leaves(kinds(old)):
        raise ValueError(
            f"the model returned aux {kinds(new)}, but init_aux is {kinds(old)}: their structures, "
            "shapes and dtypes must be equal"
        )
    return found


def placed(tree: PyTree, like: PyTree) -> PyTree | None:
    """The leaves of a tree at the same places of another; None if they or their shapes do not fit.

    A place is the path to a leaf, whatever the kinds of its containers. Boxes around a leaf, such
    as the variables of Flax, make a path longer.
    """
    leaves, places = _by_path(tree), _by_path(like)
    if len(leaves) != len(places):
        return None
    found: list[Any] = [None] * len(leaves)
    for (path, _, leaf), (place, index, shape) in zip(leaves, places, strict=True):
        n = min(len(path), len(place))
        if path[:n] != place[:n] or jnp.shape(leaf) != jnp.shape(shape):
            return None
        found[index] = leaf
    return jax.tree.unflatten(jax.tree.structure(like), found)


def _by_path(tree: PyTree) -> list[tuple[tuple[str, ...], int, Any]]:
    """The leaves with their paths and numbers, sorted by paths."""
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    name = lambda key: jax.tree_util.keystr((key,), simple=True)
    found = [(tuple(map(name, path)), i, leaf) for i, (path, leaf) in enumerate(leaves)]
    return sorted(found, key=lambda entry: entry[:2])
