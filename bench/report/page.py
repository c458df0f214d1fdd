"""A report as one HTML page that needs no other file: ``triglot bench --html``."""

import importlib.resources
import importlib.util
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from triglot.bench.run.cases import Cell
from triglot.shared import files
from triglot.shared.errors import OutputError

from . import tables
from .comparison import NO_CHANGES, Changes
from .report import Report, Result, Table


@dataclass
class _Section:
    """The plots of a grid, or the table and the plots of a cell. ``rows`` holds the status and texts of each row."""

    title: str
    columns: Sequence[str] = ()
    rows: Sequence[tuple[str, Sequence[str]]] = ()
    notes: str = ""
    plots: list[Any] = field(default_factory=list[Any])  # those of plots.py, which is imported only when it draws


def check_page(path: Path) -> None:
    """Check, before anything is timed, that a page can be written.

    Raises:
        OutputError: matplotlib or Jinja is not installed, or the file cannot be written.
    """
    if missing := [name for name in ("matplotlib", "jinja2") if importlib.util.find_spec(name) is None]:
        raise OutputError(f"HTML pages need {' and '.join(missing)}; install triglot[report]")
    files.check_writable(path)


def write_page(report: Report, path: Path, changes: Changes = NO_CHANGES) -> None:
    """Write the page of a report and, if there are any, of the changes since an earlier one."""
    with files.writing(path) as file:
        file.write(render(report, changes).encode())


def render(report: Report, changes: Changes = NO_CHANGES) -> str:
    """Return the page of a report as HTML."""
    from jinja2 import Environment, StrictUndefined  # noqa: PLC0415 (an extra)

    from . import plots  # noqa: PLC0415 (matplotlib takes as long to import as a framework)

    source = importlib.resources.files("triglot.bench.report").joinpath("bench.html.jinja").read_text(encoding="utf-8")
    template = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True).from_string(source)
    cell_tables = report.tables()
    timed = [row.result for table in cell_tables for row in table.rows if row.result.status == "ok"]
    grids = _grid_sections(timed)
    cells = [_cell_section(report, table) for table in cell_tables]
    for number, plot in enumerate(plot for section in (*grids, *cells) for plot in section.plots):
        # All plots share one page, so each needs ids of its own.
        plot.svg = re.sub(r'(?<=[ "(])(id="|xlink:href="#|url\(#|href="#)', rf"\g<1>plot{number}-", plot.svg)
    return template.render(
        models=", ".join(report.models),
        summary=_summary(report),
        facts=_facts(report),
        colours={name: plots.colour(name) for name in plots.frameworks(timed)},
        change_columns=tables.CHANGE_COLUMNS,
        changes=[tables.change_cells(change) for change in changes.cases],
        differences=changes.differences,
        grids=grids,
        cells=cells,
        packages=sorted(report.surroundings.environment.get("packages", {}).items()),
    )


def _summary(report: Report) -> str:
    results = [result for result in report.results if not result.case.is_twin]
    counts = {status: sum(result.status == status for result in results) for status in ("ok", "failed", "skipped")}
    text = f"{counts['ok']} cases were timed, after their outputs were compared with the float64 reference"
    text += f"; {counts['failed']} failed" if counts["failed"] else ""
    text += f", {len(report.diverged)} of them because they diverge from the reference" if report.diverged else ""
    text += f"; {counts['skipped']} were skipped" if counts["skipped"] else ""
    return f"{text}. Noise floor: up to {report.noise_floor:.1%}." if report.noise_floor else f"{text}."


def _facts(report: Report) -> list[tuple[str, str]]:
    environment, machine = report.surroundings.environment, report.surroundings.machine
    facts = [(name, environment.get(name)) for name in ("processor", "instructions", "cores", "system", "python")]
    facts += [
        ("frequency", f"{machine.frequency_mhz:.0f} MHz" if machine.frequency_mhz else None),
        ("load before", ", ".join(f"{load:.2f}" for load in machine.load_average) if machine.load_average else None),
        *((f"weights of {name}", model.weights_digest) for name, model in report.models.items()),
    ]
    for roof in report.rooflines:
        if roof.gflops:
            speeds = f"{roof.gflops:,.0f} GFLOP/s, copies at {roof.copy_gb_per_s:,.1f} GB/s"
            facts.append((f"roofline in {tables.where(roof)}", speeds))
    return [(name, str(value)) for name, value in facts if value is not None]


def _grid_sections(timed: Sequence[Result]) -> list[_Section]:
    """Return curves over batch and over length, for every grid that has several."""
    from . import plots  # noqa: PLC0415 (matplotlib)

    sections: list[_Section] = []
    lines: dict[tuple[str, Cell], list[Result]] = {}  # the results that differ in arm and along the axis
    for axis in ("batch", "length"):
        for result in timed:
            lines.setdefault((axis, replace(result.case.cell, **{axis: 0})), []).append(result)
    for (axis, cell), line in lines.items():
        if len({getattr(result.case.cell, axis) for result in line}) < 2:
            continue
        rows = f"{cell.batch} texts" if cell.workload == "embed" else f"batch {cell.batch}"
        fixed = f"length {cell.length}" if axis == "batch" else rows
        fill = f", {cell.fill:.0%} of the tokens real" if cell.order == "padded" else ""
        section = _Section(f"{cell.model}, {cell.workload}, over {axis}: {fixed}{fill}, {tables.where(cell)}")
        section.plots.append(plots.curves(line, axis, "latency"))
        if all(result.tokens_per_second for result in line):
            section.plots.append(plots.curves(line, axis, "throughput"))
        sections.append(section)
    return sections


def _cell_section(report: Report, table: Table) -> _Section:
    from . import plots  # noqa: PLC0415 (matplotlib)

    timed = [row.result for row in table.rows if row.result.status == "ok"]
    columns, texts = tables.used_columns(table)
    rows = [(row.result.status, row_texts) for row, row_texts in zip(table.rows, texts, strict=True)]
    section = _Section(tables.title(table.cell), columns, rows, " ".join(tables.notes(table, report.surroundings)))
    if timed:
        section.plots.append(plots.latencies(timed))
    if any(row.ratio for row in table.rows if row.result.status == "ok"):
        section.plots.append(plots.ratios(table))
    roof = report.roofline_of(table.cell)
    points = [result for result in timed if result.useful_gflops and result.flops_per_byte]
    if roof and roof.gflops and roof.copy_gb_per_s and points:
        section.plots.append(plots.roofline(points, roof.gflops, roof.copy_gb_per_s))
    if timed:
        section.plots += [plots.memory(timed), plots.cold_starts(timed)]
    return section
