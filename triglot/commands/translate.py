"""``triglot translate``: a text through a trained model."""

from typing import Annotated

import typer

from triglot.commands.options import Framework, JsonOption, QuietOption
from triglot.commands.output import check_target, show, shows_tables, write_json


def translate(
    text: Annotated[str, typer.Argument(metavar="TEXT", help="Digits and small letters, such as 'q w e 1'.")],
    model: Annotated[
        str, typer.Option(metavar="MODEL", help="A checkpoint that triglot train wrote.")
    ] = "translation.npz",
    framework: Annotated[
        Framework | None, typer.Option(help="Translate in this one. Default: the first installed.")
    ] = None,
    json_file: JsonOption = None,
    quiet: QuietOption = False,
) -> None:
    """Translate a text with a trained model: the translation, and whether it is right."""
    from triglot import api, models, tables, training  # noqa: PLC0415

    check_target(json_file, model)
    checkpoint = models.resolve(model).checkpoint
    name = framework.value if framework else api.first_framework()
    given, expected = training.translation(checkpoint, name, text)
    write_json(json_file, {"text": text, "translation": given, "expected": expected, "framework": name})
    if shows_tables(json_file, quiet=quiet):
        show(tables.print_line, given)
        show(tables.print_line, "right" if given == expected else f"wrong: it should be {expected}")
