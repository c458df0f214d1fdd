"""``triglot bench``: find out which framework, in which mode, is fastest for a model on this machine."""

import sys
from collections.abc import Sequence
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from triglot import exit_codes
from triglot.bench.run.cases import ALLOCATORS, ORDERS, WORKLOADS, Case, Settings, cells_of_grid
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
    configuration,
)
from triglot.commands.output import PRINTED, check_apart, check_file, check_output, shows_tables, write_json
from triglot.commands.output import show as show_on_screen
from triglot.shared.errors import BenchError, OutputError

if TYPE_CHECKING:  # at run time these would slow down every command
    from triglot.bench.report.comparison import Changes
    from triglot.bench.report.report import Report
    from triglot.bench.run.cases import Cell
    from triglot.bench.run.work import BenchedModel
    from triglot.models import Source

ModelsArgument = Annotated[
    list[str] | None,
    typer.Argument(metavar="MODEL", help="Recipes, checkpoints (.npz) or model folders, as for parity."),
]
Workload = StrEnum("Workload", WORKLOADS)
Order = StrEnum("Order", ORDERS)
Allocator = StrEnum("Allocator", tuple(ALLOCATORS))
FORWARD, PADDED, SYSTEM = Workload("forward"), Order("padded"), Allocator("default")  # the defaults
EMBED, ARRIVAL = Workload("embed"), Order("arrival")

SHOWING = ("show", "compare", "markdown", "html", "quiet")  # options that --show can be combined with
NAMED = 3  # arms that a message names; it counts the others
QUICK = Settings(seconds=0.4, rounds=8, processes=1, warm_up=0.5, uncounted=0.1, again=False, quick=True)


def bench(
    context: typer.Context,
    model: ModelsArgument = None,
    framework: Annotated[
        list[Framework] | None, typer.Option(help="Time the arms of this framework; repeatable. Default: all.")
    ] = None,
    mode: Annotated[list[Mode] | None, typer.Option(help="Time the arms in this mode; repeatable.")] = None,
    arm: Annotated[list[str] | None, typer.Option(help="Time this arm; repeatable (docs/benchmark.md).")] = None,
    workload: Annotated[Workload, typer.Option(help="What to compute.")] = FORWARD,
    batch: Annotated[
        list[int] | None,
        typer.Option(min=1, help="Rows per batch (default 8), or texts with embed (256; --quick: 64)."),
    ] = None,
    length: Annotated[
        list[int] | None, typer.Option(min=1, help="Tokens of a row; repeatable. Default: 128, or the maximum.")
    ] = None,
    fill: Annotated[
        list[float] | None, typer.Option(help="Share of real tokens, over 0 and up to 1; repeatable. Default: 1.")
    ] = None,
    order: Annotated[
        list[Order] | None,
        typer.Option(help="Padded rows, or sentences as they come or sorted; repeatable. Default: padded."),
    ] = None,
    dtype: Annotated[list[Dtype] | None, typer.Option(help="Number format; repeatable. Default: float32.")] = None,
    device: Annotated[Device, typer.Option(help="Device to run on.")] = CPU,
    threads: Annotated[int | None, typer.Option(min=1, help="Threads of each arm. Default: one per core.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Time fewer arms, in about a minute.")] = False,
    seconds: Annotated[
        float | None, typer.Option(min=0.1, max=3600, help="Seconds of samples for each case. Default: 1.5.")
    ] = None,
    rounds: Annotated[
        int | None, typer.Option(min=2, max=1000, help="Rounds over which to spread the samples. Default: 48.")
    ] = None,
    time_limit: Annotated[float, typer.Option(min=1, max=1e6, help="Seconds that an arm may take to answer.")] = 600,
    memory_limit: Annotated[
        int | None, typer.Option(min=1, max=10**9, metavar="MIB", help="Memory limit of each arm. Default: none.")
    ] = None,
    allocator: Annotated[
        Allocator, typer.Option(help="Use the system's default, or keep freed memory for the next call.")
    ] = SYSTEM,
    source_dialect: DialectOption = None,
    config: ConfigOption = None,
    fields: SetOption = None,
    seed: SeedOption = 0,
    json_file: JsonOption = None,
    markdown: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the tables as Markdown.")] = None,
    html: Annotated[Path | None, typer.Option(metavar="FILE", help="Write tables and plots as one HTML page.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the report in the --json file.")] = False,
    compare: Annotated[
        Path | None, typer.Option(metavar="OLD", help="Compare with an earlier report; exit code 1 if slower.")
    ] = None,
    show: Annotated[
        Path | None, typer.Option(metavar="RESULT", help="Show the report in this file, and measure nothing.")
    ] = None,
    quiet: QuietOption = False,
) -> None:
    """Find out which framework is fastest on this machine.

    The first batch of every arm is checked before it is timed.
    """
    from triglot import models  # noqa: PLC0415
    from triglot.bench.report import comparison, document, page  # noqa: PLC0415
    from triglot.bench.run import arms  # noqa: PLC0415
    from triglot.bench.run.work import BenchedModel  # noqa: PLC0415
    from triglot.shared.environment import cores  # noqa: PLC0415

    model = model or []
    check_output(json_file, *model, config, compare)
    for target in (markdown, html):
        check_file(target, *model, config, compare, show)
    check_apart(json_file, markdown, html)
    if html is not None:
        page.check_page(html)
    old = document.read(compare) if compare is not None else None
    if show is not None:
        _check_only_shown(context)
        report = document.read(show)
        changes = comparison.compare(old, report) if old is not None else comparison.Changes()
        _finish(report, changes, None, markdown, html, is_shown=not quiet)
    if not model:
        raise BenchError("MODEL is missing; name a recipe, a checkpoint or a model folder, or --show a report")
    orders = order or [ARRIVAL if workload == EMBED else PADDED]
    _check_options(json_file, fill or [], orders, threads, memory_limit, resume=resume)
    if workload == EMBED:
        _check_embed_options(orders, has_overrides=bool(config or fields))
    earlier = document.read(json_file) if resume and json_file is not None and json_file.exists() else None

    dialect = source_dialect.value if source_dialect else None
    overrides = configuration(config, fields)
    sources = [
        _sentence_encoder(name, dialect, length or [])
        if workload == EMBED
        else models.resolve(name, seed, overrides, dialect)
        for name in dict.fromkeys(model)
    ]
    selected, dtypes = (_values(framework), _values(mode), arm or []), _values(dtype or [FLOAT32])
    if quick and not any(selected):
        configs = [source.checkpoint.config for source in sources]
        names = arms.quick_arms(configs, workload.value, dtypes, device.value)
    else:
        names = arms.select(*selected, workload.value)
    cells = [
        cell
        for source in sources
        for cell in cells_of_grid(
            source.name,
            workload.value,
            batches=batch or [(64 if quick else 256) if workload == EMBED else 8],
            lengths=length or [min(128, source.max_tokens)],
            fills=fill or [1.0],
            orders=_values(orders),
            dtypes=dtypes,
            device=device.value,
            threads=threads or cores(),
        )
    ]
    if old is not None:
        ids = [Case(name, cell).id for cell in cells for name in names]
        ids += [result.case.id for result in earlier.results] if earlier else []
        comparison.check_comparable(old, {one.name: one.checkpoint.config.to_dict() for one in sources}, ids)
    given: dict[str, Any] = {
        name: value for name, value in (("seconds", seconds), ("rounds", rounds)) if value is not None
    }
    settings = replace(
        QUICK if quick else Settings(),
        **given,
        time_limit=time_limit,
        seed=seed,
        allocator=allocator.value,
        memory_limit_mb=memory_limit,
    )

    benched = [BenchedModel(source.name, source.checkpoint, source.tokenizer, source.path) for source in sources]
    report = _measure(benched, cells, names, settings, json_file, earlier, quiet=quiet)
    changes = comparison.compare(old, report) if old is not None else comparison.Changes()
    _finish(report, changes, json_file, markdown, html, is_shown=shows_tables(json_file, quiet=quiet))


def _measure(
    models: "list[BenchedModel]",
    cells: "list[Cell]",
    names: list[str],
    settings: Settings,
    json_file: Path | None,
    earlier: "Report | None",
    *,
    quiet: bool,
) -> "Report":
    """Run the sweep. If Ctrl-C or a full disk ends it, print the tables so far."""
    from triglot.bench.run.sweep import Sweep  # noqa: PLC0415
    from triglot.shared.console import progress  # noqa: PLC0415

    total = len(cells) * len(names)
    title = f"bench of {', '.join(model.name for model in models)}"
    sweep: Sweep | None = None
    try:
        with (
            progress(title, quiet=quiet, in_lines=True) as on_progress,
            JsonFile(json_file, is_resumed=earlier is not None) as file,
        ):
            sweep = Sweep(
                models,
                cells,
                names,
                settings,
                on_step=lambda done, text: on_progress(done, total, text) if on_progress else None,
                on_report=file.update,
                earlier=earlier,
            )
            return sweep.run()
    except (KeyboardInterrupt, OutputError):
        if sweep is not None and shows_tables(json_file, quiet=quiet) and (report := sweep.report()).has_times:
            _print_tables(report)
        raise


def _print_tables(report: "Report", changes: "Changes | None" = None) -> None:
    """Print the tables of a report and, if there are any, the changes since an earlier one."""
    from triglot.bench.report import tables  # noqa: PLC0415

    show_on_screen(tables.print_report, report)
    if changes is not None and changes.cases:
        show_on_screen(tables.print_changes, changes)


def _write(
    report: "Report", changes: "Changes", json_file: Path | None, markdown: Path | None, html: Path | None
) -> None:
    """Write the report as JSON, and its tables as Markdown and as a page: those that were asked for."""
    from triglot.bench.report import document, page, tables  # noqa: PLC0415
    from triglot.shared import files  # noqa: PLC0415

    write_json(json_file, document.to_json(report))
    if markdown is not None:
        with files.writing(markdown) as target:
            target.write(tables.markdown(report, changes).encode())
    if html is not None:
        page.write_page(report, html, changes)


def _finish(
    report: "Report",
    changes: "Changes",
    json_file: Path | None,
    markdown: Path | None,
    html: Path | None,
    *,
    is_shown: bool,
) -> NoReturn:
    """Write the files, print the tables if they are to be shown, and end the command."""
    try:
        _write(report, changes, json_file, markdown, html)
    finally:  # a full disk should not hide what was measured
        if is_shown:
            _print_tables(report, changes)
    raise typer.Exit(_exit_code(report, changes, explain=not is_shown))


def _check_only_shown(context: typer.Context) -> None:
    """Refuse what --show would ignore.

    Raises:
        BenchError: a model or another option was given.
    """
    for parameter in context.command.params:
        source = context.get_parameter_source(parameter.name or "")
        if source is not None and source.name == "COMMANDLINE" and parameter.name not in SHOWING:
            name = parameter.opts[0] if parameter.param_type_name == "option" else "MODEL"
            raise BenchError(f"--show measures nothing, so {name} has no effect; leave it out")


def _check_options(
    json_file: Path | None,
    fills: list[float],
    orders: list[Order],
    threads: int | None,
    memory_limit: int | None,
    *,
    resume: bool,
) -> None:
    from triglot.bench.run.batches import check_fill  # noqa: PLC0415
    from triglot.shared.environment import cores  # noqa: PLC0415

    if resume and json_file in (None, PRINTED):
        raise BenchError("--resume continues the report in the --json file; name a file")
    if memory_limit is not None and sys.platform != "linux":
        raise BenchError("--memory-limit is only supported on Linux; leave it out")
    if threads is not None and threads > cores():
        raise BenchError(f"--threads is {threads}; expected up to {cores()}, the number of processors; lower it")
    if fills and PADDED not in orders:
        raise BenchError("--fill applies only to --order padded, as sentences have lengths of their own; leave it out")
    for fill in fills:
        check_fill(fill)


def _check_embed_options(orders: list[Order], *, has_overrides: bool) -> None:
    if orders != [ARRIVAL]:
        raise BenchError("--order does not apply to --workload embed: each arm orders the texts itself; leave it out")
    if has_overrides:
        raise BenchError(
            "--config and --set do not apply to --workload embed: sentence-transformers reads the model as it is; "
            "leave them out"
        )


def _sentence_encoder(name: str, dialect: str | None, lengths: list[int]) -> "Source":
    from triglot.models import resolve_sentence_encoder  # noqa: PLC0415

    source = resolve_sentence_encoder(name, dialect)
    for length in lengths:
        if length > source.max_tokens:
            raise BenchError(f"--length is {length}, but {name} cuts texts at {source.max_tokens} tokens; lower it")
    return source


class JsonFile:
    """The --json file during a sweep. It grows with each group of arms, and Ctrl-C prints where it is."""

    def __init__(self, path: Path | None, *, is_resumed: bool) -> None:
        self._path = path
        self._unrelated = None if is_resumed else _version(path)  # what another run wrote

    def update(self, report: "Report") -> None:
        """Replace the file with the report so far."""
        from triglot.bench.report import document  # noqa: PLC0415

        write_json(self._path, document.to_json(report), more=True)

    def __enter__(self) -> "JsonFile":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        # Look at the file instead of remembering updates: an interrupt may come right after the file was replaced.
        if kind is KeyboardInterrupt and _version(self._path) not in (None, self._unrelated):
            sys.stderr.write(f"triglot: {self._path} has the results so far; continue with --resume\n")
        elif kind is KeyboardInterrupt and self._path is not None:
            sys.stderr.write(f"triglot: {self._path} was not written, because no group of arms was complete\n")


def _version(path: Path | None) -> tuple[int, int] | None:
    """Return what changes when a file is replaced: its inode and modification time; None if there is no file."""
    if path is None or not path.is_file():
        return None
    status = path.stat()
    return status.st_ino, status.st_mtime_ns


def _values(choices: list[Framework] | list[Mode] | list[Order] | list[Dtype] | None) -> list[str]:
    return [choice.value for choice in choices or []]


def _exit_code(report: "Report", changes: "Changes", *, explain: bool) -> int:
    """Return the exit code. If nothing was timed, or ``explain`` is set, say why it is not 0."""
    problems = {result.case.id: "diverged" for result in report.diverged}
    if not problems and not report.has_times:
        arms: dict[str, dict[str, None]] = {}
        for result in report.results:
            arms.setdefault(result.failure, {})[result.case.arm] = None
        reasons = "; ".join(f"{_named(tuple(names))}: {reason}" for reason, names in arms.items())
        sys.stderr.write(f"triglot: nothing was timed; {reasons}\n")
        return exit_codes.FAILED
    problems |= {change.id: change.verdict for change in changes.cases if change.is_regression}
    if problems and explain:
        sys.stderr.write(f"triglot: {'; '.join(f'{verdict}: {name}' for name, verdict in problems.items())}\n")
    return exit_codes.FOUND if problems else exit_codes.OK


def _named(arms: Sequence[str]) -> str:
    others = f" and {len(arms) - NAMED} more" if len(arms) > NAMED else ""
    return ", ".join(arms[:NAMED]) + others
