r"""The network, linearized once: outputs, and products with the Jacobian and its adjoint.

Everything that follows sees the network only through :class:`Linearization`. All vectors it
takes and returns, in parameter space and in output space, have one dtype of at least float32, so
the algebra of the subproblems is in float32 even for bfloat16 parameters.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PyTree

from proxlin.algebra import Params, algebra_dtype, cast, cast_like
from proxlin.chunked import Chunks, On

Model = Callable[..., Any]
Outputs: TypeAlias = Float[Array, "m *rest k"]


@dataclasses.dataclass(frozen=True)
class Linearization:
    r"""A network :math:`f` linearized at parameters :math:`w`.

    .. math:: f(w - d) \approx f - J d

    Attributes:
        outputs: :math:`f`, of shape ``(m, ..., k)``.
        jvp: :math:`u \mapsto J u`, from parameter space to output space.
        vjp: :math:`v \mapsto J^* v`, from output space to parameter space.
        rows: for an array of example indices, those examples' rows of :math:`J` as one dense
            array ``(indices, ..., k, p)``, each computed from its example alone; with matrices
            :math:`B` of shape ``(indices, ..., k, n)`` as a second argument, those of
            :math:`B^\top J`. With ``transposed=True`` the same as ``(p, rows)``, a matrix that is
            made by its columns: where it is tall, products with these are cheaper.
        rounding: the unit roundoff of the narrowest dtype among parameters and outputs.
        aux: the auxiliary output of the model.
    """

    outputs: Outputs
    jvp: Callable[[Params], Outputs]
    vjp: Callable[[Outputs], Params]
    rows: Callable[..., Float[Array, "..."]]
    rounding: float
    aux: Any = None


def linearize(
    model: Model,
    params: PyTree,
    inputs: PyTree,
    *args: Any,
    has_aux: bool = False,
    chunk_size: int | None = None,
) -> Linearization:
    r"""Linearizes ``w -> model(w, inputs, *args)`` at ``params``.

    One forward pass serves the outputs and all later products (``jax.linearize`` and
    ``jax.linear_transpose``). With ``chunk_size`` nothing is kept of the forward pass: each
    product goes through the batch in chunks of that many examples and linearizes each again.
    Memory is then bounded by one chunk, and a product costs one more forward pass.

    Args:
        model: ``model(params, inputs, *args) -> outputs``, of shape ``(m, ..., k)``.
        params: a pytree of floating-point arrays.
        inputs: any pytree; with ``chunk_size`` each leaf has the example axis first.
        *args: passed on unchanged.
        has_aux: whether the model returns ``(outputs, aux)``.
        chunk_size: how many examples to linearize at once; all when None.

    Returns:
        The linearization.

    Raises:
        TypeError: for parameters or outputs that are not real floating-point arrays.
        ValueError: for outputs of shape ``(m,)`` or an empty batch.

    Example:
        >>> import jax.numpy as jnp
        >>> lin = linearize(lambda w, x: x @ w, jnp.ones((2, 1)), jnp.eye(2))
        >>> lin.jvp(jnp.ones((2, 1))).shape, lin.vjp(lin.outputs).shape
        ((2, 1), (2, 1))
    """
    check_params(params)
    on = _on(model, args, has_aux)
    if chunk_size is None:
        outputs, jvp, aux = jax.linearize(on(inputs), params, has_aux=True)
        check_outputs(outputs)
        transpose = jax.linear_transpose(jvp, params)
        vjp: Callable[[Array], Params] = lambda v: transpose(v)[0]
    else:
        aux = None
        check_outputs(jax.eval_shape(lambda w, x: on(x)(w)[0], params, inputs))
        chunks = Chunks.of(inputs, chunk_size)
        outputs = chunks.outputs(on, params)
        jvp = functools.partial(chunks.jvp, on, params)
        vjp = functools.partial(chunks.vjp, on, params)

    dtype = algebra_dtype(params, outputs)

    def rows(
        indices: Int[Array, " b"],
        factor: Float[Array, "b *rest k n"] | None = None,
        transposed: bool = False,
    ) -> Float[Array, "..."]:
        examples = jax.tree.map(lambda x: jnp.asarray(x)[indices], inputs)
        if factor is None:
            k = outputs.shape[-1]
            shape = (len(indices), *outputs.shape[1:], k)
            factor = jnp.broadcast_to(jnp.eye(k, dtype=outputs.dtype), shape)
        factor = factor.astype(outputs.dtype)
        return _rows(on, params, examples, factor, transposed).astype(dtype)

    dtypes = {leaf.dtype for leaf in jax.tree.leaves((params, outputs))}
    return Linearization(
        outputs=outputs.astype(dtype),
        jvp=lambda u: jvp(cast_like(u, params)).astype(dtype),
        vjp=lambda v: cast(vjp(v.astype(outputs.dtype)), dtype),
        rows=rows,
        rounding=max(float(jnp.finfo(each).eps) for each in dtypes),
        aux=aux,
    )


def evaluate(
    model: Model,
    params: Params,
    inputs: PyTree,
    *args: Any,
    has_aux: bool = False,
    chunk_size: int | None = None,
) -> Outputs:
    """The outputs of :func:`linearize` alone, by a forward pass."""
    on = _on(model, args, has_aux)
    if chunk_size is None:
        outputs = on(inputs)(params)[0]
    else:
        outputs = Chunks.of(inputs, chunk_size).outputs(on, params)
    return outputs.astype(algebra_dtype(params, outputs))


def _on(model: Model, args: tuple[Any, ...], has_aux: bool) -> On:
    if has_aux:
        return lambda inputs: lambda w: model(w, inputs, *args)
    return lambda inputs: lambda w: (model(w, inputs, *args), None)


def check_params(params: PyTree) -> None:
    """Raises unless every leaf is a real floating-point array."""
    leaves = jax.tree_util.tree_leaves_with_path(params)
    if not leaves:
        raise ValueError("params has no leaves: there is nothing to differentiate")
    for path, leaf in leaves:
        name = f"params{jax.tree_util.keystr(path)}"
        if not hasattr(leaf, "dtype"):
            raise TypeError(
                f"{name} is {leaf!r}; parameters must be real floating-point arrays. Convert what "
                "is to be trained with jnp.asarray, and pass the rest in `args`; of a module take "
                "the arrays alone: eqx.partition(module, eqx.is_inexact_array) for Equinox, "
                "nnx.split(module, nnx.Param, ...) for Flax NNX"
            )
        try:
            floating = jnp.issubdtype(jax.typeof(leaf).dtype, jnp.floating)
        except (TypeError, ValueError) as error:
            raise TypeError(
                f"{name} is of type {type(leaf).__name__} and dtype {leaf.dtype}, which JAX does "
                "not accept; give a floating-point array, such as np.asarray(leaf, np.float32)"
            ) from error
        if not floating:
            raise TypeError(
                f"{name} has dtype {leaf.dtype}; parameters must be real floating-point arrays. "
                "Cast what is to be trained with .astype(float), and pass counters, keys and other "
                "state in `args`"
            )


def check_outputs(outputs: Any) -> None:
    """Raises unless ``outputs`` is a non-empty floating-point array ``(m, ..., k)``."""
    if not hasattr(outputs, "shape") or not jnp.issubdtype(outputs.dtype, jnp.floating):
        raise TypeError(
            f"the model must return one floating-point array of shape (m, ..., k), not {outputs}; "
            "a model that returns (outputs, aux) needs has_aux=True"
        )
    if len(outputs.shape) < 2:
        raise ValueError(
            f"the model returned outputs of shape {outputs.shape}; return (m, 1) instead of (m,): "
            "the last axis holds the k outputs of one example"
        )
    if 0 in outputs.shape:
        raise ValueError(f"empty batch: the model returned outputs of shape {outputs.shape}")


def _rows(
    on: On,
    params: Params,
    inputs: PyTree,
    factor: Float[Array, "b *rest k n"],
    transposed: bool,
) -> Float[Array, "..."]:
    """The rows of B^T J of each example, from that example alone: J^T of the columns of B."""
    dtype = algebra_dtype(params)

    def one(example: PyTree, matrix: Float[Array, "*rest k n"]) -> list[Array]:
        outputs, vjp, _ = jax.vjp(
            on(jax.tree.map(lambda x: x[None], example)), params, has_aux=True
        )
        k, n = matrix.shape[-2:]
        places = outputs.size // k  # of a sequence; a column of B lies in one of them
        columns = matrix.reshape(places, k, n).swapaxes(1, 2)[:, :, None, :]
        here = jnp.eye(places, dtype=matrix.dtype)[:, None, :, None]
        leaves = jax.tree.leaves(jax.vmap(vjp)((here * columns).reshape(-1, *outputs.shape)))
        flat = [leaf.reshape(places * n, -1).astype(dtype) for leaf in leaves]
        return [leaf.T for leaf in flat] if transposed else flat

    if transposed:
        leaves = jax.vmap(one, out_axes=1)(inputs, factor)
        return jnp.concatenate([leaf.reshape(leaf.shape[0], -1) for leaf in leaves])
    rows = jnp.concatenate(jax.vmap(one)(inputs, factor), axis=-1)
    return rows.reshape(*factor.shape[:-2], factor.shape[-1], -1)
