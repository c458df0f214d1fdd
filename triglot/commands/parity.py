"""``triglot parity``: prove that every framework computes the same."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from triglot.commands.options import (
    ConfigOption,
    Device,
    DialectOption,
    Dtype,
    Framework,
    JsonOption,
    Mode,
    ModelArgument,
    QuietOption,
    SeedOption,
    SetOption,
)
from triglot.commands.output import check_target, show, shows_tables, write_json


def parity(
    model: ModelArgument,
    framework: Annotated[
        list[Framework] | None,
        typer.Option(help="Compare this one; repeatable. Default: every installed one."),
    ] = None,
    dtype: Annotated[Dtype, typer.Option(help="The number format to run in.")] = Dtype.float32,
    device: Annotated[Device, typer.Option(help="Where to run.")] = Device.cpu,
    mode: Annotated[Mode, typer.Option(help="How to run.")] = Mode.eager,
    inputs: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Compare on this batch: an .npz with token_ids and, if need be, valid, segment_ids, task_ids; or with "
            "source_ids and target_ids. Default: real text, or random tokens.",
        ),
    ] = None,
    source_dialect: DialectOption = None,
    config: ConfigOption = None,
    fields: SetOption = None,
    python: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FRAMEWORK=PATH",
            help="Run a framework in this Python, which has to have Triglot too; repeatable.",
        ),
    ] = None,
    seed: SeedOption = 0,
    threads: Annotated[int | None, typer.Option(min=1, help="Threads per framework. Default: one per core.")] = None,
    time_limit: Annotated[float, typer.Option(min=1, help="Seconds that a framework may take for a check.")] = 300,
    json_file: JsonOption = None,
    quiet: QuietOption = False,
) -> None:
    """Prove that every framework computes the same as the float64 reference, or say where one first does not."""
    from triglot import api, models, tables  # noqa: PLC0415 (--help should not wait for NumPy)
    from triglot.commands.fields import configuration, pairs  # noqa: PLC0415
    from triglot.parity.run import BATCH_SIZE, BATCHES  # noqa: PLC0415

    check_target(json_file, model, inputs, config)
    dialect = source_dialect.value if source_dialect else None
    source = models.resolve(model, seed, configuration(config, fields), dialect)
    if inputs is None:
        batches, described = source.batches(BATCHES, BATCH_SIZE, seed)
    else:
        batches, described = source.read_batches(inputs)
    with tables.progress(f"parity of {source.name}", quiet=quiet) as progress:
        report = api.check(
            source.checkpoint,
            [name.value for name in framework] if framework else None,
            batches=batches,
            pythons=pairs("--python", python),
            device=device.value,
            dtype=dtype.value,
            mode=mode.value,
            seed=seed,
            threads=threads,
            time_limit=time_limit,
            model=source.name,
            inputs=described,
            progress=progress,
        )
    write_json(json_file, report.to_dict())
    shown = shows_tables(json_file, quiet=quiet)
    if shown:
        show(tables.print_parity, report)
    if report.exit_code == 2 or (not shown and report.exit_code):
        print(f"triglot: {tables.summary(report)}", file=sys.stderr)  # noqa: T201
    raise typer.Exit(report.exit_code)
