"""Figures from records that nobody ran: what is chosen, what is shown, what is said."""

from __future__ import annotations

import itertools
import json
import re

import pytest
from matplotlib.text import Text

from proxlin.bench import figures, methods
from proxlin.bench.errors import StorageError, UsageError
from proxlin.bench.figures.selection import trouble_of
from proxlin.bench.figures.specs import STYLES
from tests.bench.made_up import run, runs_of

PRIMAL, SGD = {"subproblem": "primal"}, {"stepsize": 0.1}
HEADERS = {".svg": b"<?xml", ".png": b"\x89PNG\r\n", ".pdf": b"%PDF"}

# The keys of the panels without task and batch size, and those of the curves in each.
LAYOUTS = {
    "drop-in": (["sgd", "momentum", "adam", "adafactor"], ["gradient", "prox-linear"]),
    "primal-vs-dual": ([], ["dual", "primal"]),
    "stepsize": (["spl", "sgd", "momentum", "adam", "adafactor"], []),
    "inner-iterations": ([], [1, 4]),
    "batch-size": ([], [64, 256]),
    "inner-by-batch": ([], [1, 4]),
    "resnet-imagenet": ([], ["spl", "armijo-spl", "sgd", "momentum", "adam"]),
    **dict.fromkeys(
        ("cnn-short", "cnn-medium", "cnn-long"),
        ([], ["spl", "armijo-spl", "sgd", "momentum", "adam", "shampoo", "kfac"]),
    ),
}


def stepsizes(curve):
    return [setting.runs[0].config["options"]["stepsize"] for setting in curve.settings]


def only_curve(runs, name="comparison"):
    (panel,) = figures.select(name, runs).panels
    (curve,) = panel.curves
    return curve


def texts(drawn):
    return [text.get_text() for text in drawn.findobj(Text)]


def legend(drawn, panel=0):
    return [text.get_text() for text in drawn.subfigs[panel].legends[0].get_texts()]


def lines(axes, marker="None"):
    return [line for line in axes.lines if line.get_marker() == marker]


# ---- which setting is the best -----------------------------------------------------------------


def test_settings_are_ranked_by_accuracy():
    accuracies = {0.001: 0.5, 0.01: 0.9, 0.1: 0.7, 1.0: 0.8}
    runs = [run("sgd", {"stepsize": s}, accuracy=a) for s, a in accuracies.items()]
    for order in itertools.permutations(runs):
        assert stepsizes(only_curve(order)) == [0.01, 1.0, 0.1, 0.001]


def test_the_median_over_seeds_decides():
    lucky = [
        run("sgd", {"stepsize": 1.0}, accuracy=a, seed=s) for s, a in enumerate((0.99, 0.6, 0.5))
    ]
    steady = [run("sgd", {"stepsize": 0.1}, accuracy=0.7, seed=s) for s in range(3)]
    curve = only_curve(lucky + steady)
    assert stepsizes(curve) == [0.1, 1.0]
    assert curve.settings[1].final("test_accuracy") == pytest.approx(0.6)


@pytest.mark.parametrize("bad", [{"status": "diverged"}, {"losses": (2.0, 1.0, 2.5)}])
def test_what_diverged_comes_last_however_accurate(bad):
    good = [run("sgd", {"stepsize": 0.1}, accuracy=0.3, seed=s) for s in range(2)]
    one = [
        run("sgd", {"stepsize": 1.0}, accuracy=0.99, seed=0),
        run("sgd", {"stepsize": 1.0}, accuracy=0.99, seed=1, **bad),
    ]
    curve = only_curve(one + good)
    assert stepsizes(curve) == [0.1, 1.0]
    assert curve.settings[1].label() == "SGD, stepsize 1 (diverged: 1 of 2 seeds)"


@pytest.mark.parametrize("accuracy", [None, 0.9])
def test_the_loss_decides_where_accuracies_do_not(accuracy):
    losses = {0.01: (2.0, 0.3), 0.1: (2.0, 0.1), 1.0: (2.0, 0.2)}
    runs = [run("sgd", {"stepsize": s}, accuracy=accuracy, losses=x) for s, x in losses.items()]
    assert stepsizes(only_curve(runs)) == [0.1, 1.0, 0.01]


@pytest.mark.parametrize(
    ("record", "trouble"),
    [
        ({}, ""),
        ({"status": "budget"}, ""),
        ({"losses": (2.0, 3.0, 2.0)}, ""),
        ({"losses": (2.0, 1.0, 2.1)}, "diverged"),
        ({"losses": (2.0, 1.0, None)}, "diverged"),
        ({"losses": (None, 1.0)}, "diverged"),
        ({"losses": ()}, "diverged"),
        ({"status": "diverged"}, "diverged"),
        ({"status": "stalled"}, "stalled"),
        ({"status": "oom", "losses": ()}, "out of memory"),
        ({"status": "interrupted"}, "interrupted"),
    ],
)
def test_trouble(record, trouble):
    assert trouble_of(run("sgd", SGD, **record)) == trouble


def test_a_run_cut_short_says_so():
    label = lambda **record: only_curve([run("sgd", SGD, **record)]).settings[0].label()
    assert label(epochs=2, max_steps=100) == "SGD, stepsize 0.1"  # more than there are
    assert label(epochs=30, max_steps=20) == "SGD, stepsize 0.1 (first 20 steps)"
    assert label(epochs=30, max_seconds=2, status="budget").endswith("(first 20 steps)")
    assert label(epochs=30, max_steps=20, status="diverged").endswith("(diverged)")


def test_band_is_median_and_range():
    losses = [(2.0, 1.0), (2.0, 0.5), (4.0, 0.9)]
    runs = [
        run("sgd", SGD, losses=x, seconds=t, seed=s)
        for s, (x, t) in enumerate(zip(losses, (1.0, 50.0, 2.0), strict=True))
    ]
    band = only_curve(runs).settings[0].band("train_loss", "seconds")
    assert [list(part) for part in band] == [[0, 2], [2, 0.9], [2, 0.5], [4, 1]]


def test_band_ends_where_a_seed_ends():
    whole = run("sgd", SGD, losses=(2.0, 1.5, 1.0, 0.5))
    torn = run("sgd", SGD, losses=(2.0, 1.5, None, None), status="diverged", seed=1)
    setting = only_curve([whole, torn]).settings[0]
    assert list(setting.band("train_loss", "epoch").x) == [0, 1]
    # the accuracy of a network that is no longer finite is a number all the same
    assert list(setting.band("test_accuracy", "epoch").x) == [0, 1]


# ---- panels and curves -------------------------------------------------------------------------


@pytest.mark.parametrize("name", LAYOUTS)
def test_grouping(name):
    spec, runs = figures.FIGURES[name], runs_of(name)
    selection = figures.select(name, reversed(runs))
    panels = selection.panels
    values, curves = LAYOUTS[name]
    tasks = sorted({r.config["task"] for r in runs})
    batches = sorted({r.config["batch_size"] for r in runs})
    parts = [tasks, *([] if name == "batch-size" else [batches]), *([values] if values else [])]
    assert [panel.key for panel in panels] == list(itertools.product(*parts))
    for panel in panels:
        keys: list[tuple[object, ...]] = [(c,) for c in curves]
        assert [curve.key for curve in panel.curves] == (keys or [()])
        assert all(len(setting.runs) == 2 for setting in panel.settings)
    together = [r for panel in panels for setting in panel.settings for r in setting.runs]
    assert sorted(r.folder for r in together) == sorted(r.folder for r in runs if spec.matches(r))
    assert selection.missing() == []


def test_every_figure_is_laid_out():
    assert set(figures.FIGURES) == {*LAYOUTS, "comparison"}


def test_comparison_has_the_methods_of_the_paper_first():
    (panel,) = figures.select("comparison", runs_of("comparison")).panels
    names = [curve.key[0] for curve in panel.curves]
    assert names[:6] == ["spl", "armijo-spl", "sgd", "momentum", "adam", "adafactor"]
    assert set(names) == {name for name in methods.METHODS if not name.startswith("spl-")}


def test_tasks_and_batch_sizes_are_not_compared():
    runs = [
        run("sgd", SGD, task=task, batch_size=batch)
        for task in ("digits-mlp", "digits-linear")
        for batch in (64, 128)
    ]
    panels = figures.select("comparison", runs).panels
    assert [panel.key for panel in panels] == [
        ("digits-linear", 64),
        ("digits-linear", 128),
        ("digits-mlp", 64),
        ("digits-mlp", 128),
    ]


def test_missing_runs_are_named():
    runs = [run("sgd", SGD), run("spl-sgd"), run("adam", task="digits-mlp")]
    absent = figures.select("drop-in", runs).missing()
    assert absent == ["Momentum", "AdaFactor", "prox-linear (Adam)"]
    runs = [run("spl", {"inner": k}, batch_size=b) for k, b in ((1, 64), (2, 64), (1, 256))]
    absent = figures.select("inner-by-batch", runs).missing()
    assert absent == ["τ = 2 (batch size 256)"]
    assert "Training loss: of the first 1,000 examples. No runs: primal." in " ".join(
        texts(figures.figure(figures.select("primal-vs-dual", [run("armijo-spl")]), "smoke"))
    )


def test_unknown_figure():
    with pytest.raises(UsageError, match=r"no figure 'drop-out'; choose one of drop-in, primal"):
        figures.select("drop-out", [run("sgd")])


def test_no_runs():
    with pytest.raises(UsageError, match=r"no runs for the figure primal-vs-dual.*armijo-spl"):
        figures.figure(figures.select("primal-vs-dual", [run("sgd")]), "smoke")


# ---- what is drawn -----------------------------------------------------------------------------


def test_title():
    runs = [
        run("armijo-spl", options, seed=s, epochs=2) for options in ({}, PRIMAL) for s in (0, 3)
    ]
    setting = "digits, mlp; batch size 128; 2 epochs; median and range of seeds 0, 3; "
    title = (
        figures.figure(figures.select("primal-vs-dual", runs), "smoke")
        .get_suptitle()
        .replace("\n", " ")
    )
    named = "Figure 2 of the paper: Directions by the dual and by the primal"
    assert title == f"{named} {setting}reduced scale (smoke)"
    title = (
        figures.figure(figures.select("primal-vs-dual", runs), "paper")
        .get_suptitle()
        .replace("\n", " ")
    )
    assert title.endswith("the paper's scale") and "reduced" not in title


def test_best_in_full_and_two_faint():
    accuracies = {0.001: 0.5, 0.01: 0.9, 0.1: 0.7, 1.0: 0.8}
    runs = [run("sgd", {"stepsize": s}, accuracy=a) for s, a in accuracies.items()]
    runs += [run("adam", {"stepsize": 0.001}, seed=s) for s in range(2)]
    drawn = figures.figure(figures.select("comparison", runs), "smoke")
    assert legend(drawn) == ["SGD, stepsize 0.01", "Adam, stepsize 0.001"]
    for axes in drawn.subfigs[0].axes:
        sgd = [line for line in lines(axes) if line.get_color() == STYLES["sgd"].color]
        assert [line.get_alpha() for line in sgd] == [0.35, 0.35, 1.0]
        assert len(axes.collections) == 1  # the range of the two seeds of Adam
    accuracy = drawn.subfigs[0].axes[2]
    assert [line.get_ydata()[-1] for line in lines(accuracy)[:3]] == pytest.approx([0.7, 0.8, 0.9])


def test_stepsizes_are_all_named_where_a_panel_has_one_curve():
    runs = [run("sgd", {"stepsize": s}, accuracy=a) for s, a in ((0.1, 0.8), (1.0, 0.9))]
    drawn = figures.figure(figures.select("stepsize", runs), "smoke")
    assert legend(drawn) == ["SGD, stepsize 1", "SGD, stepsize 0.1"]


def test_what_diverged_is_shown_as_diverged():
    bad = {"losses": (2.0, 1e30, None), "status": "diverged"}
    runs = [run("spl", {"gamma": g}, **bad) for g in (1.0, 10.0)] + [run("sgd", SGD)]
    drawn = figures.figure(figures.select("comparison", runs), "smoke")
    assert legend(drawn) == ["SPL, γ = 1, τ = 2 (diverged)", "SGD, stepsize 0.1"]
    loss = drawn.subfigs[0].axes[0]
    crosses = lines(loss, "x")
    assert [list(cross.get_xdata()) for cross in crosses] == [[1], [1]]
    # it ends far above, and is marked at the edge
    assert [list(cross.get_ydata()) for cross in crosses] == 2 * [[loss.get_ylim()[1]]]
    assert list(lines(loss)[0].get_ydata()) == [2.0, 1e30]
    assert "×: where a run ended" in " ".join(texts(drawn))


def test_what_never_began_is_in_the_legend():
    runs = [
        run("armijo-spl", status="oom", losses=()),
        run("sgd", SGD, losses=(2.0, 1.0), epochs=9, max_steps=10),
    ]
    drawn = figures.figure(figures.select("comparison", runs), "smoke")
    assert legend(drawn) == [
        "Armijo SPL, γ = 1, τ = 2 (out of memory)",
        "SGD, stepsize 0.1 (first 10 steps)",
    ]
    drawn = figures.figure(
        figures.select("comparison", runs[:1]), "smoke"
    )  # nothing to take limits from
    assert legend(drawn) == ["Armijo SPL, γ = 1, τ = 2 (out of memory)"]


def test_axes():
    drawn = figures.figure(figures.select("comparison", [run("sgd", SGD)]), "smoke")
    drawn.draw_without_rendering()
    loss, _, accuracy, _ = drawn.subfigs[0].axes
    assert [axes.get_xlabel() for axes in drawn.subfigs[0].axes[2:]] == [
        "epochs",
        "seconds of training steps",
    ]
    assert (loss.get_yscale(), loss.get_ylabel()) == ("log", "training loss")
    assert (accuracy.get_yscale(), accuracy.get_ylabel()) == ("linear", "test accuracy")
    assert all(label.get_text().endswith("%") for label in accuracy.get_yticklabels())


def test_tasks_without_classes_show_their_loss():
    drawn = figures.figure(figures.select("comparison", [run("sgd", SGD, accuracy=None)]), "smoke")
    assert [axes.get_ylabel() for axes in drawn.subfigs[0].axes[::2]] == [
        "training loss",
        "test loss",
    ]


def test_panels_share_their_scales():
    runs = [
        run("spl", batch_size=64, losses=(2.0, 0.1)),
        run("spl", batch_size=256, losses=(2.0, 1.0)),
    ]
    drawn = figures.figure(figures.select("inner-by-batch", runs), "smoke")
    above, below = (part.axes for part in drawn.subfigs)
    assert [axes.get_ylim() for axes in above] == [axes.get_ylim() for axes in below]
    assert [part.get_suptitle() for part in drawn.subfigs] == ["batch size 64", "batch size 256"]


def test_tasks_have_scales_of_their_own_and_are_drawn_by_step_and_by_second():
    runs = [
        run("sgd", SGD, task="a/mine.py:line", accuracy=None, losses=(200.0, 100.0), version="1"),
        run("spl", task="b/mine.py:line", accuracy=None, losses=(200.0, 50.0), version="1"),
        run("spl", task="digits-mlp", losses=(2.0, 0.1)),
        run("spl", task="digits-mlp", losses=(2.0, 0.2), batch_size=64),
    ]
    drawn = figures.figure(figures.select_tasks(runs))
    titles = ["digits-mlp, batch size 64", "digits-mlp, batch size 128"]
    assert [part.get_suptitle() for part in drawn.subfigs] == [
        *titles,
        "mine.py:line, batch size 128",
    ]
    first, second, line = (part.axes for part in drawn.subfigs)
    assert [axes.get_ylim() for axes in first] == [axes.get_ylim() for axes in second]
    assert line[0].get_ylim()[0] > first[0].get_ylim()[1]
    assert [axes.get_ylabel() for axes in line[::2]] == ["training loss", "test loss"]
    assert [axes.get_ylabel() for axes in first[::2]] == ["training loss", "test accuracy"]
    assert [axes.get_xlabel() for axes in line[:2]] == ["steps", "seconds of training steps"]
    assert list(lines(line[0])[0].get_xdata()) == [0, 10]
    assert legend(drawn, 2) == ["SGD, stepsize 0.1", "SPL, γ = 1, τ = 2"]
    assert "2 tasks; batch size 64, 128" in drawn.get_suptitle()
    assert "No runs" not in " ".join(texts(drawn)) and "scale" not in drawn.get_suptitle()


def test_every_figure_has_its_number_in_the_paper():
    numbers = [int(n) for spec in figures.FIGURES.values() for n in re.findall(r"\d+", spec.number)]
    assert sorted({*numbers}) == list(range(1, 12))
    for name, spec in figures.FIGURES.items():
        assert spec.title == f"{spec.number} of the paper: {spec.subject}", name


def test_a_dollar_is_a_dollar():
    runs = [run("sgd", SGD, task=task) for task in ("digits-mlp", r"digits-$\bad$")]
    drawn = figures.figure(figures.select("comparison", runs), "smoke")
    drawn.draw_without_rendering()  # $\bad$ is not a formula
    assert r"digits, $\bad$ and mlp;" in drawn.get_suptitle()
    assert drawn.subfigs[0].get_suptitle() == r"digits-$\bad$"


def test_every_method_has_a_style_of_its_own():
    assert set(STYLES) == set(methods.METHODS)
    plain = [style for name, style in STYLES.items() if not name.startswith("spl-")]
    assert (
        len({style.color for style in plain}) == len({style.label for style in plain}) == len(plain)
    )
    for spec in figures.FIGURES.values():
        assert set(spec.methods) <= set(STYLES)


# ---- files -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", figures.FIGURES)
def test_every_figure_is_drawn(name):
    runs = [r for r in runs_of(name) if r.config["seed"] == 0]
    if "method" in figures.FIGURES[name].curve_by:  # many curves: one panel will do
        runs = [r for r in runs if r.config["batch_size"] < 256]
    drawn = figures.figure(figures.select(name, runs), "smoke")
    drawn.draw_without_rendering()
    panels = figures.select(name, runs).panels
    assert len(drawn.subfigs) == len(panels)
    for number, panel in enumerate(panels):
        best = [curve.settings[0].label(*figures.FIGURES[name].named_by) for curve in panel.curves]
        assert legend(drawn, number)[: len(best)] == best
        box = drawn.subfigs[number].legends[0].get_window_extent()
        assert box.x0 >= 0 and box.x1 <= drawn.bbox.x1


@pytest.mark.parametrize("suffix", HEADERS)
def test_files_are_the_same_each_time(tmp_path, suffix):
    runs = [run("armijo-spl"), run("armijo-spl", PRIMAL)]
    for folder in ("one", "other"):
        figures.draw(
            figures.select("primal-vs-dual", runs), tmp_path / folder / f"figure{suffix}", "smoke"
        )
    one, other = (
        (tmp_path / folder / f"figure{suffix}").read_bytes() for folder in ("one", "other")
    )
    assert one == other and one.startswith(HEADERS[suffix])


def test_files_of_other_kinds_are_rejected(tmp_path):
    with pytest.raises(UsageError, match=r"figure.jpg: use one of .svg, .png, .pdf"):
        figures.draw(
            figures.select("primal-vs-dual", [run("armijo-spl")]), tmp_path / "figure.jpg", "smoke"
        )


def test_a_folder_that_is_a_file(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="cannot write"):
        figures.draw(
            figures.select("primal-vs-dual", [run("armijo-spl")]),
            tmp_path / "file" / "a.svg",
            "smoke",
        )


# ---- tables ------------------------------------------------------------------------------------


def test_table():
    runs = [
        run("sgd", {"stepsize": 0.1}, accuracy=0.8, seconds=1.0),
        run("sgd", {"stepsize": 1.0}, accuracy=0.9, seconds=1.0, seed=1),
        run("spl", accuracy=0.95, seconds=3.0),
        run("lbfgs", status="diverged", losses=(2.0, None)),
    ]
    rows = figures.table(figures.select("comparison", runs))
    assert json.loads(json.dumps(rows)) == rows
    assert [(row["method"], row["options"], row["best"]) for row in rows] == [
        ("SPL", "γ = 1, τ = 2", True),
        ("SGD", "stepsize 1", True),
        ("SGD", "stepsize 0.1", False),
        ("L-BFGS", "", True),
    ]
    assert [row["relative"] for row in rows] == pytest.approx([3, 1, 1, 1])
    assert [row["status"] for row in rows] == ["finished", "finished", "finished", "diverged"]
    cells = dict(zip(figures.HEADINGS, figures.cells(rows[0]), strict=True))
    assert cells == {
        "panel": "",
        "method": "SPL",
        "options": "γ = 1, τ = 2",
        "seeds": "1",
        "train loss": "0.5",
        "test loss": "0.55",
        "test accuracy": "95.0 %",
        "steps": "20",
        "seconds": "6.00",
        "time per step": "3.0 ×",
        "JVPs": "80",
        "VJPs": "120",
        "status": "finished",
    }
    assert rows[3]["train_loss"] is None and figures.cells(rows[3])[4] == ""


def test_table_names_what_tells_curves_apart():
    rows = figures.table(
        figures.select("primal-vs-dual", [run("armijo-spl"), run("armijo-spl", PRIMAL)])
    )
    assert [row["options"] for row in rows] == ["dual, γ = 1, τ = 2", "primal, γ = 1, τ = 2"]
    rows = figures.table(
        figures.select("batch-size", [run("armijo-spl", batch_size=b) for b in (64, 1024)])
    )
    assert [row["options"] for row in rows] == [f"batch size {b}, γ = 1, τ = 2" for b in (64, 1024)]
