"""``triglot parity``: compare the frameworks with the float64 reference."""

import shlex
import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from triglot import api, models
from triglot.commands.options import (
    CPU,
    EAGER,
    FLOAT32,
    Check,
    ConfigOption,
    Device,
    DialectOption,
    Dtype,
    Framework,
    HeadsOption,
    JsonOption,
    Mode,
    ModelArgument,
    QuietOption,
    SeedOption,
    SetOption,
    configuration,
    heads_to_keep,
    name_value_pairs,
)
from triglot.commands.output import check_apart, check_not_input, check_output, show, shows_tables, write_json


def parity(
    model: ModelArgument,
    framework: Annotated[
        list[Framework] | None, typer.Option(help="Framework to compare; repeatable. Default: all installed.")
    ] = None,
    dtype: Annotated[Dtype, typer.Option(help="Number format to compute in.")] = FLOAT32,
    device: Annotated[Device, typer.Option(help="Device to run on.")] = CPU,
    mode: Annotated[Mode, typer.Option(help="How to run the frameworks.")] = EAGER,
    check: Annotated[
        list[Check] | None, typer.Option(help="Kind of check; repeatable. Default: all but gradients and training.")
    ] = None,
    inputs: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Use the batch in this .npz (see docs/parity.md).")
    ] = None,
    against: Annotated[
        str | None, typer.Option(metavar="SOURCE|none", help="Original to compare with. Default: MODEL in its library.")
    ] = None,
    example: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Compare with recorded inputs and outputs (.npz).")
    ] = None,
    source_dialect: DialectOption = None,
    heads: HeadsOption = "keep",
    config: ConfigOption = None,
    fields: SetOption = None,
    python: Annotated[
        list[str] | None,
        typer.Option(metavar="FRAMEWORK=PATH", help="Run a framework in this Python interpreter; repeatable."),
    ] = None,
    seed: SeedOption = 0,
    threads: Annotated[int | None, typer.Option(min=1, help="Threads per framework. Default: one per core.")] = None,
    time_limit: Annotated[float, typer.Option(min=1, help="Seconds that a framework may take for a check.")] = 300,
    json_file: JsonOption = None,
    html: Annotated[Path | None, typer.Option(metavar="FILE", help="Write heat maps as one HTML page.")] = None,
    quiet: QuietOption = False,
) -> None:
    """Prove that all frameworks compute the same.

    The float64 reference is the truth. If a framework diverges from it, show the first value that does.
    """
    from triglot import tables  # noqa: PLC0415
    from triglot.parity import page  # noqa: PLC0415
    from triglot.parity.run import BATCH_SIZE, BATCHES  # noqa: PLC0415
    from triglot.shared.console import progress  # noqa: PLC0415
    from triglot.shared.memory import keep_freed_memory  # noqa: PLC0415

    keep_freed_memory()
    check_output(json_file, model, inputs, config, example, against)
    if html:
        check_apart(json_file, html)
        check_not_input(html, model, inputs, config, example, against)
        page.check_page(html)
    dialect = source_dialect.value if source_dialect else None
    source = models.resolve(model, seed, configuration(config, fields), dialect, heads_to_keep(heads), example)
    if inputs is None:
        batches, description = source.batches(BATCHES, BATCH_SIZE, seed)
    else:
        batches, description = source.read_batches(inputs)
    original, no_original = source.original(against)
    with progress(f"parity of {source.name}", quiet=quiet, in_lines=True) as on_progress:
        report = api.check(
            source.checkpoint,
            [name.value for name in framework] if framework else None,
            batches=batches,
            checks=[kind.value for kind in check] if check else None,
            pythons=name_value_pairs("--python", python),
            device=device.value,
            dtype=dtype.value,
            mode=mode.value,
            seed=seed,
            threads=threads,
            time_limit=time_limit,
            model=source.name,
            inputs=description,
            against=original,
            example=example,
            progress=on_progress,
        )
    if no_original:
        report = replace(report, originals=(*report.originals, no_original))
    # Without any result there is nothing to show but the reasons.
    tables_shown = shows_tables(json_file, quiet=quiet) and report.verdict != "error"
    try:
        write_json(json_file, report.to_dict())
        if html:
            page.write_page(report, html, shlex.join(["triglot", *sys.argv[1:]]))
    finally:  # a full disk should not hide the verdict
        if tables_shown:
            show(tables.print_parity, report)
    if report.exit_code == 2 or (report.exit_code and not tables_shown):
        print(f"triglot: {tables.parity_summary(report)}", file=sys.stderr)  # noqa: T201
    raise typer.Exit(report.exit_code)
