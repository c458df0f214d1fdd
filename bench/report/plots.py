"""The plots of a report as SVG, made with matplotlib. Curves, bars and intervals are labelled directly."""

# pyright: basic
# The stubs of matplotlib are too loose for strict checks.

import io
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullFormatter, NullLocator

from triglot.bench.run.arms import ARMS

from .report import Result, Table

_COLOURS = {"torch": "#c2410c", "paddle": "#1d4ed8", "jax": "#15803d"}
PARTS = (("import", "#94a3b8"), ("load and build", "#64748b"), ("compile", "#1e293b"))  # of a cold start
_BAR = 0.3  # height in inches


@dataclass
class Plot:
    """A plot, its heading, and what a reader must know about it."""

    heading: str
    text: str
    svg: str


def framework(result: Result) -> str:
    """Return the framework of a result's arm."""
    return ARMS[result.case.arm].framework


def frameworks(results: Sequence[Result]) -> list[str]:
    """Return the frameworks of these results: Triglot's in their order, then others."""
    present = {framework(result) for result in results}
    return [name for name in (*_COLOURS, *sorted(present - _COLOURS.keys())) if name in present]


def colour(name: str) -> str:
    """Return the colour of a framework; grey for one that Triglot does not implement."""
    return _COLOURS.get(name, "#6b7280")


def _colour(result: Result) -> str:
    return colour(framework(result))


def ratios(table: Table) -> Plot:
    """Plot how many times as long as the baseline each arm takes, with intervals, and the noise around 1."""
    compared = [(row.result, row.ratio) for row in table.rows if row.ratio and row.result.status == "ok"]
    floor = table.twin.noise if table.twin else 0.0
    figure, axes = _rows([result for result, _ in compared], "times as long as the baseline (log scale)")
    axes.set_xscale("log")
    axes.axvspan(1 / (1 + floor), 1 + floor, color="0.9", zorder=0)
    axes.axvline(1, color="0.5", linewidth=1, zorder=1)
    for place, (result, ratio) in enumerate(compared):
        axes.plot([ratio.low, ratio.high], [place, place], color=_colour(result), linewidth=3, solid_capstyle="butt")
        axes.plot(ratio.median, place, "o", color=_colour(result), markersize=5)
        _note(axes, ratio.high, place, f"{ratio:.2f}")
    low = min([ratio.low for _, ratio in compared] + [1 / (1 + floor)])
    high = max([ratio.high for _, ratio in compared] + [1 + floor])
    axes.set_xlim(low / 1.1, high * (high / low) ** 0.35 * 1.1)
    _plain(axes.xaxis, low / 1.1, high * 1.1)
    noise = f"Grey: the noise floor of this run, {floor:.1%}." if table.twin else "The noise was not measured."
    text = f"Relative to {table.baseline}, which took turns with the other arms. Left of 1 is faster. {noise}"
    return _plot(figure, "Ratios", text, "Ratios with their intervals")


def latencies(results: Sequence[Result]) -> Plot:
    """Plot the median latency of each arm as a bar, with a whisker to the 90th percentile."""
    figure, axes = _rows(results, "milliseconds per call: median, whisker to the 90th percentile")
    shown = [(result, result.latency_ms) for result in results if result.latency_ms]
    for place, (result, latency) in enumerate(shown):
        axes.barh(place, latency.p50, color=_colour(result), height=0.6)
        axes.plot([latency.p50, latency.p90], [place, place], color="black", linewidth=1)
        _note(axes, latency.p90, place, f"{_digits(latency.p50)} (90%: {_digits(latency.p90)})")
    axes.set_xlim(0, 1.3 * max(latency.p90 for _, latency in shown))
    return _plot(figure, "Latency", "Lower is better.", "Latency of each arm")


def memory(results: Sequence[Result]) -> Plot:
    """Plot the peak memory of each arm: of the device, or above an idle worker."""
    on_device = results[0].case.cell.device != "cpu"
    field, where = ("peak_device_mb", "of the device") if on_device else ("peak_rss_mb", "above an idle worker")
    peaks = [(result, getattr(result, field)) for result in results if getattr(result, field) is not None]
    figure, axes = _rows([result for result, _ in peaks], f"peak memory {where} (MiB)")
    for place, (result, peak) in enumerate(peaks):
        axes.barh(place, peak, color=_colour(result), height=0.6)
        _note(axes, peak, place, f"{peak:,.0f}")
    axes.set_xlim(0, 1.15 * max([peak for _, peak in peaks], default=1))
    text = "Lower is better. Framework, weights and activations."
    return _plot(figure, "Memory", text, "Peak memory of each arm")


def cold_starts(results: Sequence[Result]) -> Plot:
    """Plot the parts of each cold start, one after the other."""
    figure, axes = _rows(results, "seconds from an idle worker to the first result")
    ends = np.zeros(len(results))
    for part, (label, shade) in enumerate(PARTS):
        seconds = [result.cold_start[part] for result in results]
        axes.barh(range(len(results)), seconds, left=ends, color=shade, height=0.6, label=label)
        ends = ends + seconds
    for place, end in enumerate(ends):
        _note(axes, end, place, f"{end:.1f}")
    axes.set_xlim(0, 1.15 * ends.max())
    figure.legend(*axes.get_legend_handles_labels(), loc="outside upper left", ncols=3, frameon=False, fontsize=9)
    return _plot(figure, "Cold start", "Lower is better.", "Cold start of each arm, in parts")


def roofline(results: Sequence[Result], gflops: float, copy_gb_per_s: float) -> Plot:
    """Plot useful work over the least traffic that it takes, below what the hardware reached."""
    points = [
        (result.flops_per_byte or 0.0, result.useful_gflops or 0.0, result.case.arm, _colour(result))
        for result in results
    ]
    figure = Figure(figsize=(9, 4.8), layout="constrained")
    axes = figure.subplots()
    ridge = gflops / copy_gb_per_s
    left = min([ridge / 8, *(x / 2 for x, *_ in points)])
    right = max([ridge * 8, *(x * 2 for x, *_ in points)])
    axes.plot([left, ridge, right], [left * copy_gb_per_s, gflops, gflops], color="black", linewidth=1.5)
    for x, y, _, colour in points:
        axes.plot(x, y, "o", color=colour, markersize=5)
    bottom = min([*(y for _, y, *_ in points), left * copy_gb_per_s]) / 1.5
    axes.set(xscale="log", yscale="log", xlim=(left, right), ylim=(bottom, 2 * gflops))
    axes.set(xlabel="operations per byte that has to be moved (FLOP/byte, log scale)")
    axes.set(ylabel="useful work (GFLOP/s, log scale)")
    _note(axes, ridge, gflops, f"matrix product: {gflops:,.0f} GFLOP/s", (0, 8))
    _note(axes, left, left * copy_gb_per_s, f"memory: {copy_gb_per_s:,.0f} GB/s", (16, 0))
    _label_ends(axes, right, points)
    _plain(axes.yaxis, bottom, 2 * gflops)
    _plain(axes.xaxis, left, right)
    _open(axes)
    text = (
        "How close each arm comes to what the hardware reached in the same run. The traffic is the least that is "
        "possible: each weight once, and the vectors into and out of each layer."
    )
    return _plot(figure, "Roofline", text, "Roofline")


def curves(results: Sequence[Result], axis: str, value: str) -> Plot:
    """Plot "latency" or "throughput" over "batch" or "length", with a panel for each framework."""
    names = frameworks(results)
    figure = Figure(figsize=(max(9.0, 3.6 * len(names)), 4.4), layout="constrained")
    panels = figure.subplots(1, len(names), sharey=True, sharex=True, squeeze=False)[0]
    lines: dict[str, list[Result]] = {}
    for result in sorted(results, key=lambda result: getattr(result.case.cell, axis)):
        lines.setdefault(result.case.arm, []).append(result)
    points = sorted({getattr(result.case.cell, axis) for result in results})
    values = [_value(result, value) for result in results]
    bottom, top = min(values) / 1.3, max(values) * 1.3
    for axes, name in zip(panels, names, strict=True):
        markers = itertools.cycle("osD^vP*")
        ends: list[tuple[float, float, str, str]] = []
        for arm, line in lines.items():
            x, y = [getattr(result.case.cell, axis) for result in line], [_value(result, value) for result in line]
            if ARMS[arm].framework != name:
                axes.plot(x, y, color="0.88", linewidth=1, zorder=0)
                continue
            style = "--" if ARMS[arm].peer else "-"
            axes.plot(x, y, style, color=colour(name), linewidth=1.4, marker=next(markers), markersize=4)
            if x[-1] == points[-1]:
                ends.append((x[-1], y[-1], arm.removeprefix(f"triglot-{name}-"), colour(name)))
        axes.set(xscale="log", yscale="log", ylim=(bottom, top))
        axes.set_xlim(points[0] / 1.15, points[-1] * (points[-1] / points[0]) ** 0.1)
        _label_ends(axes, axes.get_xlim()[1], ends)
        axes.xaxis.set_major_locator(FixedLocator(points))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_major_formatter(FuncFormatter(lambda number, _: f"{number:g}"))
        axes.set_title(name, color=colour(name), fontsize=10, loc="left")
        axes.set_xlabel({"batch": "rows of a batch", "length": "tokens of a row"}[axis])
        _open(axes)
    _plain(panels[0].yaxis, bottom, top)
    panels[0].set_ylabel({"latency": "median of a call (ms)", "throughput": "real tokens per second"}[value])
    texts = {
        "latency": "Lower is better. Dashed: stock encoders; pale: the other frameworks.",
        "throughput": "Higher is better. Only real tokens count.",
    }
    return _plot(figure, value.capitalize(), texts[value], f"{value} over {axis}")


def _value(result: Result, value: str) -> float:
    if value == "throughput":
        return result.tokens_per_second or 0.0
    return result.latency_ms.p50 if result.latency_ms else 0.0


def _rows(results: Sequence[Result], label: str) -> tuple[Figure, Axes]:
    """Return axes with a row for each result, the first on top, named in the colour of its framework."""
    figure = Figure(figsize=(9, 1.0 + _BAR * max(1, len(results))), layout="constrained")
    axes = figure.subplots()
    axes.set_yticks(range(len(results)), [result.case.arm for result in results])
    for tick, result in zip(axes.get_yticklabels(), results, strict=True):
        tick.set_color(_colour(result))
    axes.set_ylim(len(results) - 0.4, -0.6)
    axes.set_xlabel(label)
    axes.tick_params(axis="y", length=0)
    _open(axes)
    axes.grid(visible=False, axis="y")
    return figure, axes


def _open(axes: Axes) -> None:
    """Draw a grid, and leave the top and the right side open."""
    axes.grid(visible=True, alpha=0.3)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def _digits(value: float) -> str:
    """Return three digits, or all digits before the point."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _note(axes: Axes, x: float, y: float, text: str, offset: tuple[float, float] = (5, 0)) -> None:
    """Put a text beside a point, ``offset`` points away."""
    axes.annotate(text, (x, y), offset, textcoords="offset points", fontsize=9, va="center", annotation_clip=False)


def _label_ends(axes: Axes, x: float, ends: Sequence[tuple[float, float, str, str]], gap: float = 0.052) -> None:
    """Put a label at ``x`` for each point, connected by a thin line. Move labels apart that would overlap.

    ``ends`` holds x and y of each point, its label and its colour. The y axis is logarithmic.
    """
    low, high = np.log(axes.get_ylim())
    wanted = sorted(((float(np.log(end[1])) - low) / (high - low), end) for end in ends)
    placed: list[float] = []
    for share, _ in wanted:
        placed.append(max(share, placed[-1] + gap) if placed else share)
    ceiling = 1.0
    for number in reversed(range(len(placed))):  # move down again from the top
        placed[number] = min(placed[number], ceiling)
        ceiling = placed[number] - gap
    for (_, (start, height, text, colour)), place in zip(wanted, placed, strict=True):
        beside = (x * (x / axes.get_xlim()[0]) ** 0.02, float(np.exp(low + (high - low) * place)))
        line = {"arrowstyle": "-", "color": colour, "linewidth": 0.5, "alpha": 0.5, "relpos": (0, 0.5)}
        where: dict[str, Any] = {"xytext": beside, "va": "center", "annotation_clip": False}
        axes.annotate(text, (start, height), fontsize=8.5, color=colour, arrowprops=line, **where)


def _plain(axis: Any, low: float, high: float) -> None:
    """Label a logarithmic axis with plain numbers, as many as fit."""
    decades = np.log10(high / low)
    subs = (1.0, 2.0, 5.0) if decades < 2.5 else (1.0,)
    if decades < 0.8:
        subs = (1.0, 1.2, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0)
    axis.set_major_locator(LogLocator(subs=subs))
    axis.set_major_formatter(FuncFormatter(lambda number, _: f"{number:,.10g}"))
    axis.set_minor_formatter(NullFormatter())
    axis.set_minor_locator(NullLocator())


def _plot(figure: Figure, heading: str, text: str, title: str) -> Plot:
    """Return the plot of a figure. The same figure gives the same text; ``title`` describes it to screen readers."""
    file = io.StringIO()
    with mpl.rc_context({"svg.hashsalt": title, "svg.fonttype": "path"}):
        figure.savefig(file, format="svg", metadata={"Date": None, "Title": title})
    return Plot(heading, text, file.getvalue()[file.getvalue().index("<svg") :])
