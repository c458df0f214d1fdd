"""``triglot port``: read weights in one dialect and write them in another."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from triglot.commands.options import (
    NEUTRAL,
    ConfigOption,
    Dialect,
    DialectOption,
    Dtype,
    HeadsOption,
    JsonOption,
    ModelArgument,
    QuietOption,
    SetOption,
    configuration,
    heads_to_keep,
)
from triglot.commands.output import (
    check_apart,
    check_not_input,
    check_output,
    check_outside,
    show,
    shows_tables,
    write_json,
)

if TYPE_CHECKING:
    from triglot.models import Source
    from triglot.shared.checkpoint import Checkpoint


def port(
    source: ModelArgument,
    target: Annotated[
        Path,
        typer.Argument(metavar="TARGET", help="File to write (replaced if it exists), or folder to create."),
    ],
    source_dialect: DialectOption = None,
    target_dialect: Annotated[Dialect, typer.Option(help="Dialect of TARGET.")] = NEUTRAL,
    config: ConfigOption = None,
    fields: SetOption = None,
    heads: HeadsOption = "keep",
    dtype: Annotated[Dtype | None, typer.Option(help="Convert all tensors.", show_default=False)] = None,
    allow_lossy: Annotated[
        bool, typer.Option("--allow-lossy", help="Replace numbers that are too large for --dtype by its largest.")
    ] = False,
    allow_nonfinite: Annotated[bool, typer.Option("--allow-nonfinite", help="Keep NaN and infinity.")] = False,
    verify: Annotated[
        bool, typer.Option("--verify", help="Run SOURCE and TARGET in their libraries, and compare results.")
    ] = False,
    example: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Compare with recorded inputs and outputs (.npz).")
    ] = None,
    shard_size: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE", help="Split the tensors into files of at most SIZE: 2GB, 2GiB.", show_default=False
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check everything and show the plan; write nothing.")
    ] = False,
    json_file: JsonOption = None,
    quiet: QuietOption = False,
) -> None:
    """Convert weights to another dialect.

    Reads and writes neutral checkpoints and the files of libraries.
    """
    from triglot import models, port_tables, verification  # noqa: PLC0415
    from triglot.shared import porting  # noqa: PLC0415
    from triglot.shared.checkpoint import parse_size  # noqa: PLC0415
    from triglot.shared.console import progress  # noqa: PLC0415
    from triglot.shared.errors import PortingError  # noqa: PLC0415
    from triglot.shared.memory import keep_freed_memory  # noqa: PLC0415

    keep_freed_memory()
    bytes_per_shard = None if shard_size is None else parse_size(shard_size)
    check_not_input(target, source, example)
    check_outside(target, source)
    porting.check_target(target, target_dialect, bytes_per_shard)
    check_output(json_file, source, config, example)
    check_apart(target, json_file)
    resolved = models.resolve(
        source,
        config=configuration(config, fields),
        dialect=source_dialect,
        heads=heads_to_keep(heads),
        example=example,
    )
    verified: list[str] = []
    not_verified: list[str] = []
    if example is not None:
        verified.append(resolved.verified or verification.verify_example(example, resolved.checkpoint))
    if verify:
        _verify_source(resolved, verified, not_verified)
    checkpoint, losses = resolved.checkpoint, None
    if dtype is not None:
        verified = [f"{words} (before --dtype)" for words in verified]
        checkpoint, losses = porting.convert(checkpoint, dtype, allow_lossy=allow_lossy)
    if verify:
        _verify_target(checkpoint, target, target_dialect, bytes_per_shard, verified, not_verified)
    if verify and not verified:
        raise PortingError(f"--verify could run nothing: {'; '.join(not_verified)}; correct that, or omit --verify")
    with progress(f"{'check' if dry_run else 'port'} {source}", quiet=quiet, in_bytes=True) as on_bytes:
        records = porting.write(
            checkpoint,
            target,
            target_dialect,
            shard_size=bytes_per_shard,
            allow_nonfinite=allow_nonfinite,
            dry_run=dry_run,
            on_bytes=on_bytes,
        )
    source_file = porting.File(source, resolved.dialect, resolved.sign)
    plan = porting.describe(checkpoint, records, source_file, porting.File(str(target), target_dialect), losses)
    findings = [*(f"verified: {words}" for words in verified), *not_verified]
    if not findings:
        findings.append("checked for completeness, not against the original (--verify, or --example)")
    if remark := porting.find_dialect(target_dialect).remark(checkpoint):
        findings.append(remark)
    write_json(json_file, plan.to_json() | {"findings": findings})
    if shows_tables(json_file, quiet=quiet):
        show(port_tables.print_port, plan, dry_run, findings)


def _verify_source(source: "Source", verified: list[str], not_verified: list[str]) -> None:
    """Run the source in its library, and compare it with the port. Add the result, or why it was not run."""
    from triglot import verification  # noqa: PLC0415

    original, reason = source.original(None)
    if original is None:
        not_verified.append(reason)
        return
    batches, _ = source.batches(2, 4, 0)
    verified.append(verification.verify(original, source.checkpoint, batches))


def _verify_target(
    checkpoint: "Checkpoint",
    target: Path,
    dialect: str,
    shard_size: int | None,
    verified: list[str],
    not_verified: list[str],
) -> None:
    """Do the same with a copy of the target before it is written. No other library runs a neutral checkpoint."""
    from triglot import verification  # noqa: PLC0415
    from triglot.shared.errors import InputError  # noqa: PLC0415

    if dialect == NEUTRAL:
        return
    try:
        verified.append(verification.verify_target(checkpoint, target, dialect, shard_size))
    except InputError as error:
        not_verified.append(f"not verified in the target's library: {error}")
