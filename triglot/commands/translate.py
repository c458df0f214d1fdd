"""``triglot translate``: translate a text with a trained model."""

from pathlib import Path
from typing import Annotated

import typer

from triglot import api, models, training
from triglot.commands.options import Framework, JsonOption, QuietOption
from triglot.commands.output import check_output, show, shows_tables, write_json
from triglot.shared.errors import ModelNotFoundError

DEFAULT_MODEL = "translation.npz"  # what triglot train translation writes


def translate(
    text: Annotated[str, typer.Argument(metavar="TEXT", help="Digits and lower-case letters, such as 'q w e 1'.")],
    model: Annotated[str, typer.Option(metavar="MODEL", help="Checkpoint that triglot train wrote.")] = DEFAULT_MODEL,
    framework: Annotated[
        Framework | None, typer.Option(help="Framework to translate in. Default: the first installed.")
    ] = None,
    json_file: JsonOption = None,
    quiet: QuietOption = False,
) -> None:
    """Translate a text with a trained model.

    Also show whether the translation is correct.
    """
    from triglot import tables  # noqa: PLC0415

    check_output(json_file, model)
    if model == DEFAULT_MODEL and not Path(model).exists():
        raise ModelNotFoundError(f"{model} does not exist; write it with triglot train translation, or give --model")
    checkpoint = models.resolve(model).checkpoint
    framework_name = framework.value if framework else api.first_framework()
    translation, expected = training.translation(checkpoint, framework_name, text)
    content = {"text": text, "translation": translation, "expected": expected, "framework": framework_name}
    write_json(json_file, content)
    if shows_tables(json_file, quiet=quiet):
        show(tables.print_line, translation)
        show(tables.print_line, "right" if translation == expected else f"wrong: it should be {expected}")
