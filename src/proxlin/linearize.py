r"""The network, linearised once: outputs, Jacobian products, and their adjoint.

Everything that follows sees the network only through :class:`Linearization`. All vectors it
takes and returns, in parameter space and in output space, have one dtype of at least float32, so
that the algebra of the subproblems is done in float32 even for bfloat16 parameters.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PyTree

Model = Callable[..., Any]
Params: TypeAlias = PyTree[Array]
Outputs = Float[Array, "m *rest k"]

# Convolutions inside a loop are many times slower than outside on XLA:CPU
# (https://github.com/jax-ml/jax/issues/12868), so that short loops over chunks are unrolled.
_UNROLLED_CHUNKS = 8


@dataclasses.dataclass(frozen=True)
class Linearization:
    r"""A network :math:`f` linearised at parameters :math:`w`.

    .. math:: f(w - d) \approx f - J d

    Attributes:
        outputs: :math:`f`, of shape ``(m, ..., k)``.
        jvp: :math:`u \mapsto J u`, from parameter space to output space.
        vjp: :math:`v \mapsto J^* v`, from output space to parameter space.
        rows: for an array of example indices, those examples' rows of :math:`J` as one dense
            array ``(indices, ..., k, p)``, each computed from its example alone; with matrices
            :math:`B` of shape ``(indices, ..., k, n)`` as a second argument, those of
            :math:`B^\top J`.
        rounding: the unit roundoff of the narrowest dtype among parameters and outputs.
        aux: what the model returned beside its outputs.

    For a sum of terms ``outputs``, ``rows`` and ``aux`` are tuples with one entry for each term,
    and so are the vectors in output space.
    """

    outputs: PyTree[Outputs]
    jvp: Callable[[Params], PyTree[Outputs]]
    vjp: Callable[[PyTree[Outputs]], Params]
    rows: PyTree[Callable[..., Float[Array, "b *rest n p"]]]
    rounding: float
    aux: Any = None


def linearize(
    model: Model,
    params: Params,
    inputs: PyTree,
    *args: Any,
    has_aux: bool = False,
    chunk_size: int | None = None,
) -> Linearization:
    r"""Linearises ``w -> model(w, inputs, *args)`` at ``params``.

    One forward pass serves the outputs and all later products (``jax.linearize`` and
    ``jax.linear_transpose``). With ``chunk_size`` nothing is kept of the forward pass: each
    product goes through the batch in chunks of that many examples and linearises each anew, so
    that memory is bounded by one chunk and a product costs one forward pass more.

    Args:
        model: ``model(params, inputs, *args) -> outputs``, of shape ``(m, ..., k)``.
        params: a pytree of floating-point arrays.
        inputs: any pytree; with ``chunk_size`` each leaf has the example axis first.
        *args: passed on as they are.
        has_aux: whether the model returns ``(outputs, aux)``.
        chunk_size: how many examples to linearise at once; all when None.

    Returns:
        The linearisation.

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
        chunks = _Chunks.of(inputs, chunk_size)
        outputs = chunks.outputs(on, params)
        jvp = functools.partial(chunks.jvp, on, params)
        vjp = functools.partial(chunks.vjp, on, params)

    dtype = algebra_dtype(params, outputs)
    lift = lambda tree: jax.tree.map(lambda x: x.astype(dtype), tree)
    narrow = lambda u: jax.tree.map(lambda x, w: x.astype(w.dtype), u, params)

    def rows(
        indices: Int[Array, " b"], factor: Float[Array, "b *rest k n"] | None = None
    ) -> Float[Array, "b *rest n p"]:
        examples = jax.tree.map(lambda x: jnp.asarray(x)[indices], inputs)
        if factor is None:
            k = outputs.shape[-1]
            shape = (len(indices), *outputs.shape[1:], k)
            factor = jnp.broadcast_to(jnp.eye(k, dtype=outputs.dtype), shape)
        return lift(_rows(on, params, examples, factor.astype(outputs.dtype)))

    dtypes = {leaf.dtype for leaf in jax.tree.leaves((params, outputs))}
    return Linearization(
        outputs=lift(outputs),
        jvp=lambda u: lift(jvp(narrow(u))),
        vjp=lambda v: lift(vjp(v.astype(outputs.dtype))),
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
        outputs = _Chunks.of(inputs, chunk_size).outputs(on, params)
    return outputs.astype(algebra_dtype(params, outputs))


# inputs -> params -> (outputs, aux)
_On = Callable[[PyTree], Callable[[Params], tuple[Array, Any]]]


def _on(model: Model, args: tuple[Any, ...], has_aux: bool) -> _On:
    if has_aux:
        return lambda inputs: lambda w: model(w, inputs, *args)
    return lambda inputs: lambda w: (model(w, inputs, *args), None)


def algebra_dtype(*trees: PyTree) -> Any:
    """The one dtype of all vectors: the widest in the trees, and at least float32."""
    dtypes = {jnp.dtype(x.dtype) for x in jax.tree.leaves(trees)} | {jnp.dtype(jnp.float32)}
    return max(dtypes, key=lambda dtype: jnp.finfo(dtype).bits)


def cast_like(tree: PyTree, like: PyTree) -> PyTree:
    """A tree in the dtypes of another."""
    return jax.tree.map(lambda x, w: x.astype(w.dtype), tree, like)


def check_params(params: Params) -> None:
    """Raises unless every leaf is a real floating-point array."""
    leaves = jax.tree_util.tree_leaves_with_path(params)
    if not leaves:
        raise ValueError("params has no leaves: there is nothing to differentiate")
    for path, leaf in leaves:
        name = f"params{jax.tree_util.keystr(path)}"
        if not hasattr(leaf, "dtype"):
            raise TypeError(
                f"{name} is {leaf!r}; parameters must be real floating-point arrays. Write "
                "jnp.asarray around what is to be trained, and pass the rest in `args`"
            )
        try:
            floating = jnp.issubdtype(jax.typeof(leaf).dtype, jnp.floating)
        except (TypeError, ValueError) as error:
            raise TypeError(
                f"{name} is of type {type(leaf).__name__} and dtype {leaf.dtype}, which JAX does "
                "not take; give a floating-point array, such as np.asarray(leaf, np.float32)"
            ) from error
        if not floating:
            raise TypeError(
                f"{name} has dtype {leaf.dtype}; parameters must be real floating-point arrays. "
                "Cast what is to be trained by .astype(float), and pass counters, keys and other "
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


@dataclasses.dataclass(frozen=True)
class _Chunks:
    """A batch in chunks that are linearised one at a time and forgotten again."""

    inputs: PyTree  # leaves (count, size, ...)
    m: int
    count: int
    size: int

    @classmethod
    def of(cls, inputs: PyTree, size: int) -> _Chunks:
        if not isinstance(size, int) or size < 1:
            raise ValueError(f"chunk_size={size!r}: give a positive integer, or None")
        m = jax.tree.leaves(inputs)[0].shape[0]
        chunks = cls(inputs, m, -(-m // size), size)
        # Padding repeats the first example: an input that the network has to handle anyway.
        split = jax.tree.map(lambda x: chunks._split(x, x[:1]), inputs)
        return dataclasses.replace(chunks, inputs=split)

    def outputs(self, on: _On, params: Params) -> Array:
        return self._join(self._scan(lambda w, x: (w, on(x)(w)[0]), params, self.inputs)[1])

    def jvp(self, on: _On, params: Params, u: Params) -> Array:
        def body(c: tuple[Params, Params], x: PyTree) -> tuple[Any, Array]:
            return c, jax.jvp(lambda w: on(x)(w)[0], (c[0],), (c[1],))[1]

        return self._join(self._scan(body, (params, u), self.inputs)[1])

    def vjp(self, on: _On, params: Params, v: Array) -> Params:
        def body(c: tuple[Params, Params], x: tuple[PyTree, Array]) -> tuple[Any, None]:
            (part,) = jax.vjp(lambda w: on(x[0])(w)[0], c[0])[1](x[1])
            return (c[0], jax.tree.map(lambda a, b: a + b.astype(a.dtype), c[1], part)), None

        # The sum over chunks is kept in the dtype of the algebra, as one over the batch would be.
        zero = jax.tree.map(lambda w: jnp.zeros(w.shape, algebra_dtype(params)), params)
        xs = (self.inputs, self._split(v, jnp.zeros_like(v[:1])))
        return self._scan(body, (params, zero), xs)[0][1]

    def _scan(self, body: Callable[..., Any], carry: Any, xs: Any) -> Any:
        # Which chunk comes next depends, for all that XLA can know, on the result of the last one
        # and at first on the vector of the product. This keeps one chunk after the other, and it
        # keeps XLA from sharing, and so from storing, the forward pass of a chunk between
        # products. XLA:CPU drops an optimization_barrier before it looks for what to share.
        def step(state: tuple[Any, Array], i: Array) -> tuple[Any, Any]:
            carry, zero = state
            pick = lambda x: jax.lax.dynamic_index_in_dim(x, i + zero, keepdims=False)
            carry, y = body(carry, jax.tree.map(pick, xs))
            return (carry, _hidden_zero((carry, y))), y

        (carry, _), ys = jax.lax.scan(
            step,
            (carry, _hidden_zero((carry, xs))),
            jnp.arange(self.count, dtype=jnp.int32),
            unroll=self.count if self.count <= _UNROLLED_CHUNKS else 1,
        )
        return carry, ys

    def _split(self, x: Array, pad: Array) -> Array:
        pad = jnp.broadcast_to(pad, (self.count * self.size - self.m, *x.shape[1:]))
        return jnp.concatenate([x, pad]).reshape(self.count, self.size, *x.shape[1:])

    def _join(self, x: Array) -> Array:
        return x.reshape(self.count * self.size, *x.shape[2:])[: self.m]


def _hidden_zero(tree: PyTree) -> Int[Array, ""]:
    """Zero, which no compiler can know before it has the leaves."""
    firsts = [jnp.ravel(x)[0] for x in jax.tree.leaves(tree) if x.size]
    never = [jnp.isnan(x) & (x > 0) for x in firsts if jnp.issubdtype(x.dtype, jnp.floating)]
    return functools.reduce(jnp.logical_or, never).astype(jnp.int32)


def _rows(
    on: _On, params: Params, inputs: PyTree, factor: Float[Array, "b *rest k n"]
) -> Float[Array, "b *rest n p"]:
    """Each example's rows of B^T J, from that example alone: J^T of the columns of B."""
    dtype = algebra_dtype(params)

    def one(example: PyTree, matrix: Float[Array, "*rest k n"]) -> Array:
        outputs, vjp, _ = jax.vjp(
            on(jax.tree.map(lambda x: x[None], example)), params, has_aux=True
        )
        k, n = matrix.shape[-2:]
        places = outputs.size // k  # of a sequence; a column of B lies in one of them
        columns = matrix.reshape(places, k, n).swapaxes(1, 2)[:, :, None, :]
        here = jnp.eye(places, dtype=matrix.dtype)[:, None, :, None]
        leaves = jax.tree.leaves(jax.vmap(vjp)((here * columns).reshape(-1, *outputs.shape)))
        flat = [leaf.reshape(places * n, -1).astype(dtype) for leaf in leaves]
        return jnp.concatenate(flat, axis=1).reshape(*matrix.shape[:-2], n, -1)

    return jax.vmap(one)(inputs, factor)
