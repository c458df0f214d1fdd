"""The plots of a benchmark as SVG, by matplotlib: curves, bars, intervals and a roofline, each labelled where it is."""

# pyright: basic
# The stubs of matplotlib are too loose for strict checks.

import io
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullFormatter, NullLocator

Cases = Sequence[Mapping[str, Any]]

COLOURS = {"torch": "#c2410c", "paddle": "#1d4ed8", "jax": "#15803d", "onnxruntime": "#6b7280"}
OURS = "triglot-"
PARTS = (
    ("import_s", "import", "#94a3b8"),
    ("load_s", "load and build", "#64748b"),
    ("compile_s", "compile", "#1e293b"),
)
_ROW = 0.3  # inches of a bar
_MARKERS = "osD^vP*"


def colour(case: Mapping[str, Any]) -> str:
    """That of the framework."""
    return COLOURS[case["framework"]]


def ratios(cases: Cases, floor: float) -> str:
    """How many times as long as the reference each arm takes, with its interval; ``floor``: the noise around 1."""
    compared = [case for case in cases if case["ratio"]]
    figure, axes = _rows(compared, "times as long as the reference arm (log scale)")
    axes.set_xscale("log")
    axes.axvspan(1 / (1 + floor), 1 + floor, color="0.9", zorder=0)
    axes.axvline(1, color="0.5", linewidth=1, zorder=1)
    for place, case in enumerate(compared):
        ratio = case["ratio"]
        axes.plot([ratio["low"], ratio["high"]], [place, place], color=colour(case), linewidth=3, solid_capstyle="butt")
        axes.plot(ratio["median"], place, "o", color=colour(case), markersize=5)
        label = f"{ratio['median']:.2f} ({ratio['low']:.2f} to {ratio['high']:.2f})"
        _beside(axes, ratio["high"], place, label)
    low = min([one["ratio"]["low"] for one in compared] + [1 / (1 + floor)])
    high = max([one["ratio"]["high"] for one in compared] + [1 + floor])
    axes.set_xlim(low / 1.1, high * (high / low) ** 0.35 * 1.1)
    _plain(axes.xaxis, low / 1.1, high * 1.1)
    return _svg(figure, "Ratios with their intervals")


def latencies(cases: Cases) -> str:
    """Half of the calls of each arm were faster than its bar is long, and nine tenths than its whisker."""
    figure, axes = _rows(cases, "milliseconds of a call: median, whisker to the 90th percentile")
    for place, case in enumerate(cases):
        found = case["latency_ms"]
        axes.barh(place, found["p50"], color=colour(case), height=0.6)
        axes.plot([found["p50"], found["p90"]], [place, place], color="black", linewidth=1)
        _beside(axes, found["p90"], place, f"{_digits(found['p50'])} (90 %: {_digits(found['p90'])})")
    axes.set_xlim(0, 1.3 * max(case["latency_ms"]["p90"] for case in cases))
    return _svg(figure, "Latency of each arm")


def memory(cases: Cases) -> str:
    """The peak of each arm above an idle worker."""
    kind = "peak_device_mb" if cases[0]["device"] != "cpu" else "peak_rss_mb"
    shown = [case for case in cases if case[kind] is not None]
    where = "of the device" if kind == "peak_device_mb" else "above an idle worker"
    figure, axes = _rows(shown, f"peak memory {where} (MiB)")
    for place, case in enumerate(shown):
        axes.barh(place, case[kind], color=colour(case), height=0.6)
        _beside(axes, case[kind], place, f"{case[kind]:,.0f}")
    axes.set_xlim(0, 1.15 * max([case[kind] for case in shown], default=1))
    return _svg(figure, "Peak memory of each arm")


def cold_starts(cases: Cases) -> str:
    """The parts of each cold start, one behind the other."""
    figure, axes = _rows(cases, "seconds from an idle worker to the first result")
    for place, case in enumerate(cases):
        start = 0.0
        for name, _, shade in PARTS:
            axes.barh(place, case[name], left=start, color=shade, height=0.6)
            start += case[name]
        _beside(axes, start, place, f"{start:.1f}")
    axes.set_xlim(0, 1.15 * max(sum(case[name] for name, *_ in PARTS) for case in cases))
    for _, label, shade in PARTS:
        axes.barh(0, 0, color=shade, label=label)
    figure.legend(*axes.get_legend_handles_labels(), loc="outside upper left", ncols=3, frameon=False, fontsize=9)
    return _svg(figure, "Cold start of each arm, in parts")


def roofline(cases: Cases, roof: Mapping[str, Any]) -> str:
    """Useful work over the least traffic that it takes, below what the hardware was seen to do."""
    shown = [case for case in cases if case["useful_gflops"] and case.get("flops_per_byte")]
    figure = Figure(figsize=(9, 4.8), layout="constrained")
    axes = figure.subplots()
    axes.set_xscale("log")
    axes.set_yscale("log")
    ridge = roof["gflops"] / roof["copy_gb_per_s"]
    left = min([ridge / 8, *(case["flops_per_byte"] / 2 for case in shown)])
    right = max([ridge * 8, *(case["flops_per_byte"] * 2 for case in shown)])
    line = np.array([left, ridge, right])
    reached = np.minimum(line * roof["copy_gb_per_s"], roof["gflops"])
    axes.plot(line, reached, color="black", linewidth=1.5)
    for case in shown:
        axes.plot(case["flops_per_byte"], case["useful_gflops"], "o", color=colour(case), markersize=5)
    bottom = min([*(case["useful_gflops"] for case in shown), reached[0]]) / 1.5
    axes.set_xlim(left, right)
    axes.set_ylim(bottom, 2 * roof["gflops"])
    _note(axes, ridge, roof["gflops"], f"matrix product: {roof['gflops']:,.0f} GFLOP/s", (0, 8), "left")
    _note(axes, left, reached[0], f"memory: {roof['copy_gb_per_s']:,.0f} GB/s", (16, 0), "left")
    ends = [(case["flops_per_byte"], case["useful_gflops"], case["arm"], colour(case)) for case in shown]
    _label_ends(axes, right, ends)
    _plain(axes.yaxis, bottom, 2 * roof["gflops"])
    _plain(axes.xaxis, left, right)
    axes.set_xlabel("operations for each byte that has to be moved at least (FLOP/byte, log scale)")
    axes.set_ylabel("useful work (GFLOP/s, log scale)")
    _open(axes)
    return _svg(figure, "Roofline")


def curves(cases: Cases, over: str, value: str) -> str:
    """``value``, "latency" or "throughput", over ``over``, "batch" or "length": a panel for each framework."""
    frameworks = [name for name in COLOURS if any(case["framework"] == name for case in cases)]
    figure = Figure(figsize=(max(9.0, 3.6 * len(frameworks)), 4.4), layout="constrained")
    panels = figure.subplots(1, len(frameworks), sharey=True, sharex=True, squeeze=False)[0]
    lines: dict[str, list[Mapping[str, Any]]] = {}
    for case in sorted(cases, key=lambda case: case[over]):
        lines.setdefault(case["arm"], []).append(case)
    points = sorted({case[over] for case in cases})
    values = [_value(case, value) for case in cases]
    bottom, top = min(values) / 1.3, max(values) * 1.3
    for axes, framework in zip(panels, frameworks, strict=True):
        axes.set_xscale("log")
        axes.set_yscale("log")
        own = {arm: found for arm, found in lines.items() if found[0]["framework"] == framework}
        for arm, found in lines.items():
            if arm not in own:
                axes.plot(*_line(found, over, value), color="0.88", linewidth=1, zorder=0)
        ends: list[tuple[float, float, str, str]] = []
        for number, found in enumerate(own.values()):
            x, y = _line(found, over, value)
            style = "-" if found[0]["arm"].startswith(OURS) else "--"
            marker = _MARKERS[number % len(_MARKERS)]
            axes.plot(x, y, style, color=colour(found[0]), linewidth=1.4, marker=marker, markersize=4)
            if x[-1] == points[-1]:
                ends.append((x[-1], y[-1], _short(found[0]), colour(found[0])))
        axes.set_xlim(points[0] / 1.15, points[-1] * (points[-1] / points[0]) ** 0.1)
        axes.set_ylim(bottom, top)
        _label_ends(axes, axes.get_xlim()[1], ends)
        axes.xaxis.set_major_locator(FixedLocator(points))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_major_formatter(FuncFormatter(lambda number, _: f"{number:g}"))
        axes.set_title(framework, color=COLOURS[framework], fontsize=10, loc="left")
        axes.set_xlabel({"batch": "rows of a batch", "length": "tokens of a row"}[over])
        _open(axes)
    _plain(panels[0].yaxis, bottom, top)
    panels[0].set_ylabel({"latency": "median of a call (ms)", "throughput": "real tokens a second"}[value])
    return _svg(figure, f"{value} over {over}")


def _value(case: Mapping[str, Any], value: str) -> float:
    return case["latency_ms"]["p50"] if value == "latency" else case["tokens_per_second"]


def _line(found: Cases, over: str, value: str) -> tuple[list[float], list[float]]:
    return [case[over] for case in found], [_value(case, value) for case in found]


def _short(case: Mapping[str, Any]) -> str:
    """The arm without the framework that its panel names."""
    return case["arm"].removeprefix(f"{OURS}{case['framework']}-") if case["arm"].startswith(OURS) else case["arm"]


def _rows(cases: Cases, label: str) -> tuple[Figure, Axes]:
    """A row for each case, the first on top, with its name in the colour of its framework."""
    figure = Figure(figsize=(9, 1.0 + _ROW * max(1, len(cases))), layout="constrained")
    axes = figure.subplots()
    axes.set_yticks(range(len(cases)), [case["arm"] for case in cases])
    for tick, case in zip(axes.get_yticklabels(), cases, strict=True):
        tick.set_color(colour(case))
    axes.set_ylim(len(cases) - 0.4, -0.6)
    axes.set_xlabel(label)
    axes.tick_params(axis="y", length=0)
    _open(axes)
    axes.grid(visible=False, axis="y")
    return figure, axes


def _open(axes: Axes) -> None:
    axes.grid(visible=True, alpha=0.3)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def _digits(value: float) -> str:
    """Three digits, or all before the point."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _beside(axes: Axes, x: float, y: float, text: str) -> None:
    _note(axes, x, y, text, (5, 0), "left")


def _note(axes: Axes, x: float, y: float, text: str, offset: tuple[float, float], side: str) -> None:
    axes.annotate(text, (x, y), xytext=offset, textcoords="offset points", fontsize=9, va="center", ha=side,
                  annotation_clip=False)  # fmt: skip


def _label_ends(axes: Axes, x: float, ends: Sequence[tuple[float, float, str, str]], gap: float = 0.052) -> None:
    """Labels at ``x``, each beside its point and with a thread to it, moved apart where they would lie on each other.

    ``ends``: x and y of the point, its label and its colour. The y axis is logarithmic.
    """
    low, high = np.log(axes.get_ylim())
    wanted = sorted(((float(np.log(end[1])) - low) / (high - low), end) for end in ends)
    placed: list[float] = []
    for share, _ in wanted:
        placed.append(max(share, placed[-1] + gap) if placed else share)
    ceiling = 1.0
    for number in reversed(range(len(placed))):  # down again from the top
        placed[number] = min(placed[number], ceiling)
        ceiling = placed[number] - gap
    for (_, (start, height, text, tone)), place in zip(wanted, placed, strict=True):
        beside = (x * (x / axes.get_xlim()[0]) ** 0.02, float(np.exp(low + (high - low) * place)))
        thread = {"arrowstyle": "-", "color": tone, "linewidth": 0.5, "alpha": 0.5, "relpos": (0, 0.5)}
        where: dict[str, Any] = {"xytext": beside, "va": "center", "annotation_clip": False}
        axes.annotate(text, (start, height), fontsize=8.5, color=tone, arrowprops=thread, **where)


def _plain(axis: Any, low: float, high: float) -> None:
    """Plain numbers on a logarithmic axis, as many as there is room for."""
    decades = np.log10(high / low)
    subs = (1.0, 2.0, 5.0) if decades < 2.5 else (1.0,)
    if decades < 0.8:
        subs = (1.0, 1.2, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0)
    axis.set_major_locator(LogLocator(subs=subs))
    axis.set_major_formatter(FuncFormatter(lambda number, _: f"{number:,.10g}"))
    axis.set_minor_formatter(NullFormatter())
    axis.set_minor_locator(NullLocator())


def _svg(figure: Figure, title: str) -> str:
    """The figure as an element of a page. The same figure gives the same text."""
    file = io.StringIO()
    with mpl.rc_context({"svg.hashsalt": title, "svg.fonttype": "path"}):
        figure.savefig(file, format="svg", metadata={"Date": None, "Title": title})
    return file.getvalue()[file.getvalue().index("<svg") :]
