"""Tables of the results, in ``benchmarks/results/suite/README.md``."""

from __future__ import annotations

import math
import pathlib
from collections.abc import Iterable, Mapping, Sequence

from benchmarks.suite import cost, figures, running, scores
from benchmarks.suite.results import Summary, speed_up, summarize
from benchmarks.suite.rivals import METHODS, OURS
from benchmarks.suite.workloads import DEVELOPMENT, HELD_OUT, WORKLOADS

MISSING = "·"
SEEDS = 3
ORDER = (*DEVELOPMENT, *HELD_OUT)

Summaries = Mapping[str, Summary]


def write(folder: pathlib.Path = running.RESULTS) -> str:
    """Writes the tables and the figures of what is recorded."""
    summaries = summarize(folder)
    figures.draw(summaries, folder)
    text = "\n\n".join(parts(summaries, cost.read(folder))) + "\n"
    (folder / "README.md").write_text(text, encoding="utf-8")
    return text


def parts(
    summaries: Summaries, costs: Mapping[str, Mapping[str, Mapping[str, float]]]
) -> list[str]:
    """All of the page."""
    return [
        "# The suite",
        _WORDS,
        "## Workloads",
        workloads(summaries),
        "## Speed-ups in steps",
        "AdamW's budget over the steps to the target, from the mean curve over the seeds; "
        f"“miss” if it is not reached. The means are geometric, and zero with a miss. {MISSING}: "
        "not run.",
        speed_ups(summaries, "steps"),
        "## Speed-ups in gradients",
        speed_ups(summaries, "gradients"),
        "Seconds to the target, as fast as when the cost of a step was measured; with compilation:",
        seconds(summaries),
        "![Share of the workloads solved within a factor of the best](profiles.svg)",
        "## The end of training",
        "Test scores after the budget of steps, with standard errors over the seeds.",
        ends(summaries, same=False),
        "After as many gradients as AdamW takes in its budget: of runs that were planned to be so "
        "long where there are any, otherwise on the way of those above, whose rates have not "
        "come down to zero by then.",
        ends(summaries, same=True),
        verdict(summaries),
        "![Test scores by gradients](curves.svg)",
        "## The price of a step",
        "Gradients of the same batch, the mean over steps, median of interleaved rounds.",
        prices(costs, "gradients", "{:.2f}"),
        "First call, as a multiple of AdamW's:",
        prices(costs, "first_call", "{:.1f}"),
        "State, in copies of the parameters:",
        prices(costs, "state", "{:.1f}"),
        "## Settings",
        settings(summaries),
        incomplete(summaries),
    ]


_UNTUNED = ", ".join(name for name, x in METHODS.items() if not (x.grid or name in OURS))
_WORDS = f"""\
Eight workloads on real data, in the spirit of AlgoPerf at the size of two cores. Rivals are tuned
for each workload on one seed, with a warm-up over 5 % of their steps and a cosine to zero, on a
grid that grows until the best setting lies inside of it. {_UNTUNED} run at their defaults, and so
does `auto`; `auto-steps` is `auto` that knows the number of steps. Target of a workload: the best
test score that tuned AdamW reaches in its budget, in the mean over its seeds.

Constants of `auto` may be chosen on {", ".join(DEVELOPMENT)}. {", ".join(HELD_OUT)} are held out.
One exception: `auto` became unstable on recurrent, and the last change of its rule for gamma was
chosen after that was seen and tried on it. Its row is no longer one of an unseen workload.

`python -m benchmarks.suite --help` says how to run it; its command `report` makes this page."""


# ---- tables ------------------------------------------------------------------------------------


def table(head: Sequence[str], rows: Iterable[Sequence[str]], words: int = 1) -> str:
    """A table of Markdown, with words in the first columns and numbers to the right."""
    lines = [head, [*["---"] * words, *["---:"] * (len(head) - words)], *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def workloads(summaries: Summaries) -> str:
    """What each workload is."""
    rows = []
    for name in ORDER:
        spec, found = WORKLOADS[name], summaries[name]
        rows.append(
            [
                name,
                "development" if name in DEVELOPMENT else "held out",
                spec.about,
                str(spec.batch),
                f"{spec.steps:,}",
                f"test {spec.score}",
                shown(name, found.target),
            ]
        )
    head = ["workload", "", "", "batch", "steps", "score", "target"]
    return table(head, rows, words=3)


def speed_ups(summaries: Summaries, unit: str) -> str:
    """A row for each method, with geometric means."""
    rows = []
    for method in named(summaries):
        found = {name: speed_up(summaries[name], method, unit) for name in ORDER}
        cells = ["miss" if x == 0 else number(x, "{:.2f}") for x in found.values()]
        means = [mean_of(found, names) for names in (ORDER, DEVELOPMENT, HELD_OUT)]
        rows.append([method, *means, *cells])
    return table(["", "all", "development", "held out", *ORDER], rows)


def seconds(summaries: Summaries) -> str:
    """Seconds to the target, without and with compilation."""

    def cell(name: str, method: str) -> str:
        result = summaries[name].results.get(method)
        if result is None or math.isnan(result.seconds):
            return MISSING
        if math.isinf(result.seconds):
            return "miss"
        return f"{result.seconds:.0f}; {result.seconds + result.first_call:.0f}"

    return table(["", *ORDER], [[m, *(cell(n, m) for n in ORDER)] for m in named(summaries)])


def mean_of(found: Mapping[str, float], names: Sequence[str]) -> str:
    """The geometric mean over some workloads, if none is missing."""
    ratios = [found[name] for name in names]
    if any(map(math.isnan, ratios)):
        return MISSING
    return number(scores.geometric_mean(ratios), "**{:.2f}**")


def ends(summaries: Summaries, same: bool) -> str:
    """The scores at the end, after as many steps or gradients as the baseline has."""
    rows = []
    for method in named(summaries):
        cells = []
        for name in ORDER:
            result = summaries[name].results.get(method)
            values = [] if result is None else result.same if same else result.finals
            middle, error = scores.with_error(values)
            cells.append(shown(name, middle, error))
        rows.append([method, *cells])
    return table(["", *ORDER], rows)


def verdict(summaries: Summaries) -> str:
    """On how many workloads ours are level with the best tuned rival, or better."""
    lines = []
    for ours in OURS:
        level, known = [], 0
        for name in ORDER:
            results = summaries[name].results
            rivals = [x for m, x in results.items() if m not in OURS and x.same]
            if ours not in results or not results[ours].same or not rivals:
                continue
            known += 1
            best = max((scores.with_error(x.same) for x in rivals), key=lambda each: each[0])
            mine = scores.with_error(results[ours].same)
            errors = [0.0 if math.isnan(error) else error for _, error in (best, mine)]
            if mine[0] >= best[0] - math.hypot(*errors):
                level.append(name)
        if known:
            which = f": {', '.join(level)}" if level else ""
            lines.append(
                f"At the same number of gradients `{ours}` is within one standard error of the "
                f"best rival, or better, on {len(level)} of {known} workloads{which}."
            )
    return "\n\n".join(lines)


def prices(costs: Mapping[str, Mapping[str, Mapping[str, float]]], key: str, form: str) -> str:
    """One number of the costs; first calls as a multiple of AdamW's."""

    def cell(name: str, method: str) -> str:
        found = costs.get(name, {}).get(method, {})
        value = found.get(key, math.nan)
        if found and key == "first_call":
            value /= found["first_call_of_adamw"]
        return number(value, form)

    methods = [m for m in METHODS if any(m in costs.get(name, {}) for name in ORDER)]
    return table(["", *ORDER], [[m, *(cell(name, m) for name in ORDER)] for m in methods])


def settings(summaries: Summaries) -> str:
    """The best setting of each tuned method."""

    def cell(name: str, method: str) -> str:
        result = summaries[name].results.get(method)
        return MISSING if result is None else ", ".join(f"{x:g}" for x in result.setting.values())

    tuned = [m for m in named(summaries) if METHODS[m].grid]
    label = lambda m: f"{m}: {', '.join(METHODS[m].grid).replace('_', ' ')}"
    return table(["", *ORDER], [[label(m), *(cell(name, m) for name in ORDER)] for m in tuned])


def incomplete(summaries: Summaries) -> str:
    """What is not finished: grids whose best setting has neighbors that were not run, and seeds."""
    lines = []
    for method in named(summaries):
        found = {n: r[method] for n in ORDER if method in (r := summaries[n].results)}
        grids = [name for name, result in found.items() if result.open_grid]
        seeds = [name for name, result in found.items() if result.seeds < SEEDS]
        absent = [name for name in ORDER if name not in found]
        parts = {"not run": absent, "grid not finished": grids, f"fewer than {SEEDS} seeds": seeds}
        said = "; ".join(f"{what}: {', '.join(where)}" for what, where in parts.items() if where)
        if said:
            lines.append(f"- {method}: {said}.")
    return "\n".join(["Not complete:", "", *lines]) if lines else "All runs are complete."


def named(summaries: Summaries) -> list[str]:
    """The methods that were run on any workload."""
    return [m for m in METHODS if any(m in found.results for found in summaries.values())]


def shown(name: str, score: float, error: float = math.nan) -> str:
    """A score as it is known: accuracies in percent, losses without their sign."""
    if math.isinf(score):
        return "diverged"
    scale, form = (100, "{:.1f}") if WORKLOADS[name].score == "accuracy" else (-1, "{:.4g}")
    text = number(score * scale, form)
    if math.isnan(error):
        return text
    return f"{text} ± {abs(error * scale):.1f}" if scale == 100 else f"{text} ± {error:.1g}"


def number(x: float, form: str) -> str:
    """A number, or a sign that it is missing."""
    return MISSING if math.isnan(x) else form.format(x)
