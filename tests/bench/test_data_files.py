"""Published files: read back as written, and rejected by name if they are not as published."""

from __future__ import annotations

import ast
import gzip
import pathlib
import tracemalloc

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from proxlin.bench import data
from proxlin.bench.data import catalog, files, readers
from proxlin.bench.errors import DataError
from tests.bench.data_cases import cifar10_files, idx, mnist_files, source, write

FOLDER = pathlib.Path("anywhere")


@pytest.mark.parametrize("packed", [False, True])
def test_idx_files_are_read_back(packed, tmp_path):
    contents, arrays = mnist_files()
    folder = write(tmp_path, contents, packed)
    dataset = readers.load_mnist(source("mnist", contents), folder)
    for split, (images, labels) in (
        (dataset.train, arrays["train"]),
        (dataset.test, arrays["t10k"]),
    ):
        [(inputs, targets)] = split.batches(100)
        np.testing.assert_array_equal(inputs, images[..., None], strict=True)
        np.testing.assert_array_equal(targets, labels.astype(np.int32), strict=True)
    prepared = jax.jit(dataset.prepare)(jnp.asarray(inputs))
    assert prepared.shape[1:] == dataset.shape == (28, 28, 1)
    np.testing.assert_allclose(prepared, inputs / np.float32(255), rtol=1e-6, strict=True)


def test_cifar10_files_are_read_back(tmp_path):
    contents = cifar10_files()
    dataset = readers.load_cifar10(source("cifar10", contents), write(tmp_path, contents))
    records = [np.frombuffer(content, np.uint8).reshape(-1, 3073) for content in contents.values()]
    train, test = np.concatenate(records[:-1]), records[-1]
    for split, expected in ((dataset.train, train), (dataset.test, test)):
        [(inputs, targets)] = split.batches(100)
        np.testing.assert_array_equal(targets, expected[:, 0].astype(np.int32), strict=True)
        for channel in range(3):  # one plane after the other, row by row
            plane = expected[:, 1 + 1024 * channel : 1 + 1024 * (channel + 1)]
            np.testing.assert_array_equal(inputs[..., channel].reshape(-1, 1024), plane)


def test_standardized_pixels_differ_from_pixels_by_the_mean_and_the_deviation():
    prepare = readers.standardized(readers.CIFAR10_MEAN, readers.CIFAR10_STD)
    pixels = np.random.default_rng(0).integers(256, size=(2, 32, 32, 3), dtype=np.uint8)
    prepared = jax.jit(prepare)(jnp.asarray(pixels))
    back = np.asarray(prepared) * np.array(readers.CIFAR10_STD) + np.array(readers.CIFAR10_MEAN)
    assert prepared.dtype == jnp.float32
    np.testing.assert_allclose(255 * back, pixels, atol=1e-3)


def test_the_catalog_adds_up():
    """Sizes follow from the shapes, each file has one download, and no sum is there twice."""
    for name in ("mnist", "fashion-mnist"):
        sizes = [known.size for known in catalog.SOURCES[name].files]
        assert sizes == [16 + 60_000 * 28**2, 8 + 60_000, 16 + 10_000 * 28**2, 8 + 10_000]
    assert {known.size for known in catalog.CIFAR10.files} == {10_000 * (1 + 3 * 32**2)}
    every = catalog.SOURCES.values()
    for each in every:
        held = [name for download in each.downloads for name in download.holds]
        assert held == [known.name for known in each.files]
    sums = [known.sha256 for each in every for known in each.files]
    sums += [download.md5 for each in every for download in each.downloads]
    assert len(set(sums)) == len(sums) and {len(s) for s in sums} == {64, 32}


# ---- faults --------------------------------------------------------------------------------------


def altered(content):
    return content[:-1] + bytes([content[-1] ^ 1])


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (altered, "altered: its sha256 is .*, not "),
        (lambda content: content[:100], "truncated: 100 bytes of 5,504"),
        (lambda content: content + b"more", "altered: more than the 5,504 bytes expected"),
        (lambda content: None, "missing"),
    ],
)
def test_a_file_that_is_not_as_published_is_named(damage, message, packed, tmp_path, monkeypatch):
    contents, _ = mnist_files()
    name = "train-images-idx3-ubyte"
    faulty = {key: damage(value) if key == name else value for key, value in contents.items()}
    folder = tmp_path / "mnist"
    write(folder, {key: value for key, value in faulty.items() if value is not None}, packed)
    small = source("mnist", contents)
    monkeypatch.setitem(
        data.DATASETS, "mnist", lambda at: data._from_files(small, readers.load_mnist, at)
    )
    with pytest.raises(DataError, match=f"{name}.*: {message}.*`proxlin data fetch mnist`"):
        data.load("mnist", tmp_path)
    states = {file.path.name.removesuffix(".gz"): file for file in data.verify(folder, {"": small})}
    assert [states[key].state for key in contents] == [message.split(":")[0], "ok", "ok", "ok"]


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda packed: b"not gzip at all", "altered: damaged gzip"),
        (lambda packed: packed[:10] + b"\xff" * 50 + packed[60:], "altered: damaged gzip"),
        (lambda packed: packed[:-8] + bytes(8), "altered: damaged gzip"),
        (lambda packed: packed[: len(packed) // 2], "truncated: .* bytes of 300,000"),
    ],
)
def test_a_damaged_gzip_is_named(damage, message, tmp_path):
    content = np.random.default_rng(0).bytes(300_000)
    path = tmp_path / "file.gz"
    path.write_bytes(damage(gzip.compress(content)))
    with pytest.raises(files.Fault, match=f"{path}: {message}"):
        files.read(path, len(content))


def test_a_gzip_bomb_is_stopped_at_the_known_size(tmp_path):
    path = tmp_path / "bomb.gz"
    path.write_bytes(gzip.compress(bytes(50_000_000)))
    assert path.stat().st_size < 100_000
    tracemalloc.start()
    try:
        with pytest.raises(
            files.Fault, match=r"bomb.gz: altered: more than the 1,000 bytes expected"
        ):
            files.read(path, 1000)
        assert tracemalloc.get_traced_memory()[1] < 5_000_000
    finally:
        tracemalloc.stop()


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    with pytest.raises(files.Fault, match="unreadable: Is a directory"):
        files.read(tmp_path, 10)


@pytest.mark.parametrize(
    ("content", "axes", "message"),
    [
        (
            idx(np.zeros((2, 3, 3))),
            1,
            "not an IDX file .* 1 axes: it starts with 00000803, not 00000801",
        ),
        (b"\0\0\x08", 3, "not an IDX file"),
        (idx(np.zeros((2, 3, 3)))[:-1], 3, "33 bytes, but its header says 34"),
        (bytes((0, 0, 8, 3)) + b"\xff" * 12 + b"x", 3, "17 bytes, but its header says 79,228,162,"),
    ],
)
def test_an_idx_header_that_lies_is_rejected(content, axes, message):
    with pytest.raises(DataError, match=f"anywhere: {message}"):
        readers.parse_idx(FOLDER, content, axes)


def test_images_without_labels_are_rejected(tmp_path):
    contents, _ = mnist_files()
    contents["train-labels-idx1-ubyte"] = idx(np.zeros(6))
    with pytest.raises(DataError, match="7 images of train, 6 labels"):
        readers.load_mnist(source("mnist", contents), write(tmp_path, contents))


def test_a_part_of_a_cifar10_record_is_rejected():
    with pytest.raises(DataError, match="anywhere: 3,074 bytes are not a whole number of records"):
        readers.parse_cifar10(FOLDER, bytes(3074))


def test_nothing_is_unpickled_or_unpacked_to_names_of_an_archive():
    room = pathlib.Path(data.__file__).parent
    for path in sorted(room.rglob("*.py")):
        tree = ast.parse(path.read_text())
        names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
        names |= {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
        names |= {
            alias.name for n in ast.walk(tree) if isinstance(n, ast.Import) for alias in n.names
        }
        assert not names & {"pickle", "Unpickler", "extractall", "extract", "fromfile", "eval"}, (
            path
        )
        calls = [ast.unparse(n.func) for n in ast.walk(tree) if isinstance(n, ast.Call)]
        assert "np.load" not in calls, path


# ---- where data lies, and what lies there --------------------------------------------------------


@pytest.mark.parametrize(
    "place", ["", "cifar10", "cifar10/cifar-10-batches-bin", "cifar-10-batches-bin"]
)
def test_a_dataset_is_found_in_its_folder_or_in_the_one_given(place, tmp_path):
    contents = cifar10_files()
    small = source("cifar10", contents, subfolder="cifar-10-batches-bin")
    write(tmp_path / place, contents)
    dataset = data._from_files(small, readers.load_cifar10, tmp_path)
    assert (len(dataset.train), len(dataset.test)) == (20, 4)
    assert dataset.sha256 == readers.manifest_sha256(small)
    states = data.verify(tmp_path, {"cifar10": small})
    assert [state.path for state in states] == [tmp_path / place / name for name in contents]
    assert {state.state for state in states} == {"ok"}


def test_verify_tells_datasets_with_the_same_names_apart(tmp_path):
    one, other = mnist_files(seed=0)[0], mnist_files(seed=1)[0]
    sources = {"mnist": source("mnist", one), "fashion-mnist": source("fashion-mnist", other)}
    write(tmp_path / "a", other)
    write(tmp_path / "b", one, packed=True)
    states = data.verify(tmp_path, sources)
    assert [(s.dataset, s.path.parent.name, s.state) for s in states] == (
        [("fashion-mnist", "a", "ok")] * 4 + [("mnist", "b", "ok")] * 4
    )
    broken = write(tmp_path / "fashion-mnist", {name: b"" for name in one})
    assert {(s.dataset, s.state) for s in data.verify(broken, sources)} == {
        ("fashion-mnist", "truncated")
    }


def test_verify_rejects_a_folder_without_data(tmp_path):
    with pytest.raises(
        DataError, match="no dataset found; known are mnist, fashion-mnist, cifar10"
    ):
        data.verify(tmp_path)
    with pytest.raises(DataError, match="no such folder"):
        data.verify(tmp_path / "nowhere")
