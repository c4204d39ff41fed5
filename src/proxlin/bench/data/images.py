"""Images that do not fit in memory: folders of JPEG files, one folder for each class."""

from __future__ import annotations

import contextlib
import hashlib
import os
import pathlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Int, UInt8

from proxlin.bench.data.datasets import Batch, Dataset, epoch_rows, standardized
from proxlin.bench.data.files import Fault
from proxlin.bench.data.places import root
from proxlin.bench.errors import DataError

# The usual values for ImageNet: of its training images, with pixels scaled to [0, 1].
IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)

SIZE = 224
"""Height and width of a crop."""

SHORT_SIDE = 256
"""The short side of an image, in the pixels of the crop."""

MAX_PIXELS = 2**26
"""An image with more is rejected before it is decoded."""

_LAYOUT = (
    "train/ and val/ with one folder of JPEG files for each class (val/ sorted into the same "
    "class folders as train/), or just such class folders"
)


def load_imagenet(data_dir: pathlib.Path | None = None) -> Dataset:
    """ImageNet, or any folder of class folders of JPEG files.

    Training crops a square at random, testing crops the one in the middle; both are 7/8 of the
    short side and become 224 x 224 pixels. The sha256 is that of the sorted list of files, a line
    ``path<tab>bytes`` for each: a checksum of 150 GB would take longer than many runs.

    Raises:
        DataError: if the folder is missing or laid out differently.
    """
    base = root(data_dir)
    folder = next((f for f in (base / "imagenet", base) if is_image_folder(f)), None)
    if folder is None:
        raise DataError(
            f"imagenet is neither in {base / 'imagenet'} nor in {base}: expected {_LAYOUT}. "
            "`proxlin data fetch imagenet` says where to get it"
        )
    splits = list_splits(folder)
    train, test = splits[0], splits[-1]
    note = "" if len(splits) > 1 else "; one folder serves to train and to test"
    classes = len(train.classes)
    return Dataset(
        name="imagenet",
        description=f"{len(train):,} images of {classes:,} classes in {folder.name}/, "
        f"cropped to {SIZE} x {SIZE} pixels, each channel standardized{note}",
        classes=classes,
        shape=(SIZE, SIZE, 3),
        train=train,
        test=test,
        sha256=_listing_sha256(folder, splits),
        prepare=standardized(IMAGENET_MEAN, IMAGENET_STD),
    )


@dataclass(frozen=True, eq=False)
class Images:
    """A split of image files, decoded in advance by threads of grain.

    Attributes:
        folder: where the class folders are.
        classes: the names of the classes.
        names: the path of each image within the folder.
        targets: the class of each image.
        size: height and width of a crop.
    """

    folder: pathlib.Path
    classes: Sequence[str]
    names: Sequence[str]
    targets: Int[np.ndarray, " n"]
    size: int = SIZE

    def __len__(self) -> int:
        return len(self.names)

    def epoch(self, seed: int, epoch: int, batch_size: int, start: int = 0) -> Iterator[Batch]:
        """The full batches of one epoch, each image cropped at random; see ``Split``."""
        rows = epoch_rows(len(self), seed, epoch, batch_size, start)

        def corner(i: int) -> tuple[float, float]:
            # The key of the order, with a distant counter for each image.
            rng = np.random.Generator(np.random.Philox(key=[seed, epoch], counter=[0, 0, 0, 1 + i]))
            x, y = rng.random(2).tolist()
            return x, y

        return self._crops(rows.reshape(-1), corner, batch_size)

    def batches(self, batch_size: int, limit: int | None = None) -> Iterator[Batch]:
        """Each image once, cropped in the middle, in a fixed order; see ``Split``."""
        return self._crops(np.arange(len(self))[:limit], lambda i: (0.5, 0.5), batch_size)

    def broken(self) -> Iterator[tuple[pathlib.Path, str]]:
        """The images that cannot be decoded, and why."""

        def check(i: int) -> tuple[pathlib.Path, str]:
            path = self.folder / self.names[i]
            try:
                read_crop(path, self.size)
            except Fault as fault:
                return path, fault.reason
            return path, ""

        with _ahead(check, range(len(self)), buffer=256) as results:
            yield from (result for result in results if result[1])

    def _crops(
        self,
        rows: Int[np.ndarray, " r"],
        corner: Callable[[int], tuple[float, float]],
        batch_size: int,
    ) -> Iterator[Batch]:
        def crop(i: int) -> tuple[UInt8[np.ndarray, "size size 3"], np.int32]:
            return read_crop(self.folder / self.names[i], self.size, *corner(i)), self.targets[i]

        with _ahead(crop, rows.tolist(), 2 * batch_size, batch_size) as batches:
            yield from batches


@contextlib.contextmanager
def _ahead(
    function: Callable[[int], Any], rows: Sequence[int], buffer: int, batch_size: int | None = None
) -> Iterator[Iterator[Any]]:
    """The values of a function in order, computed by threads, up to ``buffer`` in advance."""
    import grain

    options = grain.ReadOptions(num_threads=os.cpu_count() or 1, prefetch_buffer_size=buffer)
    values = grain.MapDataset.source(rows).map(function).to_iter_dataset(options)
    with contextlib.closing(iter(values.batch(batch_size) if batch_size else values)) as iterator:
        yield iterator


def is_image_folder(folder: pathlib.Path) -> bool:
    """Whether there are ``train/`` and ``val/``, or folders with JPEG files."""
    if not folder.is_dir():
        return False
    if (folder / "train").is_dir() and (folder / "val").is_dir():
        return True
    return any(_jpegs(entry) for entry in folder.iterdir() if entry.is_dir())


def list_splits(folder: pathlib.Path) -> list[Images]:
    """The images in ``train/`` and ``val/``; or those of one folder.

    Raises:
        DataError: if there are no images, or ``val/`` has a class that ``train/`` does not have.
    """
    if not (folder / "train").is_dir():
        return [list_images(folder)]
    train = list_images(folder / "train")
    return [train, list_images(folder / "val", train.classes)]


def list_images(folder: pathlib.Path, classes: Sequence[str] | None = None) -> Images:
    """The images of a folder of class folders.

    They are shuffled, always in the same way, so that the first thousand cover all classes.

    Args:
        folder: where the class folders are.
        classes: the classes in the order of their labels; by default those found.

    Raises:
        DataError: if there are no images, or an unknown class.
    """
    found = sorted(entry.name for entry in folder.iterdir() if entry.is_dir())
    classes = found if classes is None else classes
    number = {name: i for i, name in enumerate(classes)}
    for name in found:
        if name not in number:
            raise DataError(f"{folder / name}: there is no class of this name to train on")
    names = [f"{name}/{file}" for name in found for file in _jpegs(folder / name)]
    if not names:
        raise DataError(f"{folder}: no JPEG files in class folders; expected {_LAYOUT}")
    order = np.random.Generator(np.random.Philox(key=0)).permutation(len(names))
    names = [names[i] for i in order]
    targets = np.array([number[name.partition("/")[0]] for name in names], np.int32)
    return Images(folder, classes, names, targets)


def read_crop(
    path: pathlib.Path, size: int, x: float = 0.5, y: float = 0.5
) -> UInt8[np.ndarray, "size size 3"]:
    """A square of an image, 7/8 as wide as its short side, in ``size`` x ``size`` pixels.

    Args:
        path: of a JPEG file.
        size: height and width of the result.
        x: where the square lies, from 0 at the left to 1 at the right.
        y: likewise, from the top.

    Raises:
        Fault: if the file is broken, or holds more than :data:`MAX_PIXELS`.
    """
    from PIL import Image

    try:
        # Folders of JPEG files may hold a PNG with the wrong suffix.
        with Image.open(path, formats=["JPEG", "PNG"]) as image:
            if image.width * image.height > MAX_PIXELS:
                raise Image.DecompressionBombError(f"{image.width} x {image.height} pixels")
            # The decoder may halve a large image, as long as its short side remains long enough.
            short = size * SHORT_SIDE // SIZE
            image.draft("RGB", (short, short))
            side = min(image.size) * SIZE / SHORT_SIDE
            left, top = x * (image.width - side), y * (image.height - side)
            square = (left, top, left + side, top + side)
            crop = image.convert("RGB").resize((size, size), Image.Resampling.BILINEAR, square)
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        limit = f"{MAX_PIXELS:,} pixels, the most that is allowed"
        reason = f"has more than {limit} ({error}); remove it"
        raise Fault(path, "altered", reason) from error
    except (OSError, SyntaxError, ValueError) as error:
        reason = f"broken image ({error}); replace or remove it"
        raise Fault(path, "altered", reason) from error
    return np.asarray(crop)


def _jpegs(folder: pathlib.Path) -> list[str]:
    return sorted(
        entry.name
        for entry in os.scandir(folder)
        if entry.name.lower().endswith((".jpeg", ".jpg")) and entry.is_file()
    )


def _listing_sha256(folder: pathlib.Path, splits: Sequence[Images]) -> str:
    paths = sorted(split.folder / name for split in splits for name in split.names)
    lines = (f"{path.relative_to(folder).as_posix()}\t{path.stat().st_size}\n" for path in paths)
    return hashlib.sha256("".join(lines).encode()).hexdigest()
