"""Folders of images: crops that can be had again, and broken files by their names."""

from __future__ import annotations

import struct
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image

from proxlin.bench import data
from proxlin.bench.data import images
from proxlin.bench.errors import DataError, UsageError

SIZE = 28  # of a crop: the short side is then 32


def gradient(width, height):
    """Red grows to the right, green to the bottom, both by one for each pixel."""
    y, x = np.mgrid[:height, :width]
    return np.stack([x, y, np.full_like(x, 128)], axis=-1).astype(np.uint8)


def save(path, width=48, height=32):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(gradient(width, height)).save(path, "JPEG", quality=100, subsampling=0)
    return path


@pytest.fixture
def folder(tmp_path):
    """Eleven images of three classes, wide and high."""
    for i in range(11):
        name = f"{'abc'[i % 3]}/{i}.{'jpg' if i % 2 else 'JPEG'}"
        save(tmp_path / "pictures" / name, *((48, 32) if i % 2 else (32, 40)))
    return tmp_path / "pictures"


@pytest.fixture
def split(folder):
    listed = images.list_images(folder)
    return images.Images(folder, listed.classes, listed.names, listed.targets, SIZE)


def corners(batch):
    """Where the crops begin, in pixels."""
    return [tuple(int(c) for c in image[0, 0, :2]) for image in batch]


def same(one, other):
    return len(one) == len(other) and all(
        np.array_equal(a, b)
        for x, y in zip(one, other, strict=True)
        for a, b in zip(x, y, strict=True)
    )


def test_the_crop_is_where_it_should_be(tmp_path):
    path = save(tmp_path / "a.jpg", 48, 32)
    picture = gradient(48, 32).astype(int)
    for (x, y), (left, top) in {(0, 0): (0, 0), (1, 1): (20, 4), (0.5, 0.5): (10, 2)}.items():
        crop = images.read_crop(path, SIZE, x, y).astype(int)
        expected = picture[top : top + SIZE, left : left + SIZE]
        assert np.abs(crop - expected).max() <= 3  # JPEG is not exact


def test_larger_images_are_scaled_down(tmp_path):
    path = save(tmp_path / "a.jpg", 192, 128)
    crop = images.read_crop(path, SIZE).astype(int)
    pixels = 9.5 + 4 * np.arange(SIZE)  # four of the image to one of the crop
    assert np.abs(crop[:, :, 1] - pixels[:, None]).max() <= 3
    assert np.abs(crop[:, :, 0] - (pixels + 32)[None]).max() <= 3


@pytest.mark.parametrize(("mode", "format"), [("L", "JPEG"), ("CMYK", "JPEG"), ("RGBA", "PNG")])
def test_images_of_other_kinds_become_red_green_and_blue(mode, format, tmp_path):
    path = tmp_path / "a.JPEG"
    Image.new("RGB", (40, 40), (90, 90, 90)).convert(mode).save(path, format)
    crop = images.read_crop(path, SIZE).astype(int)
    assert crop.shape == (SIZE, SIZE, 3) and np.abs(crop - 90).max() <= 2


def test_training_crops_vary_with_epoch_and_seed_and_can_be_had_again(split):
    epochs = {key: list(split.epoch(*key, 4)) for key in [(0, 0), (0, 1), (1, 0)]}
    found = set()
    for key, batches in epochs.items():
        assert [inputs.shape for inputs, _ in batches] == [(4, SIZE, SIZE, 3)] * 2
        assert same(batches, list(split.epoch(*key, 4)))
        found.add(tuple(corner for inputs, _ in batches for corner in corners(inputs)))
    assert len(found) == 3
    assert all(len(set(corners)) > 3 for corners in found)  # images of one epoch differ as well


def test_the_crop_of_an_image_depends_on_neither_step_nor_batch_size(split):
    one = {y.item(): x for x, y in split_by_one(split).epoch(3, 5, 1)}
    for inputs, targets in split_by_one(split).epoch(3, 5, 4):
        for image, i in zip(inputs, targets, strict=True):
            np.testing.assert_array_equal(image, one[int(i)][0])


def split_by_one(split):
    """The same images, each a class of its own."""
    numbers = np.arange(len(split), dtype=np.int32)
    return images.Images(split.folder, split.classes, split.names, numbers, SIZE)


def test_start_is_the_tail_and_decodes_nothing_else(split, monkeypatch):
    batches = list(split.epoch(0, 0, 2))
    read, lock, real = [], threading.Lock(), images.read_crop

    def spy(path, *arguments):
        with lock:
            read.append(path)
        return real(path, *arguments)

    monkeypatch.setattr(images, "read_crop", spy)
    assert same(list(split.epoch(0, 0, 2, start=3)), batches[3:])
    assert len(read) == len(set(read)) == 4
    assert list(split.epoch(0, 0, 2, start=5)) == []
    with pytest.raises(UsageError, match="batch size 12 for 11 examples"):
        next(split.epoch(0, 0, 12))


def test_evaluation_crops_the_middle_of_each_image_once(split):
    for limit, sizes in ((None, [4, 4, 3]), (6, [4, 2])):
        batches = list(split.batches(4, limit))
        assert [len(targets) for _, targets in batches] == sizes
        expected = [images.read_crop(split.folder / name, SIZE) for name in split.names[:limit]]
        assert np.array_equal(np.concatenate([inputs for inputs, _ in batches]), expected)
        targets = np.concatenate([targets for _, targets in batches])
        np.testing.assert_array_equal(targets, split.targets[:limit], strict=True)


def test_classes_are_numbered_by_name_and_mixed(split):
    assert split.classes == ["a", "b", "c"] and split.targets.dtype == np.int32
    assert ["abc"[i] for i in split.targets] == [name[0] for name in split.names]
    assert sorted(split.names) != list(split.names)
    assert set(split.targets[:6]) == {0, 1, 2}


def test_one_folder_serves_to_train_and_to_test(folder):
    dataset = data.load("imagenet", folder)
    assert "one folder serves to train and to test" in dataset.description
    assert (len(dataset.train), len(dataset.test), dataset.classes) == (11, 11, 3)
    inputs, _ = next(dataset.test.batches(2))
    prepared = jax.jit(dataset.prepare)(jnp.asarray(inputs))
    assert prepared.shape[1:] == dataset.shape == (224, 224, 3)
    blue = (128 / 255 - images.IMAGENET_MEAN[2]) / images.IMAGENET_STD[2]
    np.testing.assert_allclose(prepared[..., 2], np.full((2, 224, 224), blue), atol=0.1)


def test_two_folders_share_the_numbers_of_the_classes(folder, tmp_path):
    folder.rename(tmp_path / "train")
    save(tmp_path / "val" / "c" / "x.jpg")
    dataset = data.load("imagenet", tmp_path)
    assert (len(dataset.train), len(dataset.test), dataset.classes) == (11, 1, 3)
    assert dataset.test.targets.tolist() == [2] and "one folder" not in dataset.description
    save(tmp_path / "val" / "d" / "x.jpg")
    with pytest.raises(DataError, match="val/d: there is no class of this name to train on"):
        data.load("imagenet", tmp_path)


def test_a_flat_val_folder_is_explained(folder, tmp_path):
    folder.rename(tmp_path / "train")
    save(tmp_path / "val" / "x.jpg")
    with pytest.raises(DataError, match="val: no JPEG files in class folders; expected train/ and"):
        data.load("imagenet", tmp_path)


def test_the_sum_tells_a_changed_listing(folder, tmp_path):
    before = data.load("imagenet", folder).sha256
    assert before == data.load("imagenet", folder).sha256
    folder.rename(tmp_path / "imagenet")
    assert data.load("imagenet", tmp_path).sha256 == before  # wherever the folder lies
    (tmp_path / "imagenet" / "a" / "0.JPEG").write_bytes(b"other")
    assert data.load("imagenet", tmp_path).sha256 != before


# ---- faults --------------------------------------------------------------------------------------


def resized(content, width, height):
    """The same JPEG file with another size in its header."""
    at = content.index(b"\xff\xc0") + 5
    return content[:at] + struct.pack(">HH", height, width) + content[at + 4 :]


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda content: b"no image", "altered: broken image .*cannot identify"),
        (lambda content: b"", "altered: broken image .*cannot identify"),
        (lambda content: content[: len(content) // 2], "altered: broken image .*truncated"),
        (
            lambda content: resized(content, 65000, 65000),
            "altered: has more than 67,108,864",
        ),
        (
            lambda content: resized(content, 9000, 9000),
            r"more than .* allowed \(9000 x 9000 pixels\)",
        ),
    ],
)
def test_a_broken_image_is_named(damage, message, split, folder):
    path = folder / split.names[0]
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(DataError, match=f"{path}: .*{message}.*remove it"):
        list(split.batches(4))
    with pytest.raises(DataError, match=f"{path}: .*{message}"):
        list(split.epoch(0, 0, 11))
    whole, broken = data.verify(folder)
    assert (whole.path, whole.message) == (folder, "11 images, 1 broken")
    assert (broken.path, broken.state, broken.dataset) == (path, "altered", "imagenet")


def test_an_image_that_vanished_is_named(split, folder):
    (folder / split.names[3]).unlink()
    with pytest.raises(DataError, match=f"{split.names[3]}: .*No such file"):
        list(split.batches(4))


def test_an_epoch_may_be_left_in_the_middle(split):
    before = threading.active_count()
    batches = split.epoch(0, 0, 2)
    next(batches)
    batches.close()
    for thread in threading.enumerate():
        if thread.name.startswith("grain"):
            thread.join(10)
    assert threading.active_count() <= before
