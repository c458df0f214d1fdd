"""``triglot port``: read weights in one dialect and write them in another."""

from pathlib import Path
from typing import Annotated

import typer

from triglot.commands.options import (
    NEUTRAL,
    ConfigOption,
    Dialect,
    DialectOption,
    Dtype,
    ModelArgument,
    QuietOption,
    SetOption,
    configuration,
)
from triglot.commands.output import check_not_input, show


def port(
    source: ModelArgument,
    target: Annotated[
        Path,
        typer.Argument(
            metavar="TARGET", help="File to write, or new folder for huggingface and sentence-transformers."
        ),
    ],
    source_dialect: DialectOption = None,
    target_dialect: Annotated[Dialect, typer.Option(help="Dialect of TARGET.")] = NEUTRAL,
    config: ConfigOption = None,
    fields: SetOption = None,
    heads: Annotated[
        str, typer.Option(metavar="keep|none|HEAD,HEAD", help="Which heads of an encoder to keep.")
    ] = "keep",
    dtype: Annotated[Dtype | None, typer.Option(help="Convert all tensors.", show_default=False)] = None,
    allow_lossy: Annotated[
        bool, typer.Option("--allow-lossy", help="Make numbers that are too large for --dtype its largest one.")
    ] = False,
    allow_nonfinite: Annotated[bool, typer.Option("--allow-nonfinite", help="Keep NaN and infinity.")] = False,
    quiet: QuietOption = False,
) -> None:
    """Convert weights to another dialect.

    Reads and writes neutral checkpoints and the files of libraries.
    """
    from triglot import models, tables  # noqa: PLC0415
    from triglot.shared import porting  # noqa: PLC0415

    porting.find_dialect(target_dialect).check_target(target)
    check_not_input(target, source)
    resolved = models.resolve(
        source, config=configuration(config, fields), dialect=source_dialect, heads=_heads_to_keep(heads)
    )
    checkpoint, losses = resolved.checkpoint, None
    if dtype is not None:
        checkpoint, losses = porting.convert(checkpoint, dtype, allow_lossy=allow_lossy)
    porting.write(checkpoint, target, target_dialect, allow_nonfinite=allow_nonfinite)
    if not quiet:
        if resolved.sign:
            show(tables.print_line, f"read as {resolved.dialect}, because it has {resolved.sign}")
        for name, reason in checkpoint.left_out.items():
            show(tables.print_line, f"left out {name}: {reason}")
        if losses is not None:
            show(tables.print_line, f"converted to {dtype}: {losses.describe()}")
        if remark := porting.find_dialect(target_dialect).remark(checkpoint):
            show(tables.print_line, remark)
        show(tables.print_line, f"{target}: {len(checkpoint.tensors)} tensors, digest {checkpoint.digest}")


def _heads_to_keep(heads: str) -> list[str] | None:
    """Return the names of the heads to keep; None keeps all."""
    if heads == "keep":
        return None
    return [] if heads == "none" else [head.strip() for head in heads.split(",")]
