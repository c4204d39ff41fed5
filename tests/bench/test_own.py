"""A task of one's own: trained, changed and trained again, compared, drawn, loaded and used."""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys

import jax.numpy as jnp
import numpy as np
import pytest
from typer.testing import CliRunner

import proxlin
from proxlin.bench import cli, load, sources, sweep, tasks
from proxlin.bench.errors import StorageError, UsageError
from proxlin.bench.records import Config, load_run
from proxlin.bench.start import with_defaults
from proxlin.bench.train import train
from tests.pages import run_blocks

ROOT = pathlib.Path(__file__).parent.parent.parent

HELPER = "def apply(w, x):\n    return x @ w\n"
MINE = """
import jax
import jax.numpy as jnp
import numpy as np
import proxlin
from proxlin.bench.tasks import own
from net_of_mine import apply

rng = np.random.default_rng(0)
labels = np.arange(60, dtype=np.int32) % 3
inputs = (rng.normal(size=(60, 3)) + 3 * np.eye(3)[labels]).astype(np.float32)
first = 40

iris = own(
    "iris",
    init=lambda key: 0.1 * jax.random.normal(key, (3, 3), np.float32),
    model=apply,
    loss=proxlin.Logistic(),
    train=(inputs[:first], labels[:first]),
    test=(inputs[first:], labels[first:]),
)
"""
SWEEP = """
[smoke]
task = "mine.py:iris"
batch_size = 8
epochs = 2
runs = [{ method = "spl", gamma = [0.1, 1.0] }, { method = "adam" }]
"""


@pytest.fixture
def place(tmp_path):
    """A folder with a task, what it imports, and a sweep."""
    (tmp_path / "mine.py").write_text(MINE)
    (tmp_path / "net_of_mine.py").write_text(HELPER)
    (tmp_path / "own.toml").write_text(SWEEP)
    return tmp_path


@pytest.fixture
def proxlin_(place, monkeypatch):
    """The command, called from the folder of the task."""
    monkeypatch.chdir(place)
    return lambda *arguments: CliRunner().invoke(cli.app, [str(a) for a in arguments])


def config(place, method="spl", **more):
    return Config(**{"task": f"{place}/mine.py:iris", "method": method, "batch_size": 8, **more})


def change(path, before, after):
    text = path.read_text()
    assert before in text
    path.write_text(text.replace(before, after))


# ---- which run it is ---------------------------------------------------------------------------


def test_a_new_users_walk(place, proxlin_):
    """Trained, changed and trained again; compared, drawn and reported; loaded and used."""
    common = ["train", "--task", "mine.py:iris", "--method", "sgd", "--batch-size", 8, "--json"]
    common += ["--epochs", 2]
    first = json.loads(proxlin_(*common).stdout)
    assert first["last"]["test_accuracy"] is not None  # unasked
    change(place / "mine.py", "first = 40", "first = 32")
    done = proxlin_(*common)
    second = json.loads(done.stdout)
    assert "the task has changed since earlier runs" in done.stderr
    assert second["folder"] != first["folder"] and second["last"] != first["last"]
    assert load_run(place / second["folder"]).meta["task"]["train"] == 32
    done = proxlin_(*common)
    assert json.loads(done.stdout) == second
    assert "already finished, nothing run; --rerun to repeat" in done.stderr

    done = proxlin_("sweep", "own.toml")
    assert "3 of 3 runs have ended; `proxlin figure own.toml` draws them" in done.stdout
    drawn = proxlin_("figure", "own.toml")
    assert drawn.exit_code == 0 and "wrote own.svg from 3 runs" in drawn.stdout, drawn.stderr
    drawn = proxlin_("figure", "--runs", "runs")
    assert "wrote runs.svg from 4 runs" in drawn.stdout  # not the one before the change
    told = json.loads(proxlin_("report", "--json").stdout)
    assert list(told["figures"]) == ["mine.py:iris"] and len(told["runs"]) == 5
    page = (place / "report.html").read_text()
    assert page.count("<svg") == 1 and "of the paper" not in page

    trained = load(place / second["folder"])
    test = trained.task.dataset.test
    right = np.argmax(trained.predict(test.inputs), axis=1) == test.targets
    assert np.mean(right) == pytest.approx(second["last"]["test_accuracy"])


USE = """
import sys
import numpy as np
import proxlin
from proxlin.bench import load

assert proxlin.__file__.startswith(sys.argv[2]), proxlin.__file__
trained = load(sys.argv[1])
test = trained.task.dataset.test
print(np.mean(trained.predict(test.inputs).argmax(axis=1) == test.targets))
"""


@pytest.mark.slow
def test_the_walk_from_an_installed_wheel(place, monkeypatch):
    """Outside the repository, with the blocks of the README before it."""
    site = str(place / "site")
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", site]
    subprocess.run([*install, str(ROOT)], check=True, cwd=place)
    monkeypatch.setenv("PYTHONPATH", site)
    (place / "use.py").write_text(USE)

    def python(*arguments):
        done = subprocess.run(
            [sys.executable, *map(str, arguments)],
            capture_output=True,
            text=True,
            check=False,
            cwd=place,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    run_blocks(ROOT / "README.md", place)
    train = ["-m", "proxlin.bench", "train", "--task", "mine.py:iris", "--batch-size", 8, "--json"]
    first = json.loads(python(*train))
    change(place / "mine.py", "first = 40", "first = 32")
    second = json.loads(python(*train))
    assert second["folder"] != first["folder"] and second["last"] != first["last"]
    for command in (["sweep", "own.toml"], ["figure", "own.toml"], ["figure"], ["report"]):
        python("-m", "proxlin.bench", *command)
    assert (place / "own.svg").exists() and (place / "runs.svg").exists()
    assert "mine.py:iris" in (place / "report.html").read_text()
    used = python("use.py", second["folder"], site)
    assert float(used) == pytest.approx(second["last"]["test_accuracy"])


@pytest.mark.parametrize(
    ("file", "before", "after", "changes"),
    [
        ("mine.py", "0.1 * jax", "0.2 * jax", True),
        ("net_of_mine.py", "x @ w", "2 * x @ w", True),
        ("own.toml", "epochs = 2", "epochs = 3", False),
    ],
)
def test_a_task_is_what_its_files_and_data_are(place, file, before, after, changes):
    old = with_defaults(config(place))
    change(place / file, before, after)
    assert (with_defaults(config(place)).hash != old.hash) == changes


def test_a_changed_file_is_imported_anew(place):
    outputs = lambda: tasks.load(f"{place}/mine.py:iris").network.predict(np.eye(3), np.eye(3))
    np.testing.assert_array_equal(outputs(), np.eye(3))
    change(place / "net_of_mine.py", "x @ w", "2 * x @ w")
    np.testing.assert_array_equal(outputs(), 2 * np.eye(3))


def test_the_data_are_part_of_it(place):
    change(place / "mine.py", "rng = np.random.default_rng(0)", "rng = SEED")
    text = (place / "mine.py").read_text()
    versions = set()
    for seed in (0, 1):
        (place / "mine.py").write_text(text.replace("SEED", f"np.random.default_rng({seed})"))
        versions.add(tasks.load(f"{place}/mine.py:iris").dataset.sha256)
    assert len(versions) == 2


def test_where_a_file_is_does_not_matter(place, monkeypatch):
    there = with_defaults(config(place))
    monkeypatch.chdir(place)
    here = with_defaults(config("."))
    assert here.task != there.task and here.hash == there.hash


def test_packages_of_the_users_are_read_but_not_installed_ones(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    package = tmp_path / "ours_of_mine"
    package.mkdir()
    (package / "__init__.py").write_text("from .data import load\nimport numpy.linalg, os.path\n")
    (package / "data.py").write_text("from . import net\nload = net\n")
    (package / "net.py").write_text("from proxlin import auto\n")
    found = sources._files("ours_of_mine")
    assert found == {
        "ours_of_mine": package / "__init__.py",
        "ours_of_mine.data": package / "data.py",
        "ours_of_mine.net": package / "net.py",
    }


def test_tasks_of_the_bench_have_the_names_they_had():
    """Those of the committed records."""
    asked = Config(
        "cifar10-convnet",
        "spl",
        {"curvature_size": None, "gamma": 1.0, "inner": 2, "subproblem": "dual"},
        batch_size=256,
        epochs=3,
        evals_per_epoch=2,
        train_examples=2000,
    )
    assert asked.hash.startswith("dc15925ed9") and "version" not in asked.as_dict()


def test_a_run_is_repeated_on_request(place):
    run = train(config(place), place / "runs")
    (run.folder / "metrics.jsonl").write_text("")
    again = train(config(place), place / "runs", rerun=True)
    assert again.folder == run.folder
    untimed = lambda run: [line["test_loss"] for line in run.metrics]
    assert untimed(again) == untimed(run) != []
    with pytest.raises(UsageError, match="give one of them"):
        train(config(place), place / "runs", rerun=True, resume=True)


# ---- sweeps ------------------------------------------------------------------------------------


def test_files_of_tasks_are_looked_for_from_the_sweep(place, monkeypatch):
    monkeypatch.chdir(place.parent)
    relative = pathlib.Path(place.name) / "own.toml"
    configs = sweep.load(str(relative), "smoke")
    assert {c.task for c in configs} == {str(relative.parent / "mine.py:iris")}


def test_a_sweep_without_its_task_is_an_error(place, proxlin_):
    (place / "mine.py").unlink()
    for command in ("sweep", "figure"):
        done = proxlin_(command, "own.toml")
        assert done.exit_code == 2 and "there is no file mine.py" in done.stderr
    assert not (place / "runs").exists()


def test_the_advice_of_a_sweep_works(place, proxlin_):
    done = proxlin_("sweep", "own.toml", "--out", "my runs")
    assert "`proxlin figure own.toml --runs 'my runs'`" in done.stdout
    drawn = proxlin_("figure", "own.toml", "--runs", "my runs", "--json")
    assert {row["method"] for row in json.loads(drawn.stdout)} == {"SPL", "Adam"}
    assert cli.training._drawing("all", "paper", pathlib.Path("runs")) == "proxlin report runs"


@pytest.mark.parametrize(
    ("loss", "targets", "score"),
    [
        (proxlin.Logistic(), np.array([0, 1]), tasks.accuracy),
        (proxlin.Sparsemax(), np.array([[0.2, 0.8], [1, 0]], np.float32), tasks.accuracy),
        (proxlin.Hinge(), np.array([0, 1]), tasks.accuracy),
        (proxlin.BinaryLogistic(), np.array([[0.0], [1]]), tasks.binary_accuracy),
        (proxlin.BinaryLogistic(), np.array([[0.3], [1]]), None),  # probabilities
        (proxlin.BinaryLogistic(), np.array([[0, 1], [1, 1]]), None),  # pixels
        (proxlin.Squared(), np.array([[0.0], [1]]), None),
    ],
)
def test_losses_of_classification_have_an_accuracy(loss, targets, score):
    both = (np.eye(2), targets)
    made = tasks.own("t", init=lambda k: 0, model=lambda w, x: x, loss=loss, train=both, test=both)
    assert made.score is score
    if score is tasks.accuracy:
        right = score(jnp.array([[0, 1.0], [0, 1]]), jnp.array(targets))
        np.testing.assert_array_equal(right, targets if targets.ndim == 1 else [1, 0])


# ---- what was trained --------------------------------------------------------------------------


def test_the_average_is_what_is_evaluated(place, monkeypatch):
    run = train(config(place, "auto", epochs=4), place / "runs")
    monkeypatch.chdir("/")  # the record knows where the file is
    trained = load(run.folder)
    assert trained.metrics == run.metrics and trained.step == 20
    assert not np.array_equal(trained.params, trained.averaged)
    np.testing.assert_array_equal(trained.params, trained.state.params)
    test = trained.task.dataset.test
    loss = np.mean(trained.task.loss.value(trained.predict(test.inputs), test.targets))
    assert loss == pytest.approx(run.metrics[-1]["test_loss"], rel=1e-5)
    averaged = proxlin.eval_params(trained.state.method, trained.params)
    np.testing.assert_array_equal(trained.averaged, averaged)


def test_what_cannot_be_loaded_says_why(place):
    run = train(config(place), place / "runs")
    task = tasks.load(run.config["task"])
    change(place / "net_of_mine.py", "x @ w", "2 * x @ w")
    with pytest.warns(UserWarning, match="has changed since the run"):
        load(run.folder)
    (place / "mine.py").unlink()
    with pytest.raises(UsageError, match=r"there is no file .*give load\(..., task=...\)"):
        load(run.folder)
    assert load(run.folder, task=task).task is task
    for path in (run.folder / "checkpoints").glob("*.json"):
        path.unlink()
    with pytest.raises(StorageError, match="its parameters were not saved"):
        load(run.folder, task=task)
    with pytest.raises(StorageError, match="cannot be read"):
        load(place)


# ---- scalars -----------------------------------------------------------------------------------


def scalars(folder):
    """What TensorBoard would show: (name, step) -> value; a later file voids the steps it has."""
    from tensorboardX.proto.event_pb2 import Event

    found: dict[tuple[str, int], float] = {}
    for path in sorted(folder.glob("events.*")):
        content = path.read_bytes()
        while content:
            size = int.from_bytes(content[:8], "little")
            event, content = Event.FromString(content[12 : 12 + size]), content[16 + size :]
            if event.HasField("session_log"):
                found = {key: x for key, x in found.items() if key[1] < event.step}
            found |= {(value.tag, event.step): value.simple_value for value in event.summary.value}
    return found


def test_scalars_are_those_of_the_record_also_of_a_resumed_run(place, proxlin_):
    asked = ["train", "--task", "mine.py:iris", "--batch-size", 8, "--tensorboard", "--json"]
    told = json.loads(proxlin_(*asked, "--epochs", 2).stdout)
    run = load_run(place / told["folder"])
    found = scalars(run.folder)
    for line in run.metrics:
        for name in ("loss", "accuracy"):
            value = line[f"test_{name}"]
            assert found[f"test/{name}", line["step"]] == pytest.approx(value, rel=1e-6)
    assert {step for name, step in found if name == "batch/loss"} == set(range(1, 11))
    assert found["step/gamma", 3] > 0 and found["step/rejected", 3] == 0


def test_scalars_need_their_package(place, proxlin_, monkeypatch):
    real = cli.training.Scalars.__init__.__globals__["importlib"].util.find_spec
    absent = lambda name, *more: None if name == "tensorboardX" else real(name, *more)
    monkeypatch.setattr("importlib.util.find_spec", absent)
    done = proxlin_("train", "--task", "digits-linear", "--tensorboard")
    assert done.exit_code == 2 and "pip install 'proxlin[tensorboard]'" in done.stderr
