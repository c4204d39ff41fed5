"""What each figure of the paper shows, and how methods and options are named and colored."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from proxlin.bench import methods
from proxlin.bench.records import Config, Run


class Style(NamedTuple):
    """How a method is named and drawn: the same in all figures."""

    label: str
    color: str
    dashes: str = "--"  # of gradient methods; the others have their own


# The colors of Okabe and Ito, and five of Tol's, can be told apart by color-blind readers.
BLUE = "#0072B2"
STYLES: dict[str, Style] = {
    "spl": Style("SPL", BLUE, "-"),
    "armijo-spl": Style("Armijo SPL", "#000000", ":"),  # SPL shows through where both agree
    "model-step": Style("SPL with model step", "#332288", "-"),
    "trust-region": Style("SPL with trust region", "#882255", "-"),
    "auto": Style("auto", "#AA4499", "-"),
    "spl-sgd": Style("prox-linear SGD", BLUE, "-"),
    "spl-momentum": Style("prox-linear momentum", BLUE, "-"),
    "spl-adam": Style("prox-linear Adam", BLUE, "-"),
    "spl-adafactor": Style("prox-linear AdaFactor", BLUE, "-"),
    "sgd": Style("SGD", "#E69F00"),
    "momentum": Style("Momentum", "#D55E00"),
    "adam": Style("Adam", "#009E73"),
    "adafactor": Style("AdaFactor", "#CC79A7"),
    "muon": Style("Muon", "#999933"),
    "lbfgs": Style("L-BFGS", "#7F7F7F"),
    "shampoo": Style("Shampoo", "#56B4E9", "-."),
    "soap": Style("SOAP", "#117733", "-."),
    "kfac": Style("KFAC", "#8C510A", "-."),
}
OPTIMIZERS = ("sgd", "momentum", "adam", "adafactor")
RIVALS = (*OPTIMIZERS, "muon", "lbfgs", "shampoo", "soap", "kfac")
PLAIN = tuple(name for name in STYLES if not name.startswith("spl-"))


@dataclass(frozen=True)
class Spec:
    """How a figure sorts runs: into panels, each into curves, each into settings to choose from.

    Tasks and batch sizes have panels of their own in every figure, unless they tell curves apart:
    runs that differ in them do not compete.

    Attributes:
        subject: what the figure shows.
        methods: whose runs it shows; runs of others are left out.
        panel_by: keys whose values tell panels apart, see :func:`value_of`.
        curve_by: keys whose values tell the curves of a panel apart.
        panels: values of the last key of ``panel_by`` that the paper has. The caption says which
            of them have no runs.
        curves: values of the last key of ``curve_by`` that the paper has in each panel, likewise.
        across: the horizontal axes.
        metrics: the vertical axes.
        number: of the figure in the paper.
    """

    subject: str
    methods: tuple[str, ...]
    panel_by: tuple[str, ...] = ()
    curve_by: tuple[str, ...] = ()
    panels: tuple[Any, ...] = ()
    curves: tuple[Any, ...] = ()
    across: tuple[str, ...] = ("epoch", "seconds")
    metrics: tuple[str, ...] = ("train_loss", "test_accuracy")
    number: str = ""

    @property
    def title(self) -> str:
        """Which figure of the paper it is, and what it shows."""
        return f"{self.number} of the paper: {self.subject}" if self.number else self.subject

    def matches(self, run: Run) -> bool:
        """Whether the figure shows this run."""
        return run.config["method"] in self.methods

    def has_subject(self, configs: Iterable[Config], runs: Sequence[Run]) -> bool:
        """Whether the runs of a sweep that exist show what the figure is about.

        They do once each thing that it compares has a run, but for rivals: one may not be
        installed.
        """
        keys = (*self.panel_by, *(self.curve_by or ("options",)))
        of = lambda run: json.dumps([value_of(run, key) for key in keys], sort_keys=True)
        asked = [Run(pathlib.Path(), {"config": config.as_dict()}, []) for config in configs]
        needed = {of(run) for run in asked if run.config["method"] not in RIVALS}
        found = {of(run) for run in runs}
        return needed <= found and len(found) > 1

    @property
    def panel_keys(self) -> tuple[str, ...]:
        """All keys whose values tell panels apart."""
        keys = dict.fromkeys(("task", "batch_size", *self.panel_by))
        return tuple(key for key in keys if key not in self.curve_by)

    @property
    def named_by(self) -> tuple[str, ...]:
        """The keys that a legend has to name, because the names of methods do not include them."""
        return tuple(key for key in self.curve_by if key not in ("method", "direction"))


def _cnn(depth: str, number: str) -> Spec:
    methods = ("spl", "armijo-spl", "sgd", "momentum", "adam", "shampoo", "kfac")
    by = {"panel_by": ("batch_size",), "curve_by": ("method",), "curves": methods}
    return Spec(f"{depth} CNN", methods, **by, number=number)


TASKS = Spec(
    "Training runs", tuple(STYLES), curve_by=("method",), across=("step", "seconds")
)  # of any folder: a panel for each task and batch size


FIGURES: dict[str, Spec] = {
    "drop-in": Spec(
        "Prox-linear directions in the place of gradients",
        tuple(prefix + name for name in OPTIMIZERS for prefix in ("", "spl-")),
        panel_by=("optimizer",),
        curve_by=("direction",),
        panels=OPTIMIZERS,
        curves=("gradient", "prox-linear"),
        number="Figures 1 and 7",
    ),
    "primal-vs-dual": Spec(
        "Directions by the dual and by the primal",
        ("armijo-spl",),
        curve_by=("subproblem",),
        curves=("dual", "primal"),
        number="Figure 2",
    ),
    "stepsize": Spec(
        "Robustness to the stepsize, γ for SPL",
        ("spl", *OPTIMIZERS),
        panel_by=("method",),
        panels=("spl", *OPTIMIZERS),
        number="Figure 3",
    ),
    "inner-iterations": Spec(
        "Robustness to the number τ of inner iterations",
        ("armijo-spl",),
        curve_by=("inner",),
        number="Figure 4 (top)",
    ),
    "batch-size": Spec(
        "Robustness to the batch size",
        ("armijo-spl",),
        curve_by=("batch_size",),
        number="Figure 4 (bottom)",
    ),
    "comparison": Spec(
        "Comparison with existing algorithms",
        PLAIN,
        curve_by=("method",),
        curves=("spl", "armijo-spl", *OPTIMIZERS),
        number="Figure 5",
    ),
    "inner-by-batch": Spec(
        "Inner iterations τ across batch sizes, without line search",
        ("spl",),
        panel_by=("batch_size",),
        curve_by=("inner",),
        number="Figure 6",
    ),
    "resnet-imagenet": Spec(
        "Residual networks",
        ("spl", "armijo-spl", "sgd", "momentum", "adam"),
        panel_by=("task", "batch_size"),
        curve_by=("method",),
        curves=("spl", "armijo-spl", "sgd", "momentum", "adam"),
        number="Figure 8",
    ),
    "cnn-short": _cnn("Short", "Figure 9"),
    "cnn-medium": _cnn("Medium", "Figure 10"),
    "cnn-long": _cnn("Long", "Figure 11"),
}


def value_of(run: Run, key: str) -> Any:
    """The value of a run for a key of a :class:`Spec`.

    Args:
        run: the run.
        key: ``"task"``, ``"method"``, ``"batch_size"``; ``"optimizer"`` and ``"direction"``, the
            two parts of a name such as ``"spl-adam"``; or an option of the method.

    Returns:
        The value, None for an option that the method does not have.
    """
    method = run.config["method"]
    if key == "task":
        return run.task
    if key == "optimizer":
        return method.removeprefix("spl-")
    if key == "direction":
        return "prox-linear" if method.startswith("spl-") else "gradient"
    return run.config[key] if key in run.config else run.config["options"].get(key)


def describe(key: str, value: Any) -> str:
    """A value in the words of the paper.

    Example:
        >>> describe("inner", 2), describe("stepsize", 1e-2), describe("method", "armijo-spl")
        ('τ = 2', 'stepsize 0.01', 'Armijo SPL')
    """
    text = f"{value:g}" if isinstance(value, float) else str(value)
    if key in ("method", "optimizer") and value in STYLES:
        return STYLES[value].label
    words = {
        "gamma": f"γ = {text}",
        "inner": f"τ = {text}",
        "stepsize": f"stepsize {text}",
        "batch_size": f"batch size {text}",
        "curvature_size": f"curvature of {text} examples",
    }
    bare = ("task", "subproblem", "direction")
    return words.get(key, text if key in bare else f"{key} = {text}")


def describe_options(run: Run, first: tuple[str, ...] = ()) -> str:
    """The paper's options of a run, and others that differ from the defaults.

    Args:
        run: the run.
        first: keys to be named first.

    Returns:
        A text such as ``"γ = 1, τ = 2"``.
    """
    defaults = methods.options_of(run.config["method"])
    options = run.config["options"]
    changed = [key for key in options if key in defaults and options[key] != defaults[key].default]
    named = [key for key in ("stepsize", "gamma", "inner") if key in options]
    keys = dict.fromkeys([*first, *named, *changed])
    return ", ".join(describe(key, value_of(run, key)) for key in keys)
