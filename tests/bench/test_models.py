"""Networks against NumPy, their sizes by formula, and what they owe to the optimizers."""

from __future__ import annotations

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import proxlin
from proxlin.bench import models
from proxlin.bench.errors import UsageError

IMAGE = (8, 8, 1)
TEXT = (6, 10)
NETWORKS = {
    "linear": models.linear(IMAGE, 10),
    "mlp": models.mlp(IMAGE, 10, hidden=(16, 8)),
    "convnet": models.convnet(IMAGE, 10),
    "cnn": models.cnn(IMAGE, 10, depth=1),
    "resnet": models.resnet(IMAGE, 10, blocks=(1, 1), width=8),
    "autoencoder": models.autoencoder(IMAGE, encoder=(16, 8)),
    "transformer": models.transformer(TEXT, 10, width=8, heads=2),
}


def parameters(network):
    params, _ = jax.eval_shape(network.init, jax.random.key(0))
    return sum(leaf.size for leaf in jax.tree.leaves(params))


def inputs_of(shape, m=6, seed=0):
    return jnp.asarray(np.random.default_rng(seed).normal(size=(m, *shape)), jnp.float32)


# ---- sizes -------------------------------------------------------------------------------------


def conv_size(inputs, outputs):
    return 9 * inputs * outputs + outputs


def test_the_convnet_of_the_paper():
    network = models.convnet((32, 32, 3), 10)
    dense = (8 * 8 * 64 + 1) * 256 + (256 + 1) * 10
    assert parameters(network) == conv_size(3, 32) + conv_size(32, 64) + dense == 1_070_794


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_cnns_of_the_paper(depth):
    filters = [128] * depth + [64] * depth + [32] * depth
    convs = sum(conv_size(i, o) for i, o in zip([3, *filters[:-1]], filters, strict=True))
    assert parameters(models.cnn((32, 32, 3), 10, depth)) == convs + (32 * 32 * 32 + 1) * 10


@pytest.mark.parametrize(
    ("network", "size"), [(models.resnet18, 11_689_512), (models.resnet34, 21_797_672)]
)
def test_resnets_have_the_size_that_torchvision_gives(network, size):
    network = network((224, 224, 3), 1000)
    assert parameters(network) == size
    params, stats = jax.eval_shape(network.init, jax.random.key(0))
    batch = jax.ShapeDtypeStruct((2, 224, 224, 3), jnp.float32)
    outputs, after = jax.eval_shape(network.apply, params, batch, stats)
    assert (outputs.shape, after) == ((2, 1000), stats)


def test_the_autoencoder_of_hinton_and_salakhutdinov():
    sizes = [784, 1000, 500, 250, 30, 250, 500, 1000, 784]
    dense = sum((i + 1) * o for i, o in itertools.pairwise(sizes))
    assert parameters(models.autoencoder((28, 28, 1))) == dense == 2_837_314


def test_the_transformer():
    d, context, characters = 64, 64, 96
    layer = 4 * d + (d + 1) * 3 * d + (d + 1) * d + (d + 1) * 4 * d + (4 * d + 1) * d
    ends = characters * d + context * d + 2 * d + (d + 1) * characters
    network = models.transformer((context, characters), characters)
    assert parameters(network) == ends + 2 * layer == 116_576


# ---- values ------------------------------------------------------------------------------------


def silu(x):
    return x / (1 + np.exp(-x))


def convolve(x, kernel, stride=1):
    """The definition: sums of shifted images, with zeros around."""
    size, reach = len(kernel), len(kernel) // 2
    height, width = x.shape[1:3]
    x = np.pad(x, [(0, 0), (reach, reach), (reach, reach), (0, 0)])
    return sum(
        x[:, i : i + height : stride, j : j + width : stride] @ kernel[i, j]
        for i in range(size)
        for j in range(size)
    )


def max_pool(x):
    height, width = x.shape[1:3]
    x = np.pad(x, [(0, 0), (1, 1), (1, 1), (0, 0)], constant_values=-np.inf)
    shifts = [x[:, i : i + height : 2, j : j + width : 2] for i in range(3) for j in range(3)]
    return np.max(shifts, axis=0)


def average_pool(x):
    return (x[:, ::2, ::2] + x[:, 1::2, ::2] + x[:, ::2, 1::2] + x[:, 1::2, 1::2]) / 4


def normalized(x, params, stats, train):
    """BatchNorm, and the running statistics after it."""
    batch = {"mean": x.mean(axis=(0, 1, 2)), "variance": x.var(axis=(0, 1, 2))}
    used = batch if train else stats
    x = (x - used["mean"]) / np.sqrt(used["variance"] + 1e-5)
    after = {name: 0.9 * stats[name] + 0.1 * batch[name] for name in stats}
    return x * params["scale"] + params["b"], after if train else stats


def residual_reference(params, x, stats, train):
    """A ResNet of two stages with one block each, for large images."""
    after = {"stem": None, "blocks": [{}, {}]}
    x = convolve(x, params["stem"]["w"], 2)
    x, after["stem"] = normalized(x, params["stem"], stats["stem"], train)
    x = max_pool(silu(x))
    for i, (block, before) in enumerate(zip(params["blocks"], stats["blocks"], strict=True)):
        new = after["blocks"][i]
        y = convolve(x, block["conv1"]["w"], 1 + i)
        y, new["conv1"] = normalized(y, block["conv1"], before["conv1"], train)
        y = convolve(silu(y), block["conv2"]["w"])
        y, new["conv2"] = normalized(y, block["conv2"], before["conv2"], train)
        if i == 1:
            x = convolve(x, block["shortcut"]["w"], 2)
            x, new["shortcut"] = normalized(x, block["shortcut"], before["shortcut"], train)
        x = silu(x + y)
    return x.mean(axis=(1, 2)) @ params["dense"]["w"] + params["dense"]["b"], after


def randomized(tree, seed):
    """Other positive numbers in all places, so that no zero or one hides a mistake."""
    rng = np.random.default_rng(seed)
    draw = lambda x: np.asarray(np.asarray(x) + rng.uniform(0.1, 0.5, x.shape), x.dtype)
    return jax.tree.map(draw, tree)


def doubles(tree):
    return jax.tree.map(lambda x: np.asarray(x, np.float64), tree)


def check_close(got, want):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-4, atol=1e-4), got, want)


@pytest.mark.parametrize("train", [True, False])
def test_residual_network(train):
    network = models.resnet((64, 66, 2), 3, blocks=(1, 1), width=4)
    params, stats = jax.jit(network.init)(jax.random.key(0))
    params, stats = randomized(params, 1), randomized(stats, 2)
    x = inputs_of((64, 66, 2), m=3)
    want, after = residual_reference(*doubles((params, x, stats)), train=train)
    if train:
        check_close(jax.jit(network.apply)(params, x, stats), (want, after))
    else:
        check_close(jax.jit(network.predict)(params, x, stats), want)


def test_statistics_find_those_of_the_data():
    """On one batch over and over, evaluation tends to what training does."""
    network = NETWORKS["resnet"]
    params, stats = jax.jit(network.init)(jax.random.key(0))
    x = inputs_of(IMAGE)
    apply, predict = jax.jit(network.apply), jax.jit(network.predict)
    before = predict(params, x, stats)
    for _ in range(150):
        outputs, stats = apply(params, x, stats)
    assert np.abs(before - outputs).max() > 0.1
    np.testing.assert_allclose(predict(params, x, stats), outputs, atol=1e-3)


def test_small_images_keep_their_size():
    small, _ = jax.eval_shape(NETWORKS["resnet"].init, jax.random.key(0))
    assert small["stem"]["w"].shape == (3, 3, 1, 8)
    large, _ = jax.eval_shape(models.resnet((64, 64, 1), 10).init, jax.random.key(0))
    assert large["stem"]["w"].shape == (7, 7, 1, 64)


def test_convnet_and_cnn():
    x = inputs_of(IMAGE)
    for name, pool in (("convnet", average_pool), ("cnn", lambda x: x)):
        params, stats = jax.jit(NETWORKS[name].init)(jax.random.key(0))
        params = randomized(params, 1)
        p, want = doubles((params, x))
        convs = [p["conv1"], p["conv2"]] if name == "convnet" else p["convs"]
        for layer in convs:
            want = pool(silu(convolve(want, layer["w"]) + layer["b"]))
        want = want.reshape(len(want), -1)
        if name == "convnet":
            want = silu(want @ p["dense1"]["w"] + p["dense1"]["b"])
        last = p["dense2"] if name == "convnet" else p["dense"]
        want = want @ last["w"] + last["b"]
        outputs = jax.jit(NETWORKS[name].predict)(params, x)
        np.testing.assert_allclose(outputs, want, rtol=2e-4, atol=1e-4)
        np.testing.assert_array_equal(jax.jit(NETWORKS[name].apply)(params, x, stats)[0], outputs)


def test_perceptrons():
    x = inputs_of(IMAGE)
    for name in ("linear", "mlp"):
        params, _ = jax.jit(NETWORKS[name].init)(jax.random.key(0))
        params = randomized(params, 1)
        *hidden, last = doubles(params)
        want = np.asarray(x, np.float64).reshape(len(x), -1)
        for layer in hidden:
            want = silu(want @ layer["w"] + layer["b"])
        want = want @ last["w"] + last["b"]
        np.testing.assert_allclose(
            jax.jit(NETWORKS[name].predict)(params, x), want, rtol=2e-4, atol=1e-4
        )
    assert len(hidden) == 2


def test_autoencoder():
    x = inputs_of(IMAGE)
    params = randomized(jax.jit(NETWORKS["autoencoder"].init)(jax.random.key(0))[0], 1)
    encoder, decoder = (doubles(params[part]) for part in ("encoder", "decoder"))
    affine = lambda layer, x: x @ layer["w"] + layer["b"]
    want = np.tanh(affine(encoder[0], np.asarray(x, np.float64).reshape(len(x), -1)))
    want = np.tanh(affine(decoder[0], affine(encoder[1], want)))  # the code between is linear
    want = affine(decoder[1], want)
    got = jax.jit(NETWORKS["autoencoder"].predict)(params, x)
    np.testing.assert_allclose(got, want, rtol=2e-4, atol=1e-4)


def text_of(m=3, seed=0):
    """Pieces of text as one-hot vectors."""
    letters = np.random.default_rng(seed).integers(TEXT[1], size=(m, TEXT[0]))
    return np.eye(TEXT[1], dtype=np.float32)[letters]


def attended(layer, x, heads):
    """Place by place and head by head: means with weights that are the softmax of products."""
    size = x.shape[-1] // heads
    queries, keys, values = np.split(x @ layer["queries"]["w"] + layer["queries"]["b"], 3, axis=-1)
    mixed = np.zeros_like(x)
    for place in range(x.shape[1]):
        for head in range(heads):
            part = slice(head * size, (head + 1) * size)
            before = slice(None), slice(place + 1), part
            products = np.einsum("md,mtd->mt", queries[:, place, part], keys[before])
            weights = np.exp(products / np.sqrt(size))
            weights /= weights.sum(axis=1, keepdims=True)
            mixed[:, place, part] = np.einsum("mt,mtd->md", weights, values[before])
    return mixed @ layer["mix"]["w"] + layer["mix"]["b"]


def test_transformer():
    params = randomized(jax.jit(NETWORKS["transformer"].init)(jax.random.key(0))[0], 1)
    p, x = doubles((params, text_of()))

    def norm(q, x):
        centered = x - x.mean(axis=-1, keepdims=True)
        return centered / np.sqrt(x.var(axis=-1, keepdims=True) + 1e-5) * q["scale"] + q["b"]

    x = x @ p["embedding"] + p["places"]
    for layer in p["layers"]:
        x = x + attended(layer, norm(layer["norm1"], x), heads=2)
        hidden = silu(norm(layer["norm2"], x) @ layer["dense1"]["w"] + layer["dense1"]["b"])
        x = x + hidden @ layer["dense2"]["w"] + layer["dense2"]["b"]
    want = norm(p["norm"], x) @ p["dense"]["w"] + p["dense"]["b"]
    got = jax.jit(NETWORKS["transformer"].predict)(params, text_of())
    np.testing.assert_allclose(got, want, rtol=2e-4, atol=1e-4)


# ---- contracts ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NETWORKS)
def test_init_is_a_function_of_the_key(name):
    one, again, other = (jax.jit(NETWORKS[name].init)(jax.random.key(i)) for i in (0, 0, 1))
    jax.tree.map(np.testing.assert_array_equal, one, again)
    kernels = lambda tree: [np.asarray(x) for x in jax.tree.leaves(tree) if x.ndim > 1]
    assert all((a != b).all() for a, b in zip(kernels(one), kernels(other), strict=True))
    # Each kernel has a key of its own, and the deviation of LeCun et al.
    for kernel in kernels(one):
        deviation = np.sqrt(1 / np.prod(kernel.shape[:-1]))
        assert abs(kernel.std() / deviation - 1) < 4 / np.sqrt(kernel.size)
    starts = [float(x.ravel()[0] / x.std()) for x in kernels(one)]
    assert len({round(s, 2) for s in starts}) == len(starts)


@pytest.mark.parametrize("name", NETWORKS)
def test_direction_descends(name):
    network = NETWORKS[name]
    params, stats = jax.jit(network.init)(jax.random.key(0))
    loss, x, y = proxlin.Logistic(), inputs_of(IMAGE), jnp.arange(6) % 10
    if name == "autoencoder":
        loss, y = proxlin.BinaryLogistic(), jax.nn.sigmoid(x.reshape(6, -1))
    elif name == "transformer":
        x, y = jnp.asarray(text_of()), jnp.argmax(text_of(seed=1), axis=-1)
    fn = proxlin.value_and_direction(network.apply, loss, has_aux=True)
    (value, info), d = jax.jit(fn)(params, x, y, stats)
    assert {leaf.dtype for leaf in jax.tree.leaves((params, stats, value, d, info.aux))} == {
        np.dtype("float32")
    }
    assert jax.tree.structure(info.aux) == jax.tree.structure(stats)
    assert info.slope > 0
    mean = jax.jit(lambda w: loss.value(network.apply(w, x, stats)[0], y).mean())
    short = jax.tree.map(lambda w, u: w - 0.01 * u, params, d)
    np.testing.assert_allclose(mean(params), value, rtol=1e-5)
    assert mean(short) < value


def test_direction_through_max_pooling():
    network = models.resnet((64, 64, 1), 3, blocks=(1,), width=2)
    params, stats = jax.jit(network.init)(jax.random.key(0))
    x, y = inputs_of((64, 64, 1), m=2), jnp.array([0, 2])
    fn = proxlin.value_and_direction(network.apply, proxlin.Logistic(), has_aux=True)
    (_, info), _ = jax.jit(fn)(params, x, y, stats)
    loss = lambda w: proxlin.Logistic().value(network.apply(w, x, stats)[0], y).mean()
    want = jax.jit(jax.grad(loss))(params)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-5), info.grad, want
    )
    assert info.slope > 0


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: models.convnet((64,), 10), r"convnet for inputs of shape \(64,\)"),
        (lambda: models.convnet((30, 32, 3), 10), "multiples of 4"),
        (lambda: models.cnn((64,), 10, 1), "choose linear or mlp"),
        (lambda: models.cnn(IMAGE, 10, 0), "cnn of depth 0: give 1, 2 or 3"),
        (lambda: models.resnet((64,), 10), "resnet for inputs of shape"),
        (lambda: models.resnet(IMAGE, 10, blocks=(1, 0)), "at least one block"),
        (lambda: models.transformer(IMAGE, 10), "transformer for inputs of shape .*'text'"),
        (lambda: models.transformer(TEXT, 10, width=8, heads=3), "width 8 with 3 heads"),
    ],
)
def test_what_cannot_be_built(make, message):
    with pytest.raises(UsageError, match=message):
        make()
