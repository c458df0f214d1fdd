"""``triglot inspect``: what a checkpoint holds."""

from triglot.commands.options import ConfigOption, DialectOption, JsonOption, ModelArgument, QuietOption, SetOption
from triglot.commands.output import check_target, show, shows_tables, write_json


def inspect(
    checkpoint: ModelArgument,
    source_dialect: DialectOption = None,
    config: ConfigOption = None,
    fields: SetOption = None,
    json_file: JsonOption = None,
    quiet: QuietOption = False,
) -> None:
    """Show what a checkpoint holds: configuration, tensors, sizes, digest. Every checksum is verified."""
    from triglot import models, tables  # noqa: PLC0415
    from triglot.commands.fields import configuration  # noqa: PLC0415

    check_target(json_file, checkpoint, config)
    dialect = source_dialect.value if source_dialect else None
    found = models.resolve(checkpoint, config=configuration(config, fields), dialect=dialect).checkpoint
    contents = tables.contents(found)
    write_json(json_file, contents)
    if shows_tables(json_file, quiet=quiet):
        show(tables.print_contents, contents)
