"""The command line: every command by its name, and what all have in common. The work is done by the public API.

Exit codes: 0 all is well; 1 a divergence was found; 2 it could not run.
"""

import signal
import sys
import traceback
from typing import Annotated, NoReturn

import typer

from triglot.commands.bench import bench
from triglot.commands.doctor import doctor
from triglot.commands.inspect import inspect
from triglot.commands.parity import parity
from triglot.commands.port import port
from triglot.commands.recipes import recipes
from triglot.commands.train import INTERRUPTED, train
from triglot.commands.translate import translate
from triglot.shared.errors import TriglotError

app = typer.Typer(
    name="triglot",
    help="One Transformer in PyTorch, PaddlePaddle and JAX/Flax, proven to compute the same thing.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
for command in (parity, bench, port, inspect, recipes, doctor, train, translate):
    app.command()(command)


def _version(asked: bool) -> None:
    if asked:
        from importlib import metadata  # noqa: PLC0415

        print(metadata.version("triglot"))  # noqa: T201
        raise typer.Exit


@app.callback()
def main_options(
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
    version: Annotated[
        bool, typer.Option("--version", help="Show the version.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    """Declare the options of every command, for --help; ``main`` reads them."""


def main() -> None:
    """Run the command line; every error is one line on standard error and exit code 2."""
    debug = "--debug" in sys.argv
    arguments = [argument for argument in sys.argv[1:] if argument != "--debug"]  # it may stand anywhere
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # whoever ends us wants no files left either
    try:
        code = app(arguments or ["--help"], prog_name="triglot", standalone_mode=False)
    except typer.TyperException as error:
        context = getattr(error, "ctx", None)
        reason = error.format_message().replace("Value error, ", "").rstrip(".")
        _fail(f"{reason}; see {context.command_path if context else 'triglot'} --help")
    except Exception as error:
        if debug:
            traceback.print_exc()
        if isinstance(error, TriglotError):
            _fail(str(error))
        if isinstance(error, MemoryError):
            _fail(f"not enough memory: {error}; use a smaller model or batch, or a machine with more")
        _fail(f"unexpected {type(error).__name__}: {error}; run again with --debug, and report the traceback")
    if code == INTERRUPTED:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # nothing is to be lost any more, and frameworks clean up at exit
        print("triglot: interrupted", file=sys.stderr)  # noqa: T201
    sys.exit(code)


def _fail(message: str) -> NoReturn:
    line = " ".join(message.split())
    # Names come from files: one with an escape sequence is not to reach the terminal as such.
    shown = "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in line)
    print(f"triglot: {shown}", file=sys.stderr)  # noqa: T201
    sys.exit(2)
