"""Figures of suites, drawn once: as files for papers and slides, and as SVG whose colours follow the page."""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import wraps
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import numpy as np

from lsgen.errors import InputError
from lsgen.report.compare import interval
from lsgen.report.entry import Entry, class_titles
from lsgen.suite import Suite

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.patches import Rectangle

# Okabe and Ito's colours, which stay apart for colour-blind eyes; dashes tell the suites apart in black and white
SERIES = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
DASHES: tuple[Any, ...] = ("-", (0, (5, 1.5)), (0, (1.5, 1.5)), (0, (5, 1.5, 1.5, 1.5)))
INK, MUTED, LINE, PAPER, BASE, HEAT = "#1d2329", "#5d6672", "#dfe2e6", "#fefefe", "#7a838f", "#d55e01"
THEME = {INK: "ink", MUTED: "muted", LINE: "line", PAPER: "paper", BASE: "base", HEAT: "heat"} | {
    color: f"series-{i}" for i, color in enumerate(SERIES)
}
STYLE: dict[Any, Any] = {
    "font.family": "DejaVu Sans",
    "font.size": 10,
    "text.color": INK,
    "text.parse_math": False,  # a class may be called $x$
    "axes.facecolor": "none",
    "axes.edgecolor": MUTED,
    "axes.labelcolor": INK,
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": LINE,
    "grid.linewidth": 0.6,
    "axes.axisbelow": True,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "legend.frameon": False,
    "legend.fontsize": 9,
    "svg.fonttype": "none",  # words stay words: they can be searched, read aloud and set in the page's type
    "svg.hashsalt": "lsgen",  # the same figure is the same file
}
CLASSES = 50  # most classes that one figure shows
WORDY = 14  # classes up to which a heat map has room for numbers
MAGNITUDES = {  # column: title, axis with its unit
    "latent_l2": ("Change of the latent, L2", "L2 distance from the seed (latent units)"),
    "pixel_l2": ("Change of the image, L2", "L2 distance from the seed (pixels in 0–1)"),
    "pixel_linf": ("Largest change of a pixel, L∞", "L∞ distance from the seed (% of the full range)"),
    "ssim": ("Likeness to the seed, or to its data set image, SSIM", "SSIM (1 = the same image)"),
}


P = ParamSpec("P")
R = TypeVar("R")


def _styled(draw: Callable[P, R]) -> Callable[P, R]:
    """Draws in lsgen's style and leaves everybody else's alone."""

    @wraps(draw)
    def drawn(*args: P.args, **kwargs: P.kwargs) -> R:
        import matplotlib

        with matplotlib.rc_context(STYLE):
            return draw(*args, **kwargs)

    return drawn


@dataclass(frozen=True)
class Drawing:
    """A figure and the words that go with it.

    Attributes:
        name: Of its files, without ending.
        title: A few words.
        alt: What one sees, in a sentence, for those who do not.
        figure: Drawn by matplotlib.
    """

    name: str
    title: str
    alt: str
    figure: Figure

    def svg(self, *, themed: bool = False) -> str:
        """The figure as SVG; themed for the report, where colours are variables of the page."""
        text = self._render("svg").decode("utf-8")
        if not themed:
            return text
        text = text[text.index("<svg") :]
        text = re.sub(
            r'<g id="(?!pair-)[^"]*"', "<g", text
        )  # ids must be unique in the page, and nothing refers to these
        text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.S)
        for color, variable in THEME.items():
            text = text.replace(color, f"var(--{variable})")
        return text

    def save(self, folder: Path) -> int:
        """Writes NAME.png and NAME.svg, and counts as one figure."""
        for kind in ("svg", "png"):
            (folder / f"{self.name}.{kind}").write_bytes(self._render(kind))
        return 1

    @_styled
    def _render(self, kind: str) -> bytes:
        file = io.BytesIO()
        details = {"Date": None} if kind == "svg" else {}
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Glyph .* missing")  # a PNG shows boxes for letters that no font here has
            ground = "none" if kind == "svg" else "white"
            self.figure.savefig(file, format=kind, dpi=160, facecolor=ground, metadata={"Title": self.title, **details})
        return file.getvalue()


def save_figures(entries: list[Entry], folder: Path) -> int:
    """Writes every figure that the suites give, as PNG and SVG, and tells how many.

    Raises:
        InputError: The folder cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return sum(drawing.save(folder) for drawing in all_drawings(entries))
    except OSError as error:
        raise InputError(f"--figures: cannot write to {folder} ({error.strerror})") from error


def all_drawings(entries: list[Entry]) -> Iterator[Drawing]:
    """All figures; what there is nothing to show of is left out."""
    shared = (draw(entries) for draw in (true_probability, steps, queries, per_class))
    changes = (magnitude(entries, column) for column in MAGNITUDES)
    single = (draw(entry) for entry in entries for draw in (escapes, region_map, gallery))
    yield from (drawing for drawing in chain(shared, changes, single) if drawing is not None)


# --- all suites in one figure ----------------------------------------------------------------------------------------


@_styled
def true_probability(entries: list[Entry]) -> Drawing | None:
    """P_t of all cases in rising order (as in Speth et al., Fig. 4)."""
    curves = [(entry, np.sort(entry.numbers("p_true"))) for entry in entries]
    curves = [(entry, values) for entry, values in curves if len(values)]
    if not curves:
        return None
    figure, axes = _figure()
    if len(curves) == 1 and curves[0][0].has_seeds:
        seeds = np.sort(curves[0][0].numbers("seed_p_true"))
        axes.plot(*_rising(seeds), color=BASE, linestyle=DASHES[1], label="seeds")
    for entry, values in curves:
        axes.plot(*_rising(values), **_stroke(entry), label=_short(entry.name))
    axes.set(xlabel="cases, sorted (%)", ylabel="P_t, true class (%)", xlim=(0, 100), ylim=(0, 102))
    _legend(figure, axes)
    means = "; ".join(f"{entry.name}: mean {values.mean():.1%}" for entry, values in curves)
    return Drawing(
        "true_probability", "True-class probability of all cases", f"Sorted P_t of all cases. {means}.", figure
    )


@_styled
def steps(entries: list[Entry]) -> Drawing | None:
    """Share of cases with a success after so many steps."""
    from matplotlib.ticker import MaxNLocator

    curves = []
    for entry in entries:
        taken = entry.numbers("iterations")
        if len(taken) and taken.max() > 0:
            hit = (entry.cases["success"].to_numpy(bool)) | (taken < taken.max())
            curves.append((entry, np.where(hit, taken, np.inf), int(taken.max())))
    if not curves:
        return None
    figure, axes = _figure()
    for entry, taken, budget in curves:
        at = np.arange(budget + 1)
        share = (np.sort(taken).searchsorted(at, side="right") / len(taken)) * 100
        axes.step(at, share, where="post", **_stroke(entry), label=_short(entry.name))
    longest = max(budget for *_, budget in curves)
    axes.set(xlabel="search steps", ylabel="cases with a success by then (%)", xlim=(0, longest), ylim=(0, None))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    _legend(figure, axes)
    ends = "; ".join(f"{e.name}: {np.isfinite(t).mean():.1%} after {b:,} steps" for e, t, b in curves)
    return Drawing("steps", "Steps to the first success", f"Share of cases with a success. {ends}.", figure)


@_styled
def queries(entries: list[Entry]) -> Drawing | None:
    """Share of cases that took at most so many SUT queries; None where every case of a suite took the same."""
    curves = [(entry, np.sort(entry.numbers("queries"))) for entry in entries]
    curves = [(entry, values) for entry, values in curves if len(values)]
    if not any(values[0] < values[-1] for _, values in curves):
        return None
    figure, axes = _figure()
    for entry, values in curves:
        share = np.arange(1, len(values) + 1) / len(values) * 100
        axes.step(*_thinned(values, share), where="post", **_stroke(entry), label=_short(entry.name))
    low, high = min(v[0] for _, v in curves), max(v[-1] for _, v in curves)
    if high > 50 * max(low, 1):
        axes.set_xscale("log")
    axes.set(xlabel="SUT queries of a case (images)", ylabel="cases with at most so many (%)", ylim=(0, 102))
    _legend(figure, axes)
    alt = "; ".join(f"{entry.name}: median {np.median(values):,.0f} queries" for entry, values in curves)
    return Drawing("queries", "SUT queries of each case", f"Distribution of queries. {alt}.", figure)


@_styled
def magnitude(entries: list[Entry], column: str) -> Drawing | None:
    """How far failures are from their seeds; with a single suite, beside the cases that did not fail."""
    title, label = MAGNITUDES[column]
    unit = 100 if column == "pixel_linf" else 1
    groups = [(entry.name, entry.numbers(column, failures=True) * unit, _stroke(entry)) for entry in entries]
    groups = [group for group in groups if len(group[1])]
    if not groups:
        return None
    alt = "; ".join(f"{name}: median {np.median(values):.3g}" for name, values, _ in groups)
    if len(entries) == 1:
        others = entries[0].numbers(column, failures=False) * unit
        stroke = {"color": BASE, "linestyle": DASHES[1], "linewidth": 1.2}
        groups = [("failures", *groups[0][1:]), *([("not failed", others, stroke)] if len(others) else [])]
    figure, axes = _figure()
    everything = np.concatenate([values for _, values, _ in groups])
    bins = np.linspace(everything.min(), everything.max(), 31).tolist() if np.ptp(everything) > 1e-9 else 5
    for name, values, stroke in groups:
        shares = np.full(len(values), 100 / len(values))
        axes.hist(values, bins, weights=shares, histtype="stepfilled", color=stroke["color"], alpha=0.15)
        axes.hist(values, bins, weights=shares, histtype="step", label=_short(name), **stroke)
    axes.set(xlabel=label, ylabel="share of each group (%)" if len(entries) == 1 else "share of failures (%)")
    _legend(figure, axes)
    return Drawing(f"change_{column}", title, f"{title}, failures. {alt}.", figure)


@_styled
def per_class(entries: list[Entry]) -> Drawing | None:
    """Failure rate of every class with its 95 % interval."""
    there = {int(k) for entry in entries for k, s in entry.summary["per_class"].items() if s["n_cases"]}
    titles, wanted = class_titles(entries), [k for k in _most_failing(entries) if k in there]
    if not wanted:
        return None
    share = 0.8 / len(entries)
    figure, axes = _figure(width=5.6, height=0.8 + 0.2 * len(wanted) * max(1.0, 0.7 * len(entries)))
    for i, entry in enumerate(entries):
        name: str | None = _short(entry.name)
        for row, label in enumerate(wanted):
            found = entry.summary["per_class"].get(str(label))
            if found and found["n_cases"]:
                y, rate = row + share * (i - (len(entries) - 1) / 2), 100 * found["failed"] / found["n_cases"]
                axes.barh(y, rate, share, color=_color(entry), label=name)
                axes.plot([100 * end for end in interval(**entry.independent(label))], [y, y], color=INK, lw=0.8)
                name = None  # the legend has it once
    axes.set(xlabel="failure rate (% of the cases of the class), 95% interval", xlim=(0, None))
    axes.set_yticks(range(len(wanted)), [_short(titles[label]) for label in wanted])
    axes.invert_yaxis()
    axes.grid(visible=False, axis="y")
    _legend(figure, axes)
    return Drawing("per_class", "Failure rate of each class", "Bars: the failure rate of every class.", figure)


# --- one figure for each suite ---------------------------------------------------------------------------------------


@_styled
def escapes(entry: Entry) -> Drawing | None:
    """Heat map of :attr:`escape_rate`: which class is read as which; the diagonal is left out."""
    if not entry.summary["failed"]:
        return None
    classes = _most_failing([entry], both_ends=True)
    rates = np.array(entry.summary["escape_rate"], dtype=float)[np.ix_(classes, classes)]
    np.fill_diagonal(rates, 0)
    largest, few = np.nanmax(rates), len(classes) <= WORDY
    side = max(3.4, min(6.6, 0.36 * len(classes) + 0.6))
    figure, axes = _figure(width=side, height=side)
    for (row, column), rate in np.ndenumerate(rates):
        if row == column:
            _cell(axes, row, column, LINE)
        elif rate > 0:
            alpha = 0.12 + 0.88 * (rate / largest) ** 0.7  # weak ones stay visible
            _cell(axes, row, column, HEAT, alpha).set_gid(f"pair-{entry.number}-{classes[row]}-{classes[column]}")
            if few:
                text, color = f"{100 * rate:.0f}" if rate >= 0.005 else "<1", "white" if alpha > 0.6 else INK
                axes.text(column, row, text, color=color, fontsize=8, ha="center", va="center")
    ticks = range(0, len(classes), 1 if few else 2)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_ticks(ticks, [str(classes[i]) for i in ticks], fontsize=9 if few else 7)
    axes.set(xlabel="read as (class)", ylabel="true class", aspect="equal")
    axes.set(xlim=(-0.5, len(classes) - 0.5), ylim=(len(classes) - 0.5, -0.5))
    axes.grid(visible=False)
    what = "attempts at the other class" if entry.cases["target"].notna().all() else "cases of the true class"
    alt = f"Heat map of the escape rates of {entry.name}; the largest is {largest:.0%} of the {what}."
    title = f"Escape rates of {entry.name} (% of the {what}; strongest colour: {largest:.0%})"
    return Drawing(f"escape_rate-{_slug(entry)}", title, alt, figure)


def _cell(axes: Axes, row: int, column: int, color: str, alpha: float = 1.0) -> Rectangle:
    """One square of a heat map."""
    from matplotlib.patches import Rectangle

    cell = Rectangle((column - 0.48, row - 0.48), 0.96, 0.96, facecolor=color, edgecolor="none", alpha=alpha)
    axes.add_patch(cell)
    return cell


@_styled
def region_map(entry: Entry) -> Drawing | None:
    """Challenging cases in two dimensions, numbered and coloured by region."""
    regions = entry.regions
    if regions is None or not len(regions.cases):
        return None
    points = regions.cases[np.isfinite(regions.cases["x"]) & np.isfinite(regions.cases["y"])]
    figure, axes = _figure(width=5.2, height=4.2)
    noise = points[points["cluster"] < 0]
    many = len(points) > 2_000  # too many for a vector each
    axes.scatter(noise["x"], noise["y"], s=10, color=BASE, alpha=0.5, linewidths=0, rasterized=many)
    for number, group in points[points["cluster"] >= 0].groupby("cluster"):
        color = SERIES[int(number) % len(SERIES)]
        axes.scatter(group["x"], group["y"], s=16, color=color, linewidths=0, alpha=0.8, rasterized=many)
        x, y = float(group["x"].median()), float(group["y"].median())
        box = {"boxstyle": "round,pad=0.25", "facecolor": PAPER, "edgecolor": color}
        axes.annotate(str(number), (x, y), ha="center", va="center", fontsize=8, fontweight="bold", bbox=box)
    axes.set(xlabel=regions.axes[0], ylabel=regions.axes[1])
    count = sum(cluster["scope"] == "all" for cluster in regions.clusters)
    alt = f"Map of {regions.challenging:,} challenging cases in {count} regions; {regions.noise:,} are in none."
    return Drawing(f"regions-{_slug(entry)}", f"Map of the failure regions of {entry.name}; grey: in none", alt, figure)


def gallery(entry: Entry) -> Drawing | None:
    """Seeds beside failures of every class."""
    if not len(entry.failures):
        return None
    alt = f"For every class, seeds of {entry.name} beside the failures that grew out of them."
    return Drawing(
        f"failures-{_slug(entry)}", f"{entry.name}: seeds and failures", alt, _draw_gallery(entry.suite, 4, 12)
    )


def failure_gallery(suite: Suite, file: str | Path, per_class: int = 4, classes: int = 12) -> Path:
    """Draws, for each class, its first failures beside the seeds they come from; captions say what the SUT read.

    Args:
        suite: Any suite with at least one block.
        file: PNG or SVG to write.
        per_class: Pairs for each class.
        classes: At most so many classes, spread evenly over those that the suite has.
    """
    file = Path(file)
    _draw_gallery(suite, per_class, classes).savefig(file, dpi=130)
    return file


def _draw_gallery(suite: Suite, per_class: int, classes: int) -> Figure:
    from matplotlib.figure import Figure

    table, failed = suite.table, suite.failures
    labels = sorted(int(k) for k in table["label"].unique())
    labels = [labels[i] for i in np.linspace(0, len(labels) - 1, min(classes, len(labels))).astype(int)]
    figure = Figure(figsize=(per_class * 2.1, len(labels) * 1.15), layout="constrained")
    axes = figure.subplots(len(labels), 2 * per_class, squeeze=False)
    for axis in axes.flat:
        axis.axis("off")
    for row, label in enumerate(labels):
        failures = failed[(table["label"] == label).to_numpy(bool)[failed]][:per_class]
        if not len(failures):
            axes[row, 0].text(0, 0.5, f"{label}: no failure", fontsize=8, va="center", transform=axes[row, 0].transAxes)
        pictures = zip(suite.take("seed_image", failures), suite.take("image", failures), strict=True)
        for column, (case, (seed, found)) in enumerate(zip(failures, pictures, strict=True)):
            read, p = int(table["predicted"].iloc[case]), float(table["p_true"].iloc[case])
            for offset, picture, caption in (
                (0, seed, f"seed {label}"),
                (1, found, f"→ {read} ({p:.0%})"),
            ):
                axis = axes[row, 2 * column + offset]
                axis.imshow(np.squeeze(picture.transpose(1, 2, 0)), cmap="gray", vmin=0, vmax=255)
                axis.set_title(caption, fontsize=7, pad=2)
    figure.suptitle("seed and failure: what the SUT read (probability of the true class)", fontsize=9)
    return figure


# --- inside ----------------------------------------------------------------------------------------------------------


def _figure(width: float = 4.4, height: float = 2.9) -> tuple[Figure, Axes]:
    """An empty figure of that many inches; small, so that letters stay readable on a phone."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.subplots()


def _color(entry: Entry) -> str:
    return BASE if entry.baseline else SERIES[entry.shade % len(SERIES)]


def _stroke(entry: Entry) -> dict[str, Any]:
    dashes = DASHES[1] if entry.baseline else DASHES[entry.shade % len(DASHES)]
    return {"color": _color(entry), "linestyle": dashes, "linewidth": 1.6}


def _legend(figure: Figure, axes: Axes) -> None:
    """Names the curves above them, where there are several."""
    handles, names = axes.get_legend_handles_labels()
    if len(names) > 1:
        in_one_row = sum(map(len, names)) <= 36
        figure.legend(handles, names, loc="outside upper left", ncols=len(names) if in_one_row else 1)


def _rising(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Sorted shares [N] as a curve, both axes in %."""
    return _thinned(np.linspace(0, 100, len(values)), values * 100)


def _thinned(x: np.ndarray, y: np.ndarray, points: int = 400) -> tuple[np.ndarray, np.ndarray]:
    """At most so many points of a sorted curve, both ends kept: more than the eye can tell apart."""
    index = np.unique(np.linspace(0, len(x) - 1, min(points, len(x))).astype(int))
    return x[index], y[index]


def _most_failing(entries: list[Entry], both_ends: bool = False) -> list[int]:
    """Classes in order; where there are too many, those with the most failures (as true class or as answer)."""
    count = entries[0].manifest["num_classes"]
    failures = np.zeros(count, dtype=int)
    for entry in entries:
        for column in ("label", "predicted") if both_ends else ("label",):
            failures += np.bincount(entry.failures[column].to_numpy("int64"), minlength=count)[:count]
    chosen = np.argsort(-failures, kind="stable")[:CLASSES]
    return sorted(int(k) for k in chosen)


def _short(text: str, length: int = 28) -> str:
    return text if len(text) <= length else text[: length - 1] + "…"


def _slug(entry: Entry) -> str:
    """The suite's name as part of a file name."""
    return f"{entry.number + 1}-{re.sub(r'[^A-Za-z0-9.-]+', '-', entry.name).strip('-.')}".rstrip("-")
