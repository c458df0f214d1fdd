"""The command line: registers the commands and turns every error into one line. The public API does the work.

``exit_codes.py`` lists the exit codes.
"""

import signal
import sys
import traceback
import warnings
from typing import Annotated, NoReturn

import typer

from triglot import exit_codes
from triglot.commands.audit import audit
from triglot.commands.bench import bench
from triglot.commands.doctor import doctor
from triglot.commands.encode import encode
from triglot.commands.inspect import inspect
from triglot.commands.parity import parity
from triglot.commands.port import port
from triglot.commands.recipes import recipes
from triglot.commands.train import train
from triglot.commands.translate import translate
from triglot.shared.errors import SlowWarning, TriglotError

app = typer.Typer(
    name="triglot",
    help="One Transformer in PyTorch, PaddlePaddle and JAX/Flax, proven to compute the same thing.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
_FORMAT = warnings.formatwarning
COMMANDS = {
    command.__name__: command
    for command in (parity, bench, port, encode, inspect, recipes, doctor, train, translate, audit)
}
for command in COMMANDS.values():
    app.command()(command)


def _print_version(requested: bool) -> None:
    if requested:
        from importlib import metadata  # noqa: PLC0415

        print(metadata.version("triglot"))  # noqa: T201
        raise typer.Exit


@app.callback()
def main_options(
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of errors.")] = False,
    version: Annotated[
        bool, typer.Option("--version", help="Show the version.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """Declare the options that all commands share, for --help. ``main`` reads --debug itself."""


def main() -> None:
    """Run the command line. Every error becomes one line on standard error and exit code 2."""
    debug = "--debug" in sys.argv
    arguments = [argument for argument in sys.argv[1:] if argument != "--debug"]  # allowed in any position
    warnings.formatwarning = _format_warning
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # SIGTERM cleans up temporary files too
    try:
        code = app(arguments or ["--help"], prog_name="triglot", standalone_mode=False)
    except typer.TyperException as error:
        reason = error.format_message().replace("Value error, ", "").rstrip(".")
        first = next((argument for argument in arguments if not argument.startswith("-")), "")
        _fail(f"{reason}; see triglot{f' {first}' if first in COMMANDS else ''} --help")
    except Exception as error:
        if debug:
            traceback.print_exc()
        if isinstance(error, TriglotError):
            _fail(str(error))
        if isinstance(error, MemoryError):
            _fail(f"not enough memory: {error}; use a smaller model or batch, or a machine with more")
        _fail(f"unexpected {type(error).__name__}: {error}; run again with --debug, and report the traceback")
    if code == exit_codes.INTERRUPTED:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # all results are written; let frameworks exit cleanly
        print("triglot: interrupted", file=sys.stderr)  # noqa: T201
    sys.exit(code)


def _format_warning(
    message: Warning | str, category: type[Warning], filename: str, lineno: int, line: str | None = None
) -> str:
    if issubclass(category, SlowWarning):
        return f"triglot: {message}\n"
    return _FORMAT(message, category, filename, lineno, line)


def _fail(message: str) -> NoReturn:
    line = " ".join(message.split())
    # Names come from files, so an escape sequence in one must not reach the terminal.
    printable = "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in line)
    print(f"triglot: {printable}", file=sys.stderr)  # noqa: T201
    sys.exit(exit_codes.FAILED)
