"""A report as one HTML page that needs no other file: ``triglot parity --html``."""

import importlib.resources
import importlib.util
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from triglot.shared import files
from triglot.shared.errors import OutputError

from .report import ORIGINAL, WORKER, Report, Row, worst

LAYER = re.compile(r"(encoder|decoder)\.layers\.(\d+)\.(.+)")


@dataclass(frozen=True)
class Cell:
    """The worst row of a value over all checks: its text, its tooltip and its colour."""

    text: str
    title: str
    colour: str


@dataclass(frozen=True)
class Map:
    """A heat map: a line for each step, and a cell for each framework and column."""

    title: str
    frameworks: Sequence[str]
    columns: Sequence[str]
    lines: Sequence[tuple[str, Sequence[Sequence[Cell]]]]


def check_page(path: Path) -> None:
    """Check, before the work, that a page can be written.

    Raises:
        OutputError: Jinja is not installed, or the file cannot be written.
    """
    if importlib.util.find_spec("jinja2") is None:
        raise OutputError("HTML pages need jinja2; install triglot[report]")
    files.check_writable(path)


def write_page(report: Report, path: Path, command: str) -> None:
    """Write the page of a report. ``command`` reproduces the run."""
    with files.writing(path) as file:
        file.write(render(report, command).encode())


def render(report: Report, command: str) -> str:
    """Return the page of a report as HTML."""
    from jinja2 import Environment, StrictUndefined  # noqa: PLC0415 (an extra)

    source = importlib.resources.files("triglot.parity").joinpath("parity.html.jinja").read_text(encoding="utf-8")
    template = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True).from_string(source)
    return template.render(
        report=report,
        command=command,
        maps=[*_layer_maps(report), _other_values(report)],
        amplifications=_amplifications(report),
        facts=[(name, str(value)) for name, value in report.environment.items() if isinstance(value, str | int)],
        packages=sorted(report.environment.get("packages", {}).items()),
    )


def _layer_maps(report: Report) -> list[Map]:
    """Return a map for the encoder and one for the decoder, with a column for each layer."""
    maps: list[Map] = []
    traced = [name for name in report.frameworks if not _is_original(report, name)]
    for stack in ("encoder", "decoder"):
        matches = [match for name in _names(report) if (match := LAYER.fullmatch(name)) and match[1] == stack]
        layers = sorted({int(match[2]) for match in matches})
        lines = [
            (
                step,
                [[_cell(report, name, f"{stack}.layers.{layer}.{step}") for layer in layers] for name in traced],
            )
            for step in dict.fromkeys(match[3] for match in matches)
        ]
        if lines:
            maps.append(Map(f"Layers of the {stack}", traced, [str(layer) for layer in layers], lines))
    return maps


def _other_values(report: Report) -> Map:
    """Return the map of all values that belong to no layer."""
    names = [name for name in _names(report) if not LAYER.fullmatch(name)]
    lines = [(name, [[_cell(report, framework, name)] for framework in report.frameworks]) for name in names]
    return Map("Everything else", report.frameworks, [""], lines)


def _is_original(report: Report, name: str) -> bool:
    """Return whether this is an original, which has only results."""
    return any(row.check == ORIGINAL for row in report.rows if row.framework == name)


def _names(report: Report) -> list[str]:
    return list(dict.fromkeys(row.name for row in report.rows if row.check != WORKER and row.name))


def _rows(report: Report, framework: str, name: str) -> list[Row]:
    return [row for row in report.rows if row.framework == framework and row.name == name]


def _cell(report: Report, framework: str, name: str) -> Cell:
    rows = _rows(report, framework, name)
    if not rows:
        return Cell("", f"{framework} gave no {name}", "#e5e7eb")
    row = worst(rows)
    if row.verdict == "skipped":
        return Cell("-", f"{row.check}: {row.reason}", "#e5e7eb")
    if not math.isfinite(row.budget_used):
        return Cell("!", f"{row.check}: {row.reason}", "#b91c1c")
    error = f"{row.check}: error {row.error:.2g}, budget {row.budget or 0:.2g}"
    return Cell(
        _percent(row.budget_used), f"{name} of {framework}, {error} {row.reason}".strip(), _colour(row.budget_used)
    )


def _percent(share: float) -> str:
    return f"{share:.0%}" if share < 10 else f"{share:,.0f}x"


def _colour(share: float) -> str:
    """Return green for no error, yellow for the whole budget, and red above it."""
    if share > 1:
        return f"hsl(0 75% {max(45.0, 70 - 8 * math.log10(share)):.0f}%)"
    return f"hsl({130 - 75 * share:.0f} 65% 80%)"


def _amplifications(report: Report) -> list[tuple[str, str, float]]:
    """Return for every layer the median amplification of its steps."""
    ratios: dict[tuple[str, str], list[float]] = {}
    for name, ratio in report.amplification.items():
        if match := LAYER.fullmatch(name):
            ratios.setdefault((match[1], match[2]), []).append(ratio)
    return [(stack, layer, median(found)) for (stack, layer), found in ratios.items()]
