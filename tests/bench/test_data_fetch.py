"""Downloads: from a server on this machine, which sends what it should not."""

from __future__ import annotations

import functools
import gzip
import hashlib
import http.server
import io
import tarfile
import threading

import pytest

from proxlin.bench import data
from proxlin.bench.data import readers
from proxlin.bench.data.catalog import Download
from proxlin.bench.errors import DataError, StorageError, UsageError
from tests.bench.data_cases import cifar10_files, mnist_files, source, write


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *arguments):
        pass


@pytest.fixture
def server(tmp_path):
    """A folder, and its address."""
    folder = tmp_path / "server"
    folder.mkdir()
    handler = functools.partial(Quiet, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as running:
        thread = threading.Thread(target=running.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield folder, f"http://127.0.0.1:{running.server_port}"
        finally:
            running.shutdown()
            thread.join()


def download(server, name, content, holds):
    """Puts a file on the server."""
    folder, address = server
    (folder / name).write_bytes(content)
    return Download(f"{address}/{name}", len(content), hashlib.md5(content).hexdigest(), holds)


def mnist(server):
    contents, _ = mnist_files()
    downloads = tuple(
        download(server, f"{name}.gz", gzip.compress(content), (name,))
        for name, content in contents.items()
    )
    return contents, source("mnist", contents, downloads=downloads)


def tar(members):
    """An archive of (member, content) pairs; a member may be just a name."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w:gz") as archive:
        for given, content in members:
            member = tarfile.TarInfo(given) if isinstance(given, str) else given
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return file.getvalue()


def cifar10(server, contents, archive):
    packed = download(server, "cifar.tar.gz", archive, tuple(contents))
    return source("cifar10", contents, subfolder="cifar-10-batches-bin", downloads=(packed,))


def listing(folder):
    return sorted(path.name for path in folder.rglob("*"))


def test_what_is_fetched_can_be_loaded_and_is_not_fetched_again(server, tmp_path):
    contents, small = mnist(server)
    seen = []
    fetch = lambda: data.fetch("mnist", tmp_path, lambda *a: seen.append(a), {"mnist": small})
    folder = fetch()
    assert folder == tmp_path / "mnist"
    assert listing(folder) == sorted(f"{name}.gz" for name in contents)
    assert len(readers.load_mnist(small, folder).train) == 7
    for each in small.downloads:  # the last call for each file tells that all of it is there
        assert [call for call in seen if call[0] == each.name][-1] == (
            each.name,
            each.size,
            each.size,
        )
    seen.clear()
    (server[0] / "train-images-idx3-ubyte.gz").unlink()  # the server has lost it; we have not
    (folder / "t10k-labels-idx1-ubyte.gz").unlink()
    assert fetch() == folder
    assert {call[0] for call in seen} == {"t10k-labels-idx1-ubyte.gz"}


def test_damaged_files_are_put_aside_and_replaced(server, tmp_path):
    _, small = mnist(server)
    folder = write(tmp_path / "mnist", {"train-images-idx3-ubyte": b"damaged"})
    assert data.fetch("mnist", folder, sources={"mnist": small}) == folder
    assert {state.state for state in data.verify(folder, {"mnist": small})} == {"ok"}
    assert (folder / "train-images-idx3-ubyte.bad").read_bytes() == b"damaged"


def test_files_of_another_dataset_with_the_same_names_are_left_alone(server, tmp_path):
    _, small = mnist(server)
    other, _ = mnist_files(seed=1)
    folder = write(tmp_path / "other", other)
    assert data.fetch("mnist", folder, sources={"mnist": small}) == folder / "mnist"
    assert {name: (folder / name).read_bytes() for name in other} == other
    assert len(data._from_files(small, readers.load_mnist, folder).train) == 7


def test_a_kept_folder_of_the_archive_is_completed(server, tmp_path):
    contents = cifar10_files()
    small = cifar10(server, contents, tar(contents.items()))
    nested = tmp_path / "cifar10" / "cifar-10-batches-bin"
    write(nested, dict(list(contents.items())[:3]))
    assert data.fetch("cifar10", tmp_path, sources={"cifar10": small}) == nested
    assert listing(nested) == sorted(contents)


def test_of_an_archive_only_the_known_files_are_taken(server, tmp_path):
    contents = cifar10_files()
    members = [(f"cifar-10-batches-bin/{name}", content) for name, content in contents.items()]
    stray = [
        ("../outside.bin", b"x"),
        ("/absolute.bin", b"x"),
        ("cifar-10-batches-bin/readme", b"x"),
    ]
    small = cifar10(server, contents, tar([*stray, *members, *stray]))
    folder = data.fetch("cifar10", tmp_path / "data", sources={"cifar10": small})
    assert listing(tmp_path / "data") == sorted(["cifar10", *contents])
    assert {name: (folder / name).read_bytes() for name in contents} == contents


def link(name, kind, target):
    member = tarfile.TarInfo(name)
    member.type, member.linkname = kind, target
    return member


@pytest.mark.parametrize(
    ("first", "message"),
    [
        (
            link("a/data_batch_1.bin", tarfile.SYMTYPE, "/etc/passwd"),
            "not a regular file of 12,292",
        ),
        (
            link("a/data_batch_1.bin", tarfile.LNKTYPE, "test_batch.bin"),
            "not a regular file of 12,292",
        ),
        (link("a/data_batch_1.bin", tarfile.FIFOTYPE, ""), "not a regular file of 12,292"),
        ("a/other.bin", "no data_batch_1.bin in it"),
    ],
)
def test_an_archive_with_something_else_of_a_known_name_is_put_aside(
    first, message, server, tmp_path
):
    contents = cifar10_files()
    rest = list(contents.items())[1:]
    small = cifar10(server, contents, tar([(first, b""), *rest]))
    with pytest.raises(DataError, match=f"cifar.tar.gz: altered: .*{message}.*cifar.tar.gz.bad"):
        data.fetch("cifar10", tmp_path, sources={"cifar10": small})
    assert not (tmp_path / "cifar10" / "data_batch_1.bin").exists()
    assert (tmp_path / "cifar10" / "cifar.tar.gz.bad").is_file()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda content: content + b"x", "not a regular file of 12,292 bytes"),
        (lambda content: bytes(len(content)), "its sha256 is"),
    ],
)
def test_an_archive_with_another_content_is_put_aside(change, message, server, tmp_path):
    contents = cifar10_files()
    changed = {**contents, "test_batch.bin": change(contents["test_batch.bin"])}
    small = cifar10(server, contents, tar(changed.items()))
    with pytest.raises(DataError, match=f"cifar.tar.gz: altered: .*{message}"):
        data.fetch("cifar10", tmp_path, sources={"cifar10": small})
    assert not (tmp_path / "cifar10" / "test_batch.bin").exists()


def test_a_damaged_archive_is_put_aside(server, tmp_path):
    contents = cifar10_files()
    small = cifar10(server, contents, tar(contents.items())[:-2000])
    with pytest.raises(DataError, match=r"cifar.tar.gz: altered: damaged archive"):
        data.fetch("cifar10", tmp_path, sources={"cifar10": small})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda sent: sent[:-1] + b"?", "altered: its MD5 is not"),
        (lambda sent: sent[:-1], "truncated: .* bytes of"),
        (lambda sent: sent + bytes(10_000_000), "altered: more than the .* bytes expected"),
    ],
)
def test_a_download_that_is_not_what_was_published_is_put_aside(change, message, server, tmp_path):
    _, small = mnist(server)
    name = "train-images-idx3-ubyte.gz"
    path = server[0] / name
    published = path.read_bytes()
    path.write_bytes(change(published))
    with pytest.raises(DataError, match=f"http.*{name}: {message}.*{name}.bad, try again"):
        data.fetch("mnist", tmp_path, sources={"mnist": small})
    assert listing(tmp_path / "mnist") == [f"{name}.bad"]
    assert (tmp_path / "mnist" / f"{name}.bad").stat().st_size <= len(published)


def test_a_server_without_the_file_is_named(server, tmp_path):
    _, small = mnist(server)
    (server[0] / "train-images-idx3-ubyte.gz").unlink()
    with pytest.raises(DataError, match=r"http.*ubyte.gz: cannot be fetched: 404"):
        data.fetch("mnist", tmp_path, sources={"mnist": small})
    assert listing(tmp_path / "mnist") == []


def test_a_folder_that_cannot_be_written_is_named(server, tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(
        StorageError, match="file/mnist: cannot be written: Not a directory"
    ) as caught:
        data.fetch("mnist", tmp_path / "file", sources={"mnist": mnist(server)[1]})
    assert caught.value.exit_code == 5


def test_what_cannot_be_fetched_is_explained(tmp_path):
    with pytest.raises(
        DataError, match=r"register, at https://image-net.org.*train/<class>/\*.JPEG"
    ):
        data.fetch("imagenet", tmp_path)
    with pytest.raises(
        UsageError, match="cannot fetch 'digits'; choose one of mnist, fashion-mnist"
    ):
        data.fetch("digits", tmp_path)
