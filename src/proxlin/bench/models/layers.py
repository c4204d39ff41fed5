r"""Layers: functions that initialize their parameters, and functions that apply them."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from proxlin.bench.models.network import Images, Params, Stats

MOMENTUM = 0.9  # of running statistics
EPSILON = 1e-5  # added to a variance before its square root


def init_dense(key: Array, inputs: int, outputs: int) -> Params:
    r"""Weights :math:`\mathcal N(0, 1 / \text{inputs})` (LeCun et al., 1998), and zero biases."""
    return {"w": _normal(key, (inputs, outputs)), "b": jnp.zeros(outputs, jnp.float32)}


def dense(params: Params, x: Float[Array, "*m d"]) -> Float[Array, "*m k"]:
    """The affine map."""
    return x @ params["w"] + params["b"][(None,) * (x.ndim - 1)]


def init_layer_norm(size: int) -> Params:
    """Ones and zeros."""
    return {"scale": jnp.ones(size, jnp.float32), "b": jnp.zeros(size, jnp.float32)}


def layer_norm(params: Params, x: Float[Array, "*m d"]) -> Float[Array, "*m d"]:
    r"""Mean zero and variance one over the last axis, then a scale and biases (Ba et al., 2016)."""
    centered = x - x.mean(axis=-1, keepdims=True)
    x = centered * jax.lax.rsqrt(jnp.mean(centered**2, axis=-1, keepdims=True) + EPSILON)
    along = (None,) * (x.ndim - 1)
    return x * params["scale"][along] + params["b"][along]


def init_conv(key: Array, inputs: int, outputs: int, size: int = 3) -> Params:
    """Filters of ``size`` x ``size`` pixels, initialized as a dense layer, and zero biases."""
    return {"w": _normal(key, (size, size, inputs, outputs)), "b": jnp.zeros(outputs, jnp.float32)}


def conv(params: Params, x: Images) -> Images:
    """Convolution with biases; zero padding keeps the size of the images."""
    return convolve(params["w"], x) + params["b"][None, None, None]


def convolve(
    kernel: Float[Array, "size size inputs outputs"], x: Images, stride: int = 1
) -> Images:
    """Convolution with a kernel of odd size; with stride 1, zero padding keeps the size."""
    reach = kernel.shape[0] // 2
    padding = [(reach, reach)] * 2
    numbers = ("NHWC", "HWIO", "NHWC")
    return jax.lax.conv_general_dilated(x, kernel, (stride, stride), padding, None, None, numbers)


def average_pool(x: Images) -> Images:
    """Means over windows of 2 x 2."""
    m, height, width, channels = x.shape
    return x.reshape(m, height // 2, 2, width // 2, 2, channels).mean(axis=(2, 4))


def max_pool(x: Images) -> Images:
    """Maxima over windows of 3 x 3, two pixels apart, the first one centered on the first pixel."""
    padding = ((0, 0), (1, 1), (1, 1), (0, 0))
    lowest = np.array(-np.inf, x.dtype)  # in NumPy, because the derivative needs a constant
    return jax.lax.reduce_window(x, lowest, jax.lax.max, (1, 3, 3, 1), (1, 2, 2, 1), padding)


def init_conv_norm(key: Array, inputs: int, outputs: int, size: int = 3) -> tuple[Params, Stats]:
    """A convolution without biases and the BatchNorm after it, which has them."""
    ones, zeros = jnp.ones(outputs, jnp.float32), jnp.zeros(outputs, jnp.float32)
    kernel = _normal(key, (size, size, inputs, outputs))
    return {"w": kernel, "scale": ones, "b": zeros}, {"mean": zeros, "variance": ones}


def conv_norm(
    params: Params, x: Images, stats: Stats, *, stride: int = 1, train: bool
) -> tuple[Images, Stats]:
    r"""Convolution and BatchNorm (Ioffe and Szegedy, 2015).

    .. math:: \text{scale} \cdot \frac{x - \mu}{\sqrt{\sigma^2 + \epsilon}} + b

    In training :math:`\mu` and :math:`\sigma^2` are mean and (biased) variance of each channel
    over the batch and its pixels, and running averages follow them with momentum 0.9; in
    evaluation they are those averages.
    """
    x = convolve(params["w"], x, stride)
    if train:
        batch = {"mean": x.mean(axis=(0, 1, 2)), "variance": x.var(axis=(0, 1, 2))}
        follow = lambda old, new: MOMENTUM * old + (1 - MOMENTUM) * new
        used, stats = batch, jax.tree.map(follow, stats, batch)
    else:
        used = stats
    scale = params["scale"] * jax.lax.rsqrt(used["variance"] + EPSILON)
    along = lambda channels: channels[None, None, None]
    return (x - along(used["mean"])) * along(scale) + along(params["b"]), stats


def _normal(key: Array, shape: tuple[int, ...]) -> Float[Array, "*shape"]:
    fan_in = math.prod(shape[:-1])
    return jnp.sqrt(jnp.float32(1 / fan_in)) * jax.random.normal(key, shape, jnp.float32)
