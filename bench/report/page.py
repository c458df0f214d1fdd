"""A benchmark as one page that needs nothing else: ``triglot bench --html``, or of a file that ``--json`` wrote.

``python -m triglot.bench_page RESULT.json PAGE.html``
"""

import importlib.resources
import importlib.util
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from triglot.shared import files
from triglot.shared.errors import OutputError, TriglotError

from . import comparison, report
from .comparison import Change

Cases = list[dict[str, Any]]

# What cells of a grid share, in the order of the headings.
_SHARED = ("model", "workload", "dtype", "device", "threads", "order")


def check_page(path: Path) -> None:
    """Refuse, before the work, what could not be written after it.

    Raises:
        OutputError: matplotlib or Jinja is missing, or the file cannot be written.
    """
    if missing := [name for name in ("matplotlib", "jinja2") if importlib.util.find_spec(name) is None]:
        raise OutputError(f"pages need {' and '.join(missing)}, which is not installed; install triglot[report]")
    files.check_target(path)


def write_page(
    found: Mapping[str, Any], path: Path, changes: Sequence[Change] = (), differences: Sequence[str] = ()
) -> None:
    """Write the page of a report, and of what has changed since an earlier one (``comparison.py``).

    Raises:
        OutputError: see ``check_page``.
    """
    check_page(path)
    with files.writing(path) as file:
        file.write(page(found, changes, differences).encode())


def page(found: Mapping[str, Any], changes: Sequence[Change] = (), differences: Sequence[str] = ()) -> str:
    """The page of a report, ``triglot.bench/1``; see ``write_page``."""
    from jinja2 import Environment, StrictUndefined  # noqa: PLC0415 (an extra)

    from . import plots as bench_plots  # noqa: PLC0415 (matplotlib takes as long as a framework)

    source = importlib.resources.files("triglot.bench.report").joinpath("bench.html.jinja").read_text(encoding="utf-8")
    template = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True).from_string(source)
    by_cell = report.by_cell(found)
    timed = [case for members in by_cell.values() for case in members if case["status"] == "ok"]
    took_part = {case["framework"] for case in timed}
    grids = _over_grids(timed)
    cells = [_cell(found, cell, members) for cell, members in by_cell.items()]
    _apart(plot for part in (*grids, *cells) for plot in part["plots"])
    return template.render(
        models=", ".join(found["models"]),
        summary=_summary(found, by_cell),
        facts=_facts(found),
        colours={name: tone for name, tone in bench_plots.COLOURS.items() if name in took_part},
        change_columns=comparison.COLUMNS,
        changes=[comparison.row(change) for change in changes],
        differences=differences,
        grids=grids,
        cells=cells,
        packages=sorted(found["environment"].get("packages", {}).items()),
    )


def _summary(found: Mapping[str, Any], by_cell: Mapping[str, Cases]) -> str:
    cases = [case for members in by_cell.values() for case in members]
    counts = {status: sum(case["status"] == status for case in cases) for status in ("ok", "failed", "skipped")}
    wrong = sum(bool(case["parity"]) and case["parity"]["verdict"] != "pass" for case in cases)
    told = f"{counts['ok']} cases were timed, after each was found to compute what the float64 reference computes"
    told += f"; {counts['failed']} failed" if counts["failed"] else ""
    told += f", {wrong} of them because they compute something else" if wrong else ""
    told += f"; {counts['skipped']} could not take part" if counts["skipped"] else ""
    return f"{told}. Noise floor: {found['noise_floor']:.1%} at most." if found["noise_floor"] else f"{told}."


def _facts(found: Mapping[str, Any]) -> list[tuple[str, str]]:
    around = found["environment"]
    machine = around.get("machine", {})
    facts = [(name, around.get(name)) for name in ("processor", "cores", "system", "python")]
    load = machine.get("load_average")
    facts += [
        ("frequency", f"{machine['frequency_mhz']:.0f} MHz" if machine.get("frequency_mhz") else None),
        ("load before", ", ".join(f"{value:.2f}" for value in load) if load else None),
        *((f"weights of {name}", model["weights_digest"]) for name, model in found["models"].items()),
    ]
    facts += [
        (
            f"roofline in {report.where(one)}",
            f"{one['gflops']:,.0f} GFLOP/s, copies at {one['copy_gb_per_s']:,.1f} GB/s",
        )
        for one in found["roofline"]
        if one["gflops"]
    ]
    return [(name, str(value)) for name, value in facts if value is not None]


def _over_grids(timed: Cases) -> list[dict[str, Any]]:
    """Curves over batch and over length, for every grid that has several."""
    from . import plots as bench_plots  # noqa: PLC0415 (matplotlib takes as long as a framework)

    found: list[dict[str, Any]] = []
    grids: dict[tuple[Any, ...], Cases] = {}
    for case in timed:
        fill = case["fill"] if case["order"] == "padded" else None
        grids.setdefault((*(case[name] for name in _SHARED), fill), []).append(case)
    for cases in grids.values():
        for over, other in (("batch", "length"), ("length", "batch")):
            for fixed in sorted({case[other] for case in cases}):
                part = [case for case in cases if case[other] == fixed]
                if len({case[over] for case in part}) < 2:
                    continue
                case = part[0]
                shape = "" if case["order"] != "padded" else f", {case['fill']:.0%} of the tokens real"
                title = (
                    f"{case['model']}, {case['workload']}, over {over}: {other} {fixed}{shape}, {report.where(case)}"
                )
                plots = [_plot("Latency", "Lower is better. Dashed: stock encoders; pale: the other frameworks.",
                               bench_plots.curves(part, over, "latency"))]  # fmt: skip
                if all(case["tokens_per_second"] for case in part):
                    plots.append(_plot("Throughput", "Higher is better. Padding does not count.",
                                       bench_plots.curves(part, over, "throughput")))  # fmt: skip
                found.append({"title": title, "plots": plots})
    return found


def _cell(found: Mapping[str, Any], cell: str, members: Cases) -> dict[str, Any]:
    from . import plots as bench_plots  # noqa: PLC0415

    timed = [case for case in members if case["status"] == "ok"]
    plots: list[dict[str, str]] = []
    if timed:
        plots.append(_plot("Latency", "Lower is better.", bench_plots.latencies(timed)))
    if any(case["ratio"] for case in timed):
        base = report.ratio_base(found, cell)
        floor = report.floor_of_cell(found, cell)
        noise = "The noise was not measured." if floor is None else f"Grey: the noise floor of this run, {floor:.1%}."
        what = f"Against {base}, in turns with it: left of 1 is faster. {noise}"
        plots.append(_plot("Ratios", what, bench_plots.ratios(timed, floor or 0.0)))
    roof = report.roofline_of(members[0], found["roofline"])
    if roof.get("gflops") and any(case["useful_gflops"] and case.get("flops_per_byte") for case in timed):
        what = (
            "How far each is from what the hardware was seen to do in the same run. The traffic is the least there can "
            "be: each weight once, and the vectors into and out of each layer."
        )
        plots.append(_plot("Roofline", what, bench_plots.roofline(timed, roof)))
    if timed:
        plots.append(_plot("Memory", "Lower is better. Framework, weights and activations.", bench_plots.memory(timed)))
        plots.append(_plot("Cold start", "Lower is better.", bench_plots.cold_starts(timed)))
    columns, shown = report.table(members)
    rows = [{"status": case["status"], "cells": row} for case, row in zip(members, shown, strict=True)]
    title, notes = report.title(members[0]), report.notes(found, cell)
    return {"title": title, "columns": columns, "rows": rows, "notes": notes, "plots": plots}


def _plot(title: str, what: str, svg: str) -> dict[str, str]:
    return {"title": title, "what": what, "svg": svg}


def _apart(plots: Iterable[dict[str, str]]) -> None:
    """Give the parts of every plot names of their own: those of one page must not meet."""
    for number, plot in enumerate(plots):
        plot["svg"] = re.sub(r'(?<=[ "(])(id="|xlink:href="#|url\(#|href="#)', rf"\g<1>plot{number}-", plot["svg"])


def main() -> None:
    """Write the page of a file."""
    if len(sys.argv) != 3:
        sys.stderr.write("triglot: give a file that bench --json wrote, and a page to write\n")
        sys.exit(2)
    result, target = map(Path, sys.argv[1:])
    try:
        write_page(comparison.read(result), target)
    except TriglotError as error:
        sys.stderr.write(f"triglot: {error}\n")
        sys.exit(2)


if __name__ == "__main__":
    main()
