"""What the command line shows: tables on standard output, progress on standard error."""

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import rich.box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from triglot.parity import probes
from triglot.parity.checks import API, END_TO_END, LOCAL, MASKS, UNUSUAL_INPUTS, WORKER
from triglot.parity.report import Report, Row, worst
from triglot.shared.checkpoint import Checkpoint
from triglot.shared.model import schema
from triglot.shared.model.config import ModelConfig
from triglot.shared.model.named_values import OUTPUT
from triglot.shared.training.plan import Outcome
from triglot.shared.training.translation import Score

_STYLES = {
    "pass": "green",
    "diverged": "bold red",
    "error": "bold yellow",
    "skipped": "yellow",
    "incomplete": "bold yellow",
}

# How the checks are gathered into lines: title, checks, and the one value that a line is about, if it is about one.
_LINES: tuple[tuple[str, tuple[str, ...], str | None], ...] = (
    ("masks", (MASKS,), None),
    ("encode, heads, weights", (API,), None),
    ("output", (END_TO_END,), OUTPUT),
    ("every value, end to end", (END_TO_END,), None),
    ("every step alone", (LOCAL,), None),
    ("every step on probes", probes.KINDS, None),
    ("unusual inputs", UNUSUAL_INPUTS, None),
    ("worker", (WORKER,), None),
)


@contextmanager
def progress(title: str, *, quiet: bool) -> Iterator[Callable[[int, int, str], None] | None]:
    """A progress bar on a terminal; nothing in a pipe."""
    console = Console(stderr=True)
    if quiet or not console.is_terminal:
        yield None
        return
    columns = (
        TextColumn(title),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(elapsed_when_finished=True),
        TextColumn("{task.description}"),
    )
    # A step may take minutes: the time left is told by all that were done.
    with Progress(*columns, console=console, transient=True, speed_estimate_period=1e6) as bar:
        task = bar.add_task("", total=None)
        yield lambda done, total, name: bar.update(task, completed=done, total=total, description=name)


@contextmanager
def training_progress(steps: int, *, quiet: bool) -> Iterator[Callable[[int, float, Outcome], bool] | None]:
    """A progress bar with rate, loss and accuracy on a terminal; nothing in a pipe."""
    with progress("training", quiet=quiet) as update:
        if update is None:
            yield None
            return
        show = update

        def on_step(step: int, rate: float, outcome: Outcome) -> bool:
            accuracy = outcome.right / outcome.counted
            show(step, steps, f"rate {rate:.3g}  loss {outcome.loss:.4f}  accuracy {accuracy:.1%}")
            return True

        yield on_step


def print_training(checkpoint: Checkpoint, target: Path, framework: str, unseen: Score) -> None:
    """What a training came to, in two lines."""
    training = checkpoint.training
    assert training is not None
    last = slice(-50, None)
    loss, accuracy = training.history.loss[last].mean(), training.history.accuracy[last].mean()
    print_line(
        f"{target}: {training.moments.steps} steps, the last in {framework}; in the last 50, loss {loss:.4f} and "
        f"{accuracy:.2%} of the tokens"
    )
    print_line(f"unseen sentences, greedy: {unseen.tokens:.2%} of the tokens, {unseen.sequences:.1%} whole")


def print_parity(report: Report) -> None:
    """One line for each framework and kind of check: its worst value, and how many times the noise that is off."""
    screen = console()
    screen.print(f"{report.model}: {report.inputs}")
    screen.print(f"weights {report.weights_digest}")
    screen.print()
    shown = table()
    for column in ("framework", "check"):
        shown.add_column(column, no_wrap=True)
    shown.add_column("values", justify="right")
    shown.add_column("worst value", overflow="fold")
    for column in ("error", "noise", "times\nnoise", "of\nbudget"):
        shown.add_column(column, justify="right", no_wrap=True)
    shown.add_column("verdict", no_wrap=True)
    for framework in report.frameworks:
        for title, checks, value in _LINES:
            rows = [row for row in report.rows if row.framework == framework and row.check in checks]
            rows = [row for row in rows if value is None or row.name == value]
            if rows:
                _add_parity_line(shown, framework, title, rows)
        shown.add_section()
    screen.print(shown)
    screen.print()
    for line in _findings(report):
        screen.print(line)
    screen.print(Text("verdict: ").append(report.verdict, _STYLES[report.verdict]))


def summary(report: Report) -> str:
    """The verdict and its grounds in one line."""
    return f"verdict: {report.verdict}; {'; '.join(_findings(report))}"


def contents(checkpoint: Checkpoint) -> dict[str, Any]:
    """What ``triglot inspect`` shows, as plain JSON types."""
    tensors = {
        name: {
            "dtype": tensor.dtype.name,
            "shape": list(tensor.shape),
            "axes": list(schema.parameters(checkpoint.config)[name].axes),
            "bytes": tensor.nbytes,
            "source": checkpoint.source_names.get(name),
        }
        for name, tensor in checkpoint.tensors.items()
    }
    return {
        "digest": checkpoint.digest,
        "parameters": sum(tensor.size for tensor in checkpoint.tensors.values()),
        "bytes": sum(tensor.nbytes for tensor in checkpoint.tensors.values()),
        "config": checkpoint.config.to_dict(),
        "tensors": tensors,
        "aliases": checkpoint.aliases,
    }


def print_contents(found: Mapping[str, Any]) -> None:
    """The configuration, then a line for each tensor, then the totals."""
    screen = console()
    shown = table()
    shown.add_column("configuration")
    shown.add_column("")
    for name, value in found["config"].items():
        shown.add_row(name, str(value))
    screen.print(shown)
    screen.print()
    shown = table()
    shown.add_column("tensor")
    shown.add_column("axes")
    for column in ("shape", "dtype", "bytes"):
        shown.add_column(column, justify="right")
    for name, tensor in found["tensors"].items():
        shape = " x ".join(map(str, tensor["shape"]))
        shown.add_row(name, ", ".join(tensor["axes"]), shape, tensor["dtype"], f"{tensor['bytes']:,}")
    screen.print(shown)
    screen.print()
    for alias, name in found["aliases"].items():
        screen.print(f"{alias} is {name}")
    screen.print(f"{len(found['tensors'])} tensors, {found['parameters']:,} parameters, {found['bytes']:,} bytes")
    screen.print(f"digest {found['digest']}")


def print_recipes(configs: Mapping[str, ModelConfig]) -> None:
    """A line for each recipe."""
    shown = table()
    shown.add_column("recipe", no_wrap=True)
    for column in ("layers", "hidden", "heads", "feed-\nforward", "vocab-\nulary", "max\nlength"):
        shown.add_column(column, justify="right", no_wrap=True)
    for column in ("pre / post\n/ final", "acti-\nvation", "masking"):
        shown.add_column(column, no_wrap=True)
    shown.add_column("parameters", justify="right", no_wrap=True)
    for name, config in configs.items():
        layers = f"{config.layers}+{config.decoder_layers}" if config.decoder_layers else str(config.layers)
        sizes = (config.hidden_size, config.heads, config.feed_forward_size)
        shown.add_row(
            name,
            layers,
            *map(str, sizes),
            str(config.source_vocabulary or "-"),
            str(config.source_max_length),
            " / ".join(process or "-" for process in (config.pre_process, config.post_process, config.final_process)),
            config.activation,
            config.masking,
            f"{_parameter_count(config):,}",
        )
    console().print(shown)


def print_doctor(found: Mapping[str, Any]) -> None:
    """The environment, and for each framework whether it can be used."""
    screen = console()
    screen.print(f"Python {found['python']}, {found['system']}, {found['cores']} cores, {found['processor']}")
    for package, version in found["packages"].items():
        screen.print(f"{package:14}{version or 'not installed'}")
    for name, value in found["variables"].items():
        screen.print(f"{name}={value}")
    usable = ", ".join(found["frameworks"]) or "none; install triglot[torch], triglot[paddle] or triglot[jax]"
    screen.print(f"frameworks: {usable}")


def print_line(line: str) -> None:
    """One line, as it is."""
    console().print(line)


class _Output(Console):
    """Standard output. A reader that is gone is an error for the caller, not, as for Rich, the end with code 1."""

    def on_broken_pipe(self) -> None:
        self.quiet = True
        raise BrokenPipeError


def table() -> Table:
    """A table as narrow as its content allows: the names of values are long."""
    return Table(box=rich.box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0))


def console() -> Console:
    """Standard output, with no width of its own in a pipe."""
    console = _Output(highlight=False, markup=False, soft_wrap=True)
    if not console.is_terminal:
        console.width = 200  # a pipe has no width: cut nothing
    return console


def _findings(report: Report) -> Iterator[str]:
    """What speaks against a pass: where each framework first diverges, and who gave no results."""
    for framework, place in report.first_divergence.items():
        rows = [row for row in report.rows if row.framework == framework and row.name == place.name]
        yield f"first divergence of {framework}: {place.name} ({place.kind}), {worst(rows).reason}"
    for row in report.rows:
        if row.verdict == "error":
            where = "at all" if row.check == WORKER else f"in {row.check}"
            yield f"{row.framework} gave no results {where}: {row.reason}"


def _add_parity_line(table: Table, framework: str, title: str, rows: list[Row]) -> None:
    row = worst(rows)
    table.add_row(
        framework,
        title,
        str(len(rows)),
        row.name if row.budget_used else "-",
        _number(row.error),
        _number(row.noise),
        "-" if row.times_noise is None else f"{row.times_noise:,.2f}",
        f"{row.budget_used:,.0%}" if row.budget_used < math.inf else "-",
        Text(row.verdict, _STYLES[row.verdict]),
    )


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2g}" if value else "0"


def _parameter_count(config: ModelConfig) -> int:
    count = 0
    for parameter in schema.parameters(config).values():
        size = 1
        for axis in parameter.shape:
            size *= axis
        count += size
    return count
