"""ResNet18 on a folder of images at 224 x 224, at full width."""

from __future__ import annotations

import math

import numpy as np
import pytest
from PIL import Image

from proxlin.bench.records import Config
from proxlin.bench.train import train


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    """Two classes, vertical and horizontal stripes, in JPEGs of several sizes."""
    root = tmp_path_factory.mktemp("data") / "imagenet"
    rng = np.random.default_rng(0)
    for name, axis in (("vertical", 1), ("horizontal", 0)):
        (root / name).mkdir(parents=True)
        for i in range(4):
            height, width = rng.integers(230, 320, size=2)
            position = np.indices((height, width))[axis]
            stripes = np.where(position // 16 % 2 == 0, 220, 30)
            noisy = np.clip(
                stripes[..., None] + rng.normal(scale=20, size=(height, width, 3)), 0, 255
            )
            Image.fromarray(noisy.astype(np.uint8)).save(root / name / f"{i}.JPEG")
    return root.parent


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "options"),
    [("spl", {"gamma": 0.1}), ("sgd", {"stepsize": 0.05}), ("auto", {})],
)
def test_real_steps(tmp_path, images, method, options):
    config = Config("imagenet-resnet18", method, options, batch_size=4, epochs=2, train_examples=4)
    run = train(config, tmp_path, data_dir=images)
    assert run.status == "finished" and run.meta["steps"] == 4
    assert run.meta["task"]["parameters"] == 11_689_512 - 998 * 513  # two classes, not a thousand
    last = run.metrics[-1]
    assert last["rejected"] == 0 and math.isfinite(last["test_loss"])
    assert last["train_loss"] != run.metrics[0]["train_loss"]
    if method == "spl":
        assert (last["jvps"], last["vjps"]) == (2 * 4, 3 * 4)
