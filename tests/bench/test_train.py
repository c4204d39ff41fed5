"""A run is recorded, survives what happens to it, and ends with the right status."""

from __future__ import annotations

import errno
import json
import math
import os
import pathlib
import signal

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from proxlin.bench import checkpoints, methods, records, storage, tasks
from proxlin.bench.errors import StorageError, UsageError
from proxlin.bench.evaluation import evaluator
from proxlin.bench.loop import Report, State, Trainer
from proxlin.bench.records import Config
from proxlin.bench.start import with_defaults
from proxlin.bench.train import train
from tests.bench.toys import BATCH, STEPS, At, Told

HERE = pathlib.Path(__file__).parent / "toys.py"


def config(method="armijo-spl", task="task", epochs=4, **more):
    return Config(f"{HERE}:{task}", method, batch_size=BATCH, epochs=epochs, **more)


def final_state(run):
    """The parameters and all else that the last checkpoint holds."""
    asked = Config(**run.config)
    task = tasks.load(asked.task)
    like = methods.build(asked.method, task, asked.options).init(*task.init(asked.seed))
    return checkpoints.restore(run.folder / "checkpoints", like).state


def assert_same_run(one, other):
    """Bit by bit, but for the times."""
    untimed = lambda run: [
        {k: v for k, v in line.items() if k != "seconds"} for line in run.metrics
    ]
    assert untimed(one) == untimed(other)
    pair = [jax.tree.leaves(final_state(run)) for run in (one, other)]
    assert all(np.array_equal(a, b, equal_nan=True) for a, b in zip(*pair, strict=True))


# ---- what a record says ------------------------------------------------------------------------


def test_a_record_is_what_was_run(tmp_path):
    run = train(config(evals_per_epoch=2), tmp_path)
    assert run.status == "finished" and run.meta["steps"] == 4 * STEPS
    assert [line["step"] for line in run.metrics] == [0, 3, 5, 8, 10, 13, 15, 18, 20]
    task = tasks.load(run.config["task"])
    state = final_state(run)
    x, y = task.dataset.test.inputs, task.dataset.test.targets
    outputs = task.network.predict(state.params, x, ())
    last = run.metrics[-1]
    assert last["test_loss"] == pytest.approx(float(task.loss.value(outputs, y).mean()), rel=1e-5)
    assert last["test_accuracy"] == np.mean(np.argmax(np.asarray(outputs), -1) == y)
    assert last["test_loss"] < run.metrics[0]["test_loss"]
    # two inner steps of the dual: three VJPs and two JVPs at each step
    assert (last["jvps"], last["vjps"]) == (2 * 20, 3 * 20)
    assert last["eta"] == 1.0 and last["gamma"] == 1.0 and 0 < last["residual"] < 1
    assert run.meta["task"]["parameters"] == 6
    assert run.meta["environment"]["jax"] == jax.__version__
    assert run.meta["hash"] == with_defaults(config(evals_per_epoch=2)).hash


def test_the_order_is_that_of_the_seed_and_the_start_too(tmp_path):
    first = train(config("sgd", seed=1), tmp_path / "a")
    again = train(config("sgd", seed=1), tmp_path / "b")
    other = train(config("sgd", seed=2), tmp_path / "c")
    assert_same_run(first, again)
    assert first.metrics[0]["test_loss"] != other.metrics[0]["test_loss"]


def test_evaluation_counts_each_example_once():
    task = tasks.load("digits-linear")
    params, stats = task.init(0)
    loss, accuracy = evaluator(task)(State(params, stats, ()), task.dataset.test.batches(125))
    outputs = task.network.predict(params, task.dataset.prepare(task.dataset.test.inputs), stats)
    values = task.loss.value(outputs, jnp.asarray(task.dataset.test.targets))
    assert len(values) == 450 and loss == pytest.approx(float(values.mean()), rel=1e-5)
    assert accuracy == pytest.approx(
        np.mean(np.argmax(np.asarray(outputs), 1) == task.dataset.test.targets)
    )


def test_equal_configurations_have_equal_names():
    spelt = with_defaults(config("spl", options={"gamma": "1", "inner": "2"}))
    assert spelt.hash == with_defaults(config("spl")).hash
    assert spelt.hash != with_defaults(config("spl", options={"gamma": 2.0})).hash


def test_what_has_ended_is_not_run_again(tmp_path):
    first = train(config(), tmp_path)
    before = (first.folder / "run.json").stat().st_mtime_ns
    watch = Told()
    assert train(config(), tmp_path, resume=True, watch=watch).metrics == first.metrics
    assert watch.lines == ["already finished, nothing run; --rerun to repeat"]
    assert (first.folder / "run.json").stat().st_mtime_ns == before


# ---- signals and resuming ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "number"),
    [
        ("armijo-spl", signal.SIGINT),
        ("trust-region", signal.SIGTERM),
        ("adam", signal.SIGINT),
        ("shampoo", signal.SIGTERM),
        ("spl-adafactor", signal.SIGTERM),
    ],
)
def test_a_signal_saves_and_a_resumed_run_is_the_same(tmp_path, method, number):
    straight = train(config(method), tmp_path / "straight")
    stop = At(7, lambda: os.kill(os.getpid(), number))
    stopped = train(config(method), tmp_path / "stopped", watch=stop)
    assert stopped.status == "interrupted" and stopped.meta["signal"] == number
    assert stopped.exit_code == 128 + number and straight.exit_code == 0
    assert stopped.meta["steps"] == 7
    resumed = train(config(method), tmp_path / "stopped", resume=True)
    assert resumed.status == "finished" and resumed.meta["resumed"] == 1
    assert_same_run(straight, resumed)


def test_a_second_signal_ends_it_at_once(tmp_path):
    def twice():
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)

    # What Python does by itself, unless it was started in the background of a shell.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            train(config(), tmp_path, watch=At(3, twice))
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)
    straight = train(config(), tmp_path / "straight")
    assert_same_run(straight, train(config(), tmp_path, resume=True))


def test_a_run_that_was_begun_is_not_overwritten(tmp_path):
    train(config(), tmp_path, watch=At(3, lambda: os.kill(os.getpid(), signal.SIGTERM)))
    with pytest.raises(UsageError, match="--resume"):
        train(config(), tmp_path)


def test_a_run_goes_on_after_its_end(tmp_path):
    method = "auto"  # which has an average and much else to restore
    straight = train(config(method), tmp_path / "straight")
    short = train(config(method, epochs=2), tmp_path)
    train(config(method, epochs=3, seed=1), tmp_path)  # another run
    watch = Told()
    longer = train(config(method), tmp_path, resume=True, watch=watch)
    assert watch.lines == [f"continues {short.folder}, which is shorter", "resumed at step 10"]
    assert longer.folder != short.folder and longer.meta["resumed"] == 1
    assert_same_run(straight, longer)
    assert records.load_run(short.folder).metrics == short.metrics


def test_there_may_be_nothing_to_resume(tmp_path):
    watch = Told()
    train(config(epochs=5), tmp_path)
    run = train(config(), tmp_path, resume=True, watch=watch)
    assert watch.lines == ["nothing to resume; starts at step 0"] and run.meta["resumed"] == 0


# ---- damaged files -----------------------------------------------------------------------------


def stopped_run(tmp_path):
    """A run that was killed after some checkpoints."""

    class Killed(Exception):
        pass

    def kill():
        raise Killed

    with pytest.raises(Killed):
        train(config(), tmp_path, checkpoint_seconds=0, watch=At(13, kill))
    return config_folder(tmp_path)


def config_folder(root):
    return with_defaults(config()).folder(root)


def damage(checkpoint):
    largest = max((p for p in checkpoint.rglob("*") if p.is_file()), key=lambda p: p.stat().st_size)
    content = bytearray(largest.read_bytes())
    content[len(content) // 2] ^= 1
    largest.write_bytes(content)


def test_a_damaged_checkpoint_gives_way_to_the_one_before(tmp_path):
    straight = train(config(), tmp_path / "straight")
    folder = stopped_run(tmp_path)
    found = sorted(path.stem for path in (folder / "checkpoints").glob("*.json"))
    assert [int(step) for step in found] == [10, 11, 12]  # the newest three
    damage(folder / "checkpoints" / found[-1])
    watch = Told()
    resumed = train(config(), tmp_path, resume=True, watch=watch)
    assert watch.lines == ["resumed at step 11; checkpoint 12 is damaged"]
    assert_same_run(straight, resumed)
    assert len(resumed.meta["damaged"]) == 1 and found[-1] in resumed.meta["damaged"][0]


def test_damage_to_all_checkpoints_is_an_error_that_names_them(tmp_path):
    folder = stopped_run(tmp_path)
    found = sorted(path.stem for path in (folder / "checkpoints").glob("*.json"))
    for step in found:
        damage(folder / "checkpoints" / step)
    with pytest.raises(StorageError) as caught:
        train(config(), tmp_path, resume=True)
    assert all(step in str(caught.value) for step in found)


def test_what_a_kill_leaves_behind_is_removed(tmp_path):
    straight = train(config(), tmp_path / "straight")
    folder = stopped_run(tmp_path)
    leftover = folder / "checkpoints" / "0000000013.orbax-checkpoint-tmp"
    leftover.mkdir()
    unsealed = folder / "checkpoints" / "0000000009"  # of a step that is not saved again
    (unsealed / "array").mkdir(parents=True)
    with (folder / "metrics.jsonl").open("a") as stream:
        stream.write('{"epoch": 2.8, "step": 14, "sec')
    assert_same_run(straight, train(config(), tmp_path, resume=True))
    assert not leftover.exists() and not unsealed.exists()


def test_a_broken_record_is_named(tmp_path):
    run = train(config(), tmp_path)
    lines = (run.folder / "metrics.jsonl").read_text().splitlines()
    (run.folder / "metrics.jsonl").write_text("\n".join([lines[0], lines[1][:20], lines[2]]))
    with pytest.raises(StorageError, match=r"line 2 of .*metrics\.jsonl is broken"):
        records.load_run(run.folder)
    (run.folder / "run.json").write_text("{")
    with pytest.raises(StorageError, match=r"run\.json cannot be read"):
        records.load_run(run.folder)


def test_a_folder_of_another_run_is_rejected(tmp_path):
    run = train(config(), tmp_path)
    meta = json.loads((run.folder / "run.json").read_text())
    meta["config"]["seed"] = 5
    records.write_run(run.folder, meta)
    with pytest.raises(StorageError, match="differ in seed"):
        train(config(), tmp_path, resume=True)


def test_other_data_is_rejected(tmp_path):
    folder = stopped_run(tmp_path)
    meta = json.loads((folder / "run.json").read_text())
    meta["task"]["sha256"] = "0" * 64
    records.write_run(folder, meta)
    with pytest.raises(StorageError, match="other data"):
        train(config(), tmp_path, resume=True)


# ---- folders and disks -------------------------------------------------------------------------


def test_two_runs_do_not_share_a_folder(tmp_path):
    folder = config_folder(tmp_path)
    folder.mkdir(parents=True)
    with storage.lock(folder), pytest.raises(StorageError, match=f"process {os.getpid()} on"):
        train(config(), tmp_path)
    assert train(config(), tmp_path).status == "finished"  # the lock is gone


def test_a_folder_that_cannot_be_written_is_reported_before_any_step(tmp_path):
    (tmp_path / "file").write_text("in the way")
    never = At(1, lambda: pytest.fail("a step was taken"))
    with pytest.raises(StorageError, match=r"cannot write to .*runs.*: .*file is a file; name a"):
        train(config(), tmp_path / "file" / "runs", watch=never)


def test_a_folder_without_permission_is_not_a_matter_of_bytes(tmp_path):
    denied = OSError(errno.EROFS, "Read-only file system")
    with pytest.raises(StorageError, match=r"Read-only file system.*choose another") as caught:
        with storage.explained(tmp_path, 10**6):
            raise denied
    assert "bytes" not in str(caught.value)


def test_a_disk_without_room_is_reported_before_any_step(tmp_path, monkeypatch):
    usage = storage.shutil.disk_usage(tmp_path)._replace(free=1000)
    monkeypatch.setattr(storage.shutil, "disk_usage", lambda path: usage)
    never = At(1, lambda: pytest.fail("a step was taken"))
    with pytest.raises(
        StorageError, match=r"1,000 free bytes, and the run needs about 1,0\d\d,\d\d\d"
    ):
        train(config(), tmp_path, watch=never)


def test_a_disk_that_fills_up_keeps_what_was_saved(tmp_path, monkeypatch):
    straight = train(config(), tmp_path / "straight")

    def full(descriptor):
        raise OSError(errno.ENOSPC, "No space left on device")

    fill = At(9, lambda: monkeypatch.setattr(storage.os, "fsync", full))
    with pytest.raises(StorageError, match="No space left on device"):
        train(config(), tmp_path, checkpoint_seconds=0, watch=fill)
    monkeypatch.undo()
    folder = config_folder(tmp_path)
    assert not list(folder.glob(".*.tmp")), "a half-written file is left"
    assert records.load_run(folder).status == "running"
    assert_same_run(straight, train(config(), tmp_path, resume=True))


# ---- how runs end ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "method", ["armijo-spl", "spl", "model-step", "spl-adam", "adam", "momentum"]
)
def test_a_batch_with_nan_is_rejected_and_named(tmp_path, method):
    run = train(config(method, "one_bad_row", epochs=3), tmp_path)
    assert run.status == "finished"
    assert run.metrics[-1]["rejected"] == 3 == len(run.meta["rejected_steps"])  # once in each epoch
    epochs = [(step - 1) // STEPS for step in run.meta["rejected_steps"]]
    assert epochs == [0, 1, 2]
    assert math.isfinite(run.metrics[-1]["test_loss"])
    for leaf in jax.tree.leaves(final_state(run).params):
        assert np.isfinite(leaf).all()


@pytest.mark.parametrize("method", ["armijo-spl", "adam"])
def test_nothing_but_nan_is_divergence(tmp_path, method):
    run = train(config(method, "all_bad"), tmp_path)
    assert run.status == "diverged" and run.meta["steps"] == 5
    assert "5 consecutive rejected steps" in run.meta["message"]
    assert np.isfinite(jax.tree.leaves(final_state(run).params)[0]).all()  # the last good ones


def fake(step):
    """A method that does as told."""

    def method(task):
        return Trainer(lambda params, stats: State(params, stats, jnp.zeros(())), step)

    return method


def report(value=1.0, rejected=False, finite=True):
    nan, none = jnp.float32(np.nan), jnp.int32(0)
    return Report(
        value=jnp.float32(value),
        jvps=none,
        vjps=none,
        eta=nan,
        gamma=nan,
        residual=nan,
        rejected=jnp.bool_(rejected),
        finite=jnp.bool_(finite),
    )


def test_no_step_found_is_a_stall(tmp_path, new_methods):
    idle = lambda state, inputs, targets: (state, report(rejected=True))
    new_methods("idle", fake(idle))
    run = train(config("idle", epochs=9), tmp_path)
    assert run.status == "stalled" and run.meta["steps"] == 20


def test_infinite_losses_end_a_run(tmp_path, new_methods):
    def leap(state, inputs, targets):
        return state._replace(params=state.params * 1e38), report()

    new_methods("leap", fake(leap))
    run = train(config("leap"), tmp_path)
    assert run.status == "diverged" and run.metrics[-1]["test_loss"] is None


@pytest.mark.parametrize(
    "error", [MemoryError(), jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: out of memory")]
)
def test_memory_that_is_exhausted_is_a_status(tmp_path, new_methods, error):
    calls = []

    def greedy(state, inputs, targets):
        calls.append(1)
        if len(calls) > 3:
            raise error
        return state, report()

    new_methods("greedy", fake(greedy))
    run = train(config("greedy"), tmp_path)
    assert run.status == "oom" and "--batch-size" in run.meta["message"]
    assert run.meta["steps"] == 2  # one call was to compile


def test_memory_may_be_exhausted_by_the_first_step(tmp_path, new_methods):
    def greedy(state, inputs, targets):
        raise MemoryError

    new_methods("greedy", fake(greedy))
    run = train(config("greedy"), tmp_path)
    assert run.status == "oom" and run.meta["steps"] == 0


def test_any_other_error_is_recorded_and_raised(tmp_path, new_methods):
    def broken(state, inputs, targets):
        raise ZeroDivisionError("of the user's")

    new_methods("broken", fake(broken))
    with pytest.raises(ZeroDivisionError):
        train(config("broken"), tmp_path)
    run = records.load_run(with_defaults(config("broken")).folder(tmp_path))
    assert run.status == "failed" and run.meta["message"] == "ZeroDivisionError: of the user's"


def test_a_budget_of_seconds_is_kept(tmp_path):
    run = train(config(epochs=10_000, max_seconds=0.05), tmp_path)
    assert run.status == "budget" and run.metrics[-1]["seconds"] >= 0.05
    before_last = run.metrics[-2]
    assert before_last["seconds"] < 0.05 and run.meta["steps"] < 10_000 * STEPS


def test_steps_are_limited(tmp_path):
    run = train(config(max_steps=3), tmp_path)
    assert run.status == "finished" and [line["step"] for line in run.metrics] == [0, 3]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"batch_size": 41}, "only 40 training examples"),
        ({"epochs": 0}, "epochs must be positive"),
        ({"max_steps": 0}, "max_steps must be at least 1"),
        ({"seed": -1}, "seed must not be negative"),
        ({"method": "newton"}, "there is no method 'newton'"),
        ({"options": {"gama": 1}}, "has no option 'gama'; it has gamma, inner"),
        ({"options": {"inner": "two"}}, "must be of type int, got 'two'"),
        ({"options": {"subproblem": "both"}}, "must be one of"),
        (
            {"options": {"gamma": "0"}},
            "option gamma of method 'armijo-spl' must be positive, got 0",
        ),
        ({"options": {"gamma": math.nan}}, "must be positive, got nan"),
        ({"options": {"inner": -1}}, "must not be negative, got -1"),
        ({"options": {"curvature_size": 0}}, "method 'armijo-spl': curvature_size=0: give a"),
        ({"method": "lbfgs", "options": {"memory": 0}}, "method 'lbfgs': memory_size must be"),
        ({"task": "digits-vit"}, "there is no task 'digits-vit'"),
        ({"task": f"{HERE}:nothing"}, "has no 'nothing'"),
        ({"task": f"{HERE}:BATCH"}, "is int; it must be a Task"),
        ({"task": "no/such/file.py:task"}, "there is no file"),
        ({"task": "no_such_module:task"}, "there is no module"),
    ],
)
def test_bad_input_is_rejected_before_any_work(tmp_path, change, message):
    with pytest.raises(UsageError, match=message):
        train(Config(**{**config().as_dict(), **change}), tmp_path)
    assert not list(tmp_path.iterdir())
