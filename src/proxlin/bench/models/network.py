"""The interface of networks in the bench."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

from jaxtyping import Array, Float, PyTree

from proxlin.bench.errors import UsageError

Params: TypeAlias = PyTree[Array]
Stats: TypeAlias = PyTree[Array]
Shape: TypeAlias = tuple[int, ...]
Inputs = Float[Array, "m *shape"]
Images = Float[Array, "m height width channels"]
Outputs = Float[Array, "m classes"]


class Network(NamedTuple):
    """A network for inputs of one shape, as three pure functions.

    Attributes:
        init: ``init(key) -> (params, stats)``; networks without statistics return ``()``.
        apply: ``apply(params, inputs, stats) -> (outputs, stats)``, in training: the model that
            :func:`proxlin.prox_linear` takes with ``has_aux=True`` and ``args=(stats,)``.
        predict: ``predict(params, inputs, stats) -> outputs``, in evaluation. Networks without
            statistics need none here, so that ``predict`` is also the model that
            :func:`proxlin.prox_linear` takes without ``has_aux``.
    """

    init: Callable[[Array], tuple[Params, Stats]]
    apply: Callable[[Params, Inputs, Stats], tuple[Outputs, Stats]]
    predict: Callable[..., Outputs]


def stateless(
    init: Callable[[Array], Params], forward: Callable[[Params, Inputs], Outputs]
) -> Network:
    """A network that is the same in training and in evaluation."""

    def apply(params: Params, inputs: Inputs, stats: Stats) -> tuple[Outputs, Stats]:
        return forward(params, inputs), stats

    def predict(params: Params, inputs: Inputs, stats: Stats = ()) -> Outputs:
        return forward(params, inputs)

    return Network(lambda key: (init(key), ()), apply, predict)


def image_shape(name: str, shape: Shape, multiple: int = 1) -> tuple[int, int, int]:
    """The shape of images, checked.

    Args:
        name: of the network, for the message.
        shape: of one input.
        multiple: what height and width must be multiples of.

    Returns:
        Height, width and channels.

    Raises:
        UsageError: for anything but images, or images of the wrong size.
    """
    if len(shape) != 3 or shape[0] % multiple or shape[1] % multiple:
        size = f" with height and width multiples of {multiple}" if multiple > 1 else ""
        raise UsageError(
            f"{name} for inputs of shape {shape}: it takes images of shape (height, width, "
            f"channels){size}; for other inputs choose linear or mlp"
        )
    height, width, channels = shape
    return height, width, channels
