"""``triglot port``: weights from one dialect to another."""

from pathlib import Path
from typing import Annotated

import typer

from triglot.commands.options import ConfigOption, Dialect, DialectOption, ModelArgument, QuietOption, SetOption
from triglot.commands.output import check_target, show
from triglot.shared import files


def port(
    source: ModelArgument,
    target: Annotated[
        Path,
        typer.Argument(
            metavar="TARGET",
            help="What to write: a neutral checkpoint, .npz; the new folder of huggingface; or, for an article, a file "
            ".pt, .npz or .safetensors.",
        ),
    ],
    source_dialect: DialectOption = None,
    target_dialect: Annotated[Dialect, typer.Option(help="How to write TARGET.")] = Dialect.neutral,
    config: ConfigOption = None,
    fields: SetOption = None,
    quiet: QuietOption = False,
) -> None:
    """Write weights in another dialect: foreign ones as a neutral checkpoint, or the other way round."""
    from triglot import api, models, tables  # noqa: PLC0415
    from triglot.commands.fields import configuration  # noqa: PLC0415
    from triglot.shared import checkpoint as checkpoints  # noqa: PLC0415

    if target_dialect is Dialect.huggingface:
        files.check_folder(target)
    else:
        check_target(target, source)
    if target_dialect is Dialect.neutral:
        checkpoints.check_target(target)
    dialect = source_dialect.value if source_dialect else None
    given = models.resolve(source, config=configuration(config, fields), dialect=dialect).checkpoint
    checkpoint = api.port(given, target, target_dialect=target_dialect.value)
    if not quiet:
        for name, why in given.left_out.items():
            show(tables.print_line, f"left out {name}: {why}")
        show(tables.print_line, f"{target}: {len(checkpoint.tensors)} tensors, digest {checkpoint.digest}")
