"""``triglot doctor``: what is installed, and what is missing."""

from triglot.commands.options import JsonOption, QuietOption
from triglot.commands.output import check_target, show, shows_tables, write_json


def doctor(json_file: JsonOption = None, quiet: QuietOption = False) -> None:
    """Say what is installed, and what is missing for which purpose."""
    from triglot import api, tables  # noqa: PLC0415
    from triglot.shared.environment import environment  # noqa: PLC0415

    check_target(json_file)
    found = {**environment(), "frameworks": list(api.frameworks())}
    write_json(json_file, found)
    if shows_tables(json_file, quiet=quiet):
        show(tables.print_doctor, found)
