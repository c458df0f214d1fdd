"""``triglot bench``: which framework, in which mode, is fastest for a model on this machine, and by how much."""

import sys
from collections.abc import Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from triglot.commands.options import (
    CPU,
    FLOAT32,
    ConfigOption,
    Device,
    DialectOption,
    Dtype,
    Framework,
    JsonOption,
    Mode,
    QuietOption,
    SeedOption,
    SetOption,
)
from triglot.commands.output import PRINTED, check_apart, check_file, check_target, show, shows_tables, write_json
from triglot.shared.errors import BenchError

if TYPE_CHECKING:
    from triglot.bench.report.comparison import Change  # which would make every command wait

ModelsArgument = Annotated[
    list[str],
    typer.Argument(
        metavar="MODEL...",
        help="One or more, each a recipe, a neutral checkpoint (.npz), or a folder with config.json and "
        "model.safetensors, as for parity.",
    ),
]


class Workload(StrEnum):
    """What is computed."""

    forward = "forward"
    forward_backward = "forward+backward"
    training = "training"
    generation = "generation"


class Order(StrEnum):
    """How the rows of a batch are as long as they are."""

    padded = "padded"
    arrival = "arrival"
    sorted = "sorted"


class Allocator(StrEnum):
    """What becomes of memory between two calls."""

    keep = "keep"
    default = "default"


def bench(
    model: ModelsArgument,
    framework: Annotated[
        list[Framework] | None, typer.Option(help="Only the arms of this one; repeatable. Default: every one.")
    ] = None,
    mode: Annotated[list[Mode] | None, typer.Option(help="Only the arms in this mode; repeatable.")] = None,
    arm: Annotated[
        list[str] | None,
        typer.Option(help="Only this arm, as nnx; repeatable. Default: every one (docs/benchmark.md)."),
    ] = None,
    workload: Annotated[Workload, typer.Option(help="What is computed.")] = Workload.forward,
    batch: Annotated[list[int] | None, typer.Option(min=1, help="Rows of a batch; repeatable. Default: 8.")] = None,
    length: Annotated[
        list[int] | None, typer.Option(min=1, help="Tokens of a row; repeatable. Default: 128, or the maximum.")
    ] = None,
    fill: Annotated[
        list[float] | None,
        typer.Option(
            help="Share of the tokens that is real, over 0, up to 1; the first row is whole, whatever it is. "
            "Repeatable. Default: 1.",
        ),
    ] = None,
    order: Annotated[
        list[Order] | None,
        typer.Option(
            help="padded: rows as --fill says; arrival: sentences of real prose as they come; sorted: by length. "
            "Repeatable. Default: padded."
        ),
    ] = None,
    dtype: Annotated[list[Dtype] | None, typer.Option(help="Number format; repeatable. Default: float32.")] = None,
    device: Annotated[Device, typer.Option(help="Where to run.")] = CPU,
    threads: Annotated[int | None, typer.Option(min=1, help="Threads of each arm. Default: one per core.")] = None,
    seconds: Annotated[float, typer.Option(min=0.1, max=3600, help="Seconds of samples for each case.")] = 1.5,
    rounds: Annotated[int, typer.Option(min=2, max=1000, help="Rounds that they are spread over.")] = 48,
    time_limit: Annotated[
        float, typer.Option(min=1, max=1e6, help="Seconds that an arm may take for one answer.")
    ] = 600,
    memory_limit: Annotated[
        int | None,
        typer.Option(min=1, max=10**9, metavar="MIB", help="Memory that an arm may take. Default: what there is."),
    ] = None,
    allocator: Annotated[
        Allocator,
        typer.Option(
            help="keep: memory that a call frees is kept for the next; default: as the system does, which differs from "
            "process to process."
        ),
    ] = Allocator.keep,
    source_dialect: DialectOption = None,
    config: ConfigOption = None,
    fields: SetOption = None,
    seed: SeedOption = 0,
    json_file: JsonOption = None,
    markdown: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the tables as Markdown.")] = None,
    html: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write tables and plots as one page that needs nothing else.")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Complete the file of --json: what is in it is not timed again.")
    ] = False,
    compare: Annotated[
        Path | None,
        typer.Option(metavar="OLD", help="Say what has become slower since this result; exit code 1 if anything has."),
    ] = None,
    quiet: QuietOption = False,
) -> None:
    """Time Triglot's implementations and the stock encoders of the frameworks, after proving that each is right."""
    from triglot import models  # noqa: PLC0415
    from triglot.bench.report import comparison, report  # noqa: PLC0415
    from triglot.bench.report import page as bench_page  # noqa: PLC0415
    from triglot.bench.report import tables as bench_tables  # noqa: PLC0415
    from triglot.bench.run import arms, benchmark  # noqa: PLC0415
    from triglot.bench.run.cases import Case, cells  # noqa: PLC0415
    from triglot.bench.run.settings import Settings  # noqa: PLC0415
    from triglot.commands.fields import configuration  # noqa: PLC0415
    from triglot.shared import environment, files  # noqa: PLC0415

    check_target(json_file, *model, config, compare)
    for target in (markdown, html):
        check_file(target, *model, config, compare)
    check_apart(json_file, markdown, html)
    if html is not None:
        bench_page.check_page(html)
    if resume and json_file in (None, PRINTED):
        raise BenchError("--resume completes the file of --json; name a file")
    _check_limits(memory_limit, threads)
    _check_fills(fill or [], order or [])
    earlier = comparison.read(json_file) if resume and json_file is not None and json_file.exists() else None
    old = comparison.read(compare) if compare is not None else None
    dialect = source_dialect.value if source_dialect else None
    resolved = [models.resolve(one, seed, configuration(config, fields), dialect) for one in dict.fromkeys(model)]
    sources = [benchmark.BenchedModel(one.name, one.checkpoint, one.tokenizer) for one in resolved]
    names = arms.selected([one.value for one in framework or []], [one.value for one in mode or []], arm or [])
    spanned = [
        cell
        for source in sources
        for cell in cells(
            source.name,
            workload.value,
            batches=batch or [8],
            lengths=length or [min(128, source.checkpoint.config.source_max_length)],
            fills=fill or [1.0],
            orders=[one.value for one in order or [Order.padded]],
            dtypes=[one.value for one in dtype or [FLOAT32]],
            device=device.value,
            threads=threads or environment.cores(),
        )
    ]
    if old is not None:
        ids = [Case(name, cell).id for cell in spanned for name in names]
        ids += [case["id"] for case in earlier["cases"]] if earlier else []
        configurations = {source.name: source.checkpoint.config.to_dict() for source in sources}
        comparison.check_comparable(old, configurations, ids)
    settings = Settings(
        seconds=seconds,
        rounds=rounds,
        time_limit=time_limit,
        seed=seed,
        allocator=allocator.value,
        memory_limit_mb=memory_limit,
    )

    title = f"bench of {', '.join(source.name for source in sources)}"
    with (
        bench_tables.steps(title, len(spanned) * len(names), quiet=quiet) as on_step,
        Kept(json_file, there=earlier is not None) as kept,
    ):
        found = benchmark.bench(
            sources,
            spanned,
            names,
            settings,
            on_step=on_step,
            on_results=kept.write,
            earlier=earlier,
        )
    write_json(json_file, found)
    changes = comparison.changes(old, found) if old is not None else []
    differences = comparison.differences(old, found) if old is not None else []
    if markdown is not None:
        parts = [report.markdown(found), *([comparison.markdown(changes, differences)] if changes else [])]
        with files.writing(markdown) as file:
            file.write("\n".join(parts).encode())
    if html is not None:
        bench_page.write_page(found, html, changes, differences)
    shown = shows_tables(json_file, quiet=quiet)
    if shown:
        show(bench_tables.print_bench, found)
        if changes:
            show(bench_tables.print_changes, changes, differences)
    raise typer.Exit(_code(report.exit_code(found), found, changes, shown=shown))


def _check_limits(memory_limit: int | None, threads: int | None) -> None:
    from triglot.shared.environment import cores  # noqa: PLC0415

    if memory_limit is not None and sys.platform != "linux":
        raise BenchError("--memory-limit has no effect here, on Linux alone; leave it out")
    if threads is not None and threads > cores():
        raise BenchError(f"--threads {threads} is over the {cores()} processors there are; ask for no more")


def _check_fills(fills: Sequence[float], orders: Sequence[Order]) -> None:
    if fills and orders and Order.padded not in orders:
        raise BenchError("--fill is for --order padded: sentences are as long as they are; leave it out")
    if wrong := [share for share in fills if not 0 < share <= 1]:
        raise BenchError(f"fill {wrong[0]:g} is no share; expected more than 0, up to 1")


class Kept:
    """The file of --json while the sweep goes on: written with each result; whoever presses Ctrl-C is told of it."""

    def __init__(self, file: Path | None, *, there: bool) -> None:
        self.file = file
        self.foreign = None if there else _stamp(file)

    def write(self, so_far: dict[str, Any]) -> None:
        """What there is so far, in the place of what there was."""
        write_json(self.file, so_far, more=True)

    def __enter__(self) -> "Kept":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        # Asked of the file, not remembered: an interrupt may come between its renaming and the next statement.
        if kind is KeyboardInterrupt and _stamp(self.file) not in (None, self.foreign):
            sys.stderr.write(f"triglot: {self.file} has what was timed; go on with --resume\n")


def _stamp(file: Path | None) -> tuple[int, int] | None:
    """What differs once a file is replaced: where it lies and when it was written; None where there is none."""
    if file is None or not file.is_file():
        return None
    found = file.stat()
    return found.st_ino, found.st_mtime_ns


def _code(code: int, found: Mapping[str, Any], changes: "Sequence[Change]", *, shown: bool) -> int:
    """The exit code, where ``code`` is that of the report alone; says why it is not 0, if no table does."""
    if code == 2:
        reasons: dict[str, list[str]] = {}
        for case in found["cases"]:
            reasons.setdefault(case["failure"], []).append(case["arm"])
        told = "; ".join(f"{', '.join(dict.fromkeys(arms))}: {reason}" for reason, arms in reasons.items())
        sys.stderr.write(f"triglot: nothing was timed; {told}\n")
    judged = [case for case in found["cases"] if case["parity"]]
    wrong = {case["id"]: "diverged" for case in judged if case["parity"]["verdict"] == "diverged"}
    wrong |= {change.id: change.verdict for change in changes if change.verdict in ("slower", "gone")}
    code = max(code, int(any(change.id in wrong for change in changes)))
    if code == 1 and not shown:
        sys.stderr.write(f"triglot: {'; '.join(f'{verdict}: {name}' for name, verdict in wrong.items())}\n")
    return code
