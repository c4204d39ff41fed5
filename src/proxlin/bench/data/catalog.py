"""The published datasets: their files, addresses and checksums.

The sha256 checksums are of the files without compression, so that repacked copies are valid too;
the MD5 checksums are of the downloads, as given by torchvision and the authors of CIFAR-10.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from proxlin.bench.data.files import KnownFile


class Download(NamedTuple):
    """A file on a server, and the known files it holds."""

    url: str
    size: int
    md5: str
    holds: tuple[str, ...]

    @property
    def name(self) -> str:
        """The last part of the address."""
        return self.url.rpartition("/")[2]


@dataclass(frozen=True)
class Source:
    """A dataset as it was published.

    Attributes:
        name: of the dataset.
        files: all of them, without compression.
        subfolder: the folder within the archive, which may or may not be kept.
        downloads: where to get them.
    """

    name: str
    files: tuple[KnownFile, ...]
    subfolder: str = ""
    downloads: tuple[Download, ...] = ()

    def __getitem__(self, name: str) -> KnownFile:
        return next(known for known in self.files if known.name == name)


def _idx(name: str, server: str, *sums: tuple[str, int, str]) -> Source:
    """Four IDX files: the sha256 of each; the size and the MD5 of its download."""
    names = (
        "train-images-idx3-ubyte",
        "train-labels-idx1-ubyte",
        "t10k-images-idx3-ubyte",
        "t10k-labels-idx1-ubyte",
    )
    sizes = (47_040_016, 60_008, 7_840_016, 10_008)
    rows = list(zip(names, sizes, sums, strict=True))
    return Source(
        name,
        tuple(KnownFile(file, size, sha256) for file, size, (sha256, _, _) in rows),
        downloads=tuple(
            Download(f"{server}/{file}.gz", packed, md5, (file,))
            for file, _, (_, packed, md5) in rows
        ),
    )


MNIST = _idx(
    "mnist",
    "https://ossci-datasets.s3.amazonaws.com/mnist",
    (
        "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
        9_912_422,
        "f68b3c2dcbeaaa9fbdd348bbdeb94873",
    ),
    (
        "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
        28_881,
        "d53e105ee54ea40749a09fcbcd1e9432",
    ),
    (
        "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
        1_648_877,
        "9fb629c4189551a2d022fa330f9573f3",
    ),
    (
        "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
        4_542,
        "ec29112dd5afa0611ce80d1b7f02629c",
    ),
)

FASHION_MNIST = _idx(
    "fashion-mnist",
    "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com",
    (
        "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
        26_421_880,
        "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
    ),
    (
        "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
        29_515,
        "25c81989df183df01b3e8a0aad5dffbe",
    ),
    (
        "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
        4_422_102,
        "bef4ecab320f06d8554ea6380940ec79",
    ),
    (
        "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
        5_148,
        "bb300cfdad3c16e7a12a480ee83cd310",
    ),
)

_CIFAR10_SUMS = {
    "data_batch_1.bin": "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
    "data_batch_2.bin": "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed",
    "data_batch_3.bin": "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67",
    "data_batch_4.bin": "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48",
    "data_batch_5.bin": "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add",
    "test_batch.bin": "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b",
}

CIFAR10 = Source(
    "cifar10",
    tuple(KnownFile(name, 30_730_000, sha256) for name, sha256 in _CIFAR10_SUMS.items()),
    subfolder="cifar-10-batches-bin",
    downloads=(
        Download(
            "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
            170_052_171,
            "c32a1d4ab5d03f1284b67883e8d87530",
            tuple(_CIFAR10_SUMS),
        ),
    ),
)

SOURCES = {source.name: source for source in (MNIST, FASHION_MNIST, CIFAR10)}
