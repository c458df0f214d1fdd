"""What ``triglot bench`` shows: its progress, and a table for each cell."""

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.text import Text

from triglot.shared.console import console, progress, table

from . import comparison, report
from .comparison import Change


@contextmanager
def steps(title: str, total: int, *, quiet: bool) -> Generator[Callable[[int, str], None]]:
    """A progress bar of the cases that are done, with the time left and what is done now."""
    with progress(title, quiet=quiet) as update:
        yield lambda done, text: update(done, total, text) if update else None


def print_bench(found: Mapping[str, Any]) -> None:
    """A table for each cell, fastest first, and what the hardware can do."""
    screen = console()
    for one in found["roofline"]:
        if one["gflops"]:
            screen.print(
                f"roofline in {report.where(one)}: {one['gflops']:.0f} GFLOP/s, copies at "
                f"{one['copy_gb_per_s']:.1f} GB/s"
            )
    for cell, members in report.by_cell(found).items():
        screen.print()
        screen.print(report.title(members[0]))
        _print_cell(screen, members)
        screen.print(report.notes(found, cell))


def _print_cell(screen: Console, members: list[dict[str, Any]]) -> None:
    shown = table()
    columns, rows = report.table(members)
    shown.add_column(columns[0], no_wrap=True)
    shown.add_column(columns[1])
    for column in columns[2:]:
        shown.add_column(column, justify="right", no_wrap=True)
    others: list[str] = []
    for case, (name, verdict, *numbers) in zip(members, rows, strict=True):
        if case["status"] == "ok":
            shown.add_row(name, Text(verdict, "green"), *numbers)
        else:
            others.append(f"{name} {verdict}")
    if shown.rows:
        screen.print(shown)
    for line in others:
        screen.print(line)


def print_changes(changes: Sequence[Change], differences: Sequence[str]) -> None:
    """A line for each case that was timed before, and what else has changed."""
    screen = console()
    screen.print()
    shown = table()
    name, spread, verdict = comparison.COLUMNS
    shown.add_column(name, no_wrap=True)
    shown.add_column(spread, justify="right")
    shown.add_column(verdict)
    styles = {"slower": "bold red", "gone": "bold red", "faster": "green", "same": ""}
    for change in changes:
        name, spread, verdict = comparison.row(change)
        shown.add_row(name, spread, Text(verdict, styles[change.verdict]))
    screen.print(shown)
    for line in differences:
        screen.print(f"also, {line}")
