"""Terminal output for people: tables on standard output, progress bars on standard error."""

import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from time import monotonic

import rich.box
from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.table import Column, Table

OnProgress = Callable[[float, int, str], None]  # steps or bytes done, and in total; name of the current step

LINE_SECONDS = 5.0  # between two lines of progress
STARTING_SECONDS = 60.0  # frameworks start and compile, so no time left is shown before a tenth of the work is done
_PIPE_WIDTH = 200  # columns; a pipe has no width of its own, and nothing should be cut


class _StandardOutput(Console):
    """Standard output that reports a closed pipe to the caller. Rich would exit with code 1 instead."""

    def on_broken_pipe(self) -> None:
        self.quiet = True
        raise BrokenPipeError


def console() -> Console:
    """Return a console that prints to standard output."""
    screen = _StandardOutput(highlight=False, markup=False, soft_wrap=True)
    if not screen.is_terminal:
        screen.width = _PIPE_WIDTH
    return screen


def table(*columns: Column | str) -> Table:
    """Return an empty table with narrow margins, because the names of values are long."""
    return Table(*columns, box=rich.box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0))


def word_columns(*headers: str) -> list[Column]:
    """Return columns for words, aligned to the left. They do not wrap."""
    return [Column(header, no_wrap=True) for header in headers]


def number_columns(*headers: str) -> list[Column]:
    """Return columns for numbers, aligned to the right. They do not wrap."""
    return [Column(header, no_wrap=True, justify="right") for header in headers]


def print_line(line: str) -> None:
    """Print one line as it is, without markup."""
    console().print(line)


@contextmanager
def progress(
    title: str, *, quiet: bool, in_bytes: bool = False, in_lines: bool = False
) -> Generator[OnProgress | None]:
    """Show a progress bar and yield the function that updates it; yield None if quiet or not on a terminal.

    ``in_bytes``: steps are bytes, so show sizes and a rate. ``in_lines``: if not on a terminal, print a plain line
    every few seconds.
    """
    screen = Console(stderr=True)
    if quiet or not screen.is_terminal:
        yield _progress_lines(title) if in_lines and not quiet else None
        return
    columns = (
        TextColumn(title),
        BarColumn(),
        *((DownloadColumn(), TransferSpeedColumn()) if in_bytes else (MofNCompleteColumn(),)),
        TimeElapsedColumn(),
        TimeRemainingColumn(elapsed_when_finished=True),
        TextColumn("{task.description}"),
    )
    # One step may take minutes, so the remaining time is estimated from all steps, not only from recent ones.
    with Progress(*columns, console=screen, transient=True, speed_estimate_period=1e6) as bar:
        task = bar.add_task("", total=None)
        yield lambda done, total, name: bar.update(task, completed=done, total=total, description=name)


def _progress_lines(title: str) -> OnProgress:
    """Return a function that prints where the work is and how long the rest will take, but not too often."""
    begin = last = monotonic()

    def update(done: float, total: int, name: str) -> None:
        nonlocal last
        now = monotonic()
        if now - last < LINE_SECONDS:
            return
        last = now
        starting = done < total / 10 and now - begin < STARTING_SECONDS
        left = ""
        if 0 < done < total and not starting:
            minutes, seconds = divmod(round((now - begin) * (total - done) / done), 60)
            left = f", about {minutes}:{seconds:02} left"
        sys.stderr.write(f"{title}: {int(done)} of {total} done{left}: {name}\n")
        sys.stderr.flush()

    return update
