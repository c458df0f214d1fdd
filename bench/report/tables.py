"""The tables of a report, for the terminal and as Markdown."""

from collections.abc import Sequence

from rich.table import Column
from rich.text import Text

from triglot.bench.machine import load
from triglot.bench.machine.roofline import Roofline
from triglot.bench.run.arms import ARMS
from triglot.bench.run.batches import SENTENCE_BATCHES
from triglot.bench.run.cases import Cell
from triglot.shared import console

from .comparison import NO_CHANGES, Change, Changes
from .report import Report, Result, Row, Surroundings, Table

COLUMNS = (
    *("arm", "parity", "times the baseline", "ms", "ms, new shapes", "texts/s", "tokens/s", "GFLOP/s"),
    *("of roofline", "cold start, s", "MiB"),
)
CHANGE_COLUMNS = ("case", "times as long as before", "verdict")
_CHANGE_STYLES = {"slower": "bold red", "gone": "bold red", "faster": "green", "same": ""}


def title(cell: Cell) -> str:
    """Describe a cell in words."""
    if cell.order == "padded":
        shape = f"batch {cell.batch}, length {cell.length}, {cell.fill:.0%} of the tokens real"
    elif cell.workload == "embed":
        shape = f"{cell.batch} sentences, up to {cell.length} tokens"
    else:
        order = "as they come" if cell.order == "arrival" else "sorted by length"
        shape = f"{SENTENCE_BATCHES} batches of {cell.batch} sentences, {order}, up to {cell.length} tokens"
    return f"{cell.model}, {cell.workload}, {shape}, {where(cell)}"


def where(place: Cell | Roofline) -> str:
    """Describe in words what a time or a roofline was measured with."""
    return f"{place.dtype}, {place.device}, {place.threads} thread{'' if place.threads == 1 else 's'}"


def heading(column: str, table: Table) -> str:
    """Return the heading of one of ``COLUMNS``: it names the baseline, and says what the milliseconds are for."""
    if column == "times the baseline":
        return f"times {table.baseline}"
    if column == "ms" and table.cell.workload != "embed":
        return "ms per batch" if table.cell.order == "padded" else f"ms per {SENTENCE_BATCHES} batches"
    return column


def cells(row: Row) -> dict[str, str]:
    """Return the text of each of ``COLUMNS``."""
    result = row.result
    if result.status != "ok" or result.latency_ms is None:
        return {**dict.fromkeys(COLUMNS, ""), "arm": result.case.arm, "parity": f"{result.status}: {result.failure}"}
    device = f" (GPU {result.device_ms.p50:.2f})" if result.device_ms else ""
    return {
        "arm": result.case.arm,
        "parity": result.parity.verdict if result.parity else "",
        "ms": f"{result.latency_ms.p50:.2f}{device}",
        "ms, new shapes": f"{result.new_shapes_ms:.2f}" if result.new_shapes_ms else "",
        "texts/s": _texts_per_second(result),
        "tokens/s": f"{result.tokens_per_second:,.0f}" if result.tokens_per_second else "",
        "GFLOP/s": _number(result.useful_gflops) if result.useful_gflops else "",
        "of roofline": f"{_number(100 * row.roofline_share)}%" if row.roofline_share else "",
        "times the baseline": f"{row.ratio:.2f}" if row.ratio else "1" if row.is_baseline else "",
        "cold start, s": f"{sum(result.cold_start):.1f}",
        "MiB": f"{result.peak_rss_mb or 0:,.0f}",
    }


def _texts_per_second(result: Result) -> str:
    is_of_texts = result.case.cell.workload == "embed"
    return f"{result.sequences_per_second:,.0f}" if is_of_texts and result.sequences_per_second else ""


def _number(value: float) -> str:
    """Return a whole number, or three digits if the number is small."""
    return f"{value:,.0f}" if value >= 10 else f"{value:.3g}"


def used_columns(table: Table) -> tuple[list[str], list[list[str]]]:
    """Return the headings of the columns that are not empty, and the text of each row in them."""
    texts = [cells(row) for row in table.rows]
    used = [column for column in COLUMNS if any(text[column] for text in texts)]
    return [heading(column, table) for column in used], [[text[column] for column in used] for text in texts]


def change_cells(change: Change) -> list[str]:
    """Return the text of each of ``CHANGE_COLUMNS``."""
    return [change.id, f"{change.ratio:.2f}" if change.ratio else change.reason, change.verdict]


def notes(table: Table, surroundings: Surroundings) -> list[str]:
    """Return sentences that say what a reader must know to interpret the numbers of a table."""
    parts = [f"Sorted by the time relative to {table.baseline}; below 1 is faster."] if table.baseline else []
    if surroundings.settings.get("quick"):
        parts.append(_what_quick_left_out(table))
    if table.has_other_baselines:
        parts.append("Ratios to a baseline that failed are only in the JSON.")
    if any(row.result.new_shapes_ms for row in table.rows):
        parts.append("New shapes: one call that computes other sentences for the first time.")
    if table.twin:
        parts.append(f"The baseline against its twin: {table.twin:.3f}.")
    if any(row.result.device_ms for row in table.rows):
        parts.append("GPU: from the first work of a call to the last, by the clock of the device.")
    if variables := surroundings.environment.get("variables"):
        settings = ", ".join(f"{name}={value}" for name, value in variables.items())
        parts.append(f"Set in the environment of the arms: {settings}.")
    others = surroundings.others.get(table.cell.id)
    if others is not None:
        parts.append(f"Other processes used {others:.2f} processors.")
        if others > load.BUSY:
            parts.append("The machine was busy: measure again when it is idle.")
    if table.unsteadiness > load.STEADY:
        parts.append(
            f"The speed of the machine varied by a factor of {table.unsteadiness:.2f} (10th to 90th percentile of the "
            f"rounds of {table.baseline} in a process)."
        )
        parts.append(
            "That is too much to rank arms: measure again on an idle machine."
            if table.unsteadiness > load.UNRANKED
            else "Trust the ratios, which compare times of the same moments, more than single times."
        )
    return parts


def _what_quick_left_out(table: Table) -> str:
    timed = {row.result.case.arm for row in table.rows}
    able = [name for name, arm in ARMS.items() if arm.builder_of(table.cell.workload)]
    if left_out := [name for name in able if name not in timed]:
        arms = f" Not timed: {len(left_out)} arms ({', '.join(left_out)})."
    else:
        arms = ""
    return (
        f"A quick look, with wide intervals.{arms} Left out: further processes of each arm, so the intervals do not "
        "cover how much two processes differ; the twin, so the noise floor is not known; the roofline. "
        "A cold start may include what PyTorch's compiler learns once on a machine."
    )


def markdown(report: Report, changes: Changes = NO_CHANGES) -> str:
    """Return a table for each cell and, if there are any, the changes since an earlier report."""
    lines: list[str] = []
    for table in report.tables():
        lines += [f"**{title(table.cell)}**", "", *markdown_table(*used_columns(table)), ""]
        lines += [" ".join(notes(table, report.surroundings)), ""]
    if changes.cases:
        lines += ["**Since the earlier report**", ""]
        lines += [*markdown_table(CHANGE_COLUMNS, [change_cells(change) for change in changes.cases]), ""]
        lines += [f"- also, {difference}" for difference in changes.differences]
    return "\n".join(lines).rstrip() + "\n"


def markdown_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the lines of a Markdown table."""
    heading, *lines = [f"| {' | '.join(row)} |" for row in (columns, *rows)]
    return [heading, f"|{'---|' * len(columns)}", *lines]


def print_report(report: Report) -> None:
    """Print what the hardware can do, then a table for each cell."""
    screen = console.console()
    for roof in report.rooflines:
        if roof.gflops:
            speeds = f"{roof.gflops:,.0f} GFLOP/s, copies at {roof.copy_gb_per_s:,.1f} GB/s"
            screen.print(f"roofline in {where(roof)}: {speeds}")
    for table in report.tables():
        screen.print()
        screen.print(title(table.cell))
        _print_rows(table)
        for note in notes(table, report.surroundings):
            screen.print(note)


def _print_rows(table: Table) -> None:
    columns, texts = used_columns(table)
    timed = console.table(*console.word_columns(columns[0]), columns[1], *console.number_columns(*columns[2:]))
    untimed: dict[str, list[str]] = {}
    for row, (arm, verdict, *measured) in zip(table.rows, texts, strict=True):
        if row.result.status == "ok":
            timed.add_row(arm, Text(verdict, "green"), *measured)
        else:
            untimed.setdefault(verdict, []).append(arm)
    screen = console.console()
    if timed.rows:
        screen.print(timed)
    for verdict, arms in untimed.items():
        screen.print(f"{', '.join(arms)} {verdict}")


def print_changes(changes: Changes) -> None:
    """Print a line for each case that was timed before, then what else differs."""
    screen = console.console()
    screen.print()
    case, ratio, verdict = CHANGE_COLUMNS
    shown = console.table(*console.word_columns(case), Column(ratio, justify="right"), verdict)
    for change in changes.cases:
        *texts, verdict = change_cells(change)
        shown.add_row(*texts, Text(verdict, _CHANGE_STYLES[verdict]))
    screen.print(shown)
    for difference in changes.differences:
        screen.print(f"also, {difference}")
