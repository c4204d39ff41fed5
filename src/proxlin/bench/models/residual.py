"""Residual networks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import jax
from jaxtyping import Array

from proxlin.bench.errors import UsageError
from proxlin.bench.models.layers import conv_norm, dense, init_conv_norm, init_dense, max_pool
from proxlin.bench.models.network import (
    Images,
    Network,
    Outputs,
    Params,
    Shape,
    Stats,
    image_shape,
)

LARGE = 64  # the first layer reduces images of at least this width and height


def resnet18(shape: Shape, classes: int) -> Network:
    """ResNet18 with SiLU (see :func:`resnet`): 11,689,512 parameters for ImageNet."""
    return resnet(shape, classes, blocks=(2, 2, 2, 2))


def resnet34(shape: Shape, classes: int) -> Network:
    """ResNet34 with SiLU (see :func:`resnet`): 21,797,672 parameters for ImageNet."""
    return resnet(shape, classes, blocks=(3, 4, 6, 3))


def resnet(
    shape: Shape, classes: int, blocks: Sequence[int] = (2, 2, 2, 2), width: int = 64
) -> Network:
    """Residual networks of basic blocks (He et al., 2016), with SiLU as in the paper's Appendix F.

    A first layer; stages of basic blocks, each stage with twice the channels of the one before and
    half its height and width; means over all pixels; a dense layer. The first layer has filters of
    7 x 7 pixels and stride 2, followed by max-pooling, or for images below 64 pixels filters of
    3 x 3 pixels and no pooling.

    Args:
        shape: of one image.
        classes: number of outputs.
        blocks: how many blocks each stage has.
        width: channels of the first stage.

    Returns:
        The network; its statistics are the running means and variances of BatchNorm.

    Raises:
        UsageError: for other shapes, or a stage without blocks.

    Example:
        >>> import jax
        >>> params, stats = resnet((8, 8, 1), 10, blocks=(1, 1), width=8).init(jax.random.key(0))
        >>> params["dense"]["w"].shape, stats["stem"]["mean"].shape
        ((16, 10), (8,))
    """
    height, image_width, channels = image_shape("resnet", shape)
    if not blocks or min(blocks) < 1:
        raise UsageError(f"resnet of stages {tuple(blocks)}: each needs at least one block")
    large = min(height, image_width) >= LARGE
    plan = _plan(blocks, width)

    def init(key: Array) -> tuple[Params, Stats]:
        first, last, *keys = jax.random.split(key, len(plan) + 2)
        stem, stem_stats = init_conv_norm(first, channels, width, size=7 if large else 3)
        pairs = [_init_block(k, block) for k, block in zip(keys, plan, strict=True)]
        params = {
            "stem": stem,
            "blocks": [params for params, _ in pairs],
            "dense": init_dense(last, plan[-1].outputs, classes),
        }
        return params, {"stem": stem_stats, "blocks": [stats for _, stats in pairs]}

    def forward(params: Params, x: Images, stats: Stats, *, train: bool) -> tuple[Outputs, Stats]:
        x, stem = conv_norm(params["stem"], x, stats["stem"], stride=1 + large, train=train)
        x = jax.nn.silu(x)
        if large:
            x = max_pool(x)
        after = []
        for block, of_block, before in zip(plan, params["blocks"], stats["blocks"], strict=True):
            x, new = _apply_block(block, of_block, x, before, train=train)
            after.append(new)
        outputs = dense(params["dense"], x.mean(axis=(1, 2)))
        return outputs, {"stem": stem, "blocks": after}

    return Network(
        init,
        apply=lambda params, inputs, stats: forward(params, inputs, stats, train=True),
        predict=lambda params, inputs, stats: forward(params, inputs, stats, train=False)[0],
    )


class _Block(NamedTuple):
    """Channels in and out, and the stride of the first convolution."""

    inputs: int
    outputs: int
    stride: int

    @property
    def projects(self) -> bool:
        """Whether the shortcut needs a convolution to fit."""
        return self.stride > 1 or self.inputs != self.outputs


def _plan(blocks: Sequence[int], width: int) -> list[_Block]:
    """All blocks, in order."""
    plan = [_Block(width, width, 1)] * blocks[0]
    for count in blocks[1:]:
        inputs = plan[-1].outputs
        plan += [_Block(inputs, 2 * inputs, 2)] + [_Block(2 * inputs, 2 * inputs, 1)] * (count - 1)
    return plan


def _init_block(key: Array, block: _Block) -> tuple[Params, Stats]:
    keys = jax.random.split(key, 3)
    layers = {
        "conv1": init_conv_norm(keys[0], block.inputs, block.outputs),
        "conv2": init_conv_norm(keys[1], block.outputs, block.outputs),
    }
    if block.projects:
        layers["shortcut"] = init_conv_norm(keys[2], block.inputs, block.outputs, size=1)
    params = {name: params for name, (params, _) in layers.items()}
    return params, {name: stats for name, (_, stats) in layers.items()}


def _apply_block(
    block: _Block, params: Params, x: Images, stats: Stats, *, train: bool
) -> tuple[Images, Stats]:
    """Two convolutions and a shortcut, each with BatchNorm; SiLU between them and at the end."""
    after = {}

    def layer(name: str, x: Images, stride: int = 1) -> Images:
        x, after[name] = conv_norm(params[name], x, stats[name], stride=stride, train=train)
        return x

    y = layer("conv2", jax.nn.silu(layer("conv1", x, block.stride)))
    shortcut = layer("shortcut", x, block.stride) if block.projects else x
    return jax.nn.silu(shortcut + y), after
