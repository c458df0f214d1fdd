"""``triglot recipes``: list the named configurations."""

from triglot import api
from triglot.commands.options import JsonOption, QuietOption
from triglot.commands.output import check_output, show, shows_tables, write_json


def recipes(json_file: JsonOption = None, quiet: QuietOption = False) -> None:
    """List the recipes (named configurations)."""
    from triglot import tables  # noqa: PLC0415

    check_output(json_file)
    configs = api.recipes()
    write_json(json_file, {name: config.to_dict() for name, config in configs.items()})
    if shows_tables(json_file, quiet=quiet):
        show(tables.print_recipes, configs)
