"""``triglot inspect``: show what a checkpoint holds."""

from triglot.commands.options import (
    ConfigOption,
    DialectOption,
    HeadsOption,
    JsonOption,
    ModelArgument,
    QuietOption,
    SetOption,
    configuration,
    heads_to_keep,
)
from triglot.commands.output import check_output, show, shows_tables, write_json


def inspect(
    checkpoint: ModelArgument,
    source_dialect: DialectOption = None,
    config: ConfigOption = None,
    fields: SetOption = None,
    heads: HeadsOption = "keep",
    json_file: JsonOption = None,
    quiet: QuietOption = False,
) -> None:
    """Show configuration, tensors, sizes and digest.

    Verifies every checksum.
    """
    from triglot import models, tables  # noqa: PLC0415

    check_output(json_file, checkpoint, config)
    configured, kept = configuration(config, fields), heads_to_keep(heads)
    source = models.resolve(checkpoint, config=configured, dialect=source_dialect, heads=kept)
    contents = tables.contents(source.checkpoint)
    write_json(json_file, contents)
    if shows_tables(json_file, quiet=quiet):
        show(tables.print_contents, contents)
