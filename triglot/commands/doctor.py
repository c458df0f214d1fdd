"""``triglot doctor``: show the environment."""

from triglot import api
from triglot.commands.options import JsonOption, QuietOption
from triglot.commands.output import check_output, show, shows_tables, write_json
from triglot.shared.environment import environment, version


def doctor(json_file: JsonOption = None, quiet: QuietOption = False) -> None:
    """Show versions and usable frameworks."""
    from triglot import models, tables  # noqa: PLC0415

    check_output(json_file)
    report = {**environment(), "frameworks": list(api.frameworks())}
    weights = [package.replace("_", "-") for package in models.TRAINED.values()]
    report["packages"] |= {package: version(package) for package in weights}
    write_json(json_file, report)
    if shows_tables(json_file, quiet=quiet):
        show(tables.print_doctor, report)
