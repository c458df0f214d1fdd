"""The command line: options in, tables and exit codes out. The work is done by the public API.

Exit codes: 0 all is well; 1 a divergence was found; 2 it could not run.
"""

import json
import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from types import FrameType
from typing import Annotated, Any, NoReturn

import typer

from triglot.shared import files
from triglot.shared.errors import OutputError, TriglotError

app = typer.Typer(
    name="triglot",
    help="One Transformer in PyTorch, PaddlePaddle and JAX/Flax, proven to compute the same thing.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


INTERRUPTED = 130  # the exit code of a program that Ctrl-C ended, by convention


class Framework(StrEnum):
    """The frameworks, as an option takes them."""

    torch = "torch"
    paddle = "paddle"
    jax = "jax"


class Dtype(StrEnum):
    """The number formats, as an option takes them."""

    float32 = "float32"
    float64 = "float64"
    bfloat16 = "bfloat16"


class Mode(StrEnum):
    """How a framework runs a model, as an option takes it."""

    eager = "eager"


class Dialect(StrEnum):
    """The dialects of weights, as an option takes them."""

    neutral = "neutral"
    huggingface = "huggingface"
    article_translation = "article-translation"
    article_dygraph = "article-dygraph"
    article_prenorm = "article-prenorm"
    article_annotated = "article-annotated"
    article_multihead = "article-multihead"


class Device(StrEnum):
    """The devices, as an option takes them."""

    cpu = "cpu"
    cuda = "cuda"


ModelArgument = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="A recipe (its trained weights if there are any, or random ones), a neutral checkpoint (.npz), or a "
        "folder with config.json and model.safetensors, or the bare .safetensors; with --source-dialect, the state "
        "dict of an article (.pt, .npz, .safetensors).",
    ),
]
ConfigOption = Annotated[
    str | None,
    typer.Option(
        metavar="RECIPE|FILE",
        help="The configuration, in place of the model's own: a recipe, or a JSON file with fields (as inspect --json "
        "writes them, under config).",
    ),
]
SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="FIELD=VALUE",
        help="Correct a field of the configuration, or say what a bare .safetensors does not; repeatable.",
    ),
]
DialectOption = Annotated[
    Dialect | None,
    typer.Option(help="How MODEL is written. Default: neutral or huggingface, by its looks.", show_default=False),
]
JsonOption = Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Write the result as JSON.")]
QuietOption = Annotated[bool, typer.Option("--quiet", help="Print nothing but errors.")]
SeedOption = Annotated[int, typer.Option(min=0, help="Seed of random weights and inputs.")]


@app.command()
def parity(
    model: ModelArgument,
    framework: Annotated[
        list[Framework] | None,
        typer.Option(help="Compare this one; repeatable. Default: every installed one."),
    ] = None,
    dtype: Annotated[Dtype, typer.Option(help="The number format to run in.")] = Dtype.float32,
    device: Annotated[Device, typer.Option(help="Where to run.")] = Device.cpu,
    mode: Annotated[Mode, typer.Option(help="How to run.")] = Mode.eager,
    inputs: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Compare on this batch: an .npz with token_ids and, if need be, valid, segment_ids, task_ids; or with "
            "source_ids and target_ids. Default: real text, or random tokens.",
        ),
    ] = None,
    source_dialect: DialectOption = None,
    config: ConfigOption = None,
    fields: SetOption = None,
    python: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FRAMEWORK=PATH",
            help="Run a framework in this Python, which has to have Triglot too; repeatable.",
        ),
    ] = None,
    seed: SeedOption = 0,
    threads: Annotated[int | None, typer.Option(min=1, help="Threads per framework. Default: one per core.")] = None,
    time_limit: Annotated[float, typer.Option(min=1, help="Seconds that a framework may take for a check.")] = 300,
    json_file: JsonOption = None,
    quiet: QuietOption = False,
) -> None:
    """Prove that every framework computes the same as the float64 reference, or say where one first does not."""
    from triglot import api, models, options, tables  # noqa: PLC0415 (--help should not wait for NumPy)

    _check_target(json_file, model, inputs, config)
    dialect = source_dialect.value if source_dialect else None
    source = models.resolve(model, seed, options.configuration(config, fields), dialect)
    if inputs is None:
        batches, described = source.batches(api.BATCHES, api.BATCH_SIZE, seed)
    else:
        batches, described = source.read_batches(inputs)
    with tables.progress(f"parity of {source.name}", quiet=quiet) as progress:
        report = api.check(
            source.checkpoint,
            [name.value for name in framework] if framework else None,
            batches=batches,
            pythons=options.pairs("--python", python),
            device=device.value,
            dtype=dtype.value,
            mode=mode.value,
            seed=seed,
            threads=threads,
            time_limit=time_limit,
            model=source.name,
            inputs=described,
            progress=progress,
        )
    _write_json(json_file, report.to_dict())
    if not quiet:
        _show(tables.print_parity, report)
    elif report.exit_code:
        print(f"triglot: {tables.summary(report)}", file=sys.stderr)  # noqa: T201
    raise typer.Exit(report.exit_code)


@app.command()
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
    from triglot import api, models, options, tables  # noqa: PLC0415

    if target_dialect is Dialect.huggingface:
        files.check_folder(target)
    else:
        _check_target(target)
    dialect = source_dialect.value if source_dialect else None
    given = models.resolve(source, config=options.configuration(config, fields), dialect=dialect).checkpoint
    checkpoint = api.port(given, target, target_dialect=target_dialect.value)
    if not quiet:
        for name, why in given.left_out.items():
            _show(tables.print_line, f"left out {name}: {why}")
        _show(tables.print_line, f"{target}: {len(checkpoint.tensors)} tensors, digest {checkpoint.digest}")


@app.command()
def inspect(
    checkpoint: ModelArgument,
    source_dialect: DialectOption = None,
    config: ConfigOption = None,
    fields: SetOption = None,
    json_file: JsonOption = None,
    quiet: QuietOption = False,
) -> None:
    """Show what a checkpoint holds: configuration, tensors, sizes, digest. Every checksum is verified."""
    from triglot import models, options, tables  # noqa: PLC0415

    _check_target(json_file, checkpoint, config)
    dialect = source_dialect.value if source_dialect else None
    found = models.resolve(checkpoint, config=options.configuration(config, fields), dialect=dialect).checkpoint
    contents = tables.contents(found)
    _write_json(json_file, contents)
    if not quiet:
        _show(tables.print_contents, contents)


@app.command()
def recipes(json_file: JsonOption = None, quiet: QuietOption = False) -> None:
    """List the recipes: the configurations that have a name."""
    from triglot import api, tables  # noqa: PLC0415

    _check_target(json_file)
    configs = api.recipes()
    _write_json(json_file, {name: config.to_dict() for name, config in configs.items()})
    if not quiet:
        _show(tables.print_recipes, configs)


@app.command()
def doctor(json_file: JsonOption = None, quiet: QuietOption = False) -> None:
    """Say what is installed, and what is missing for which purpose."""
    from triglot import api, tables  # noqa: PLC0415
    from triglot.shared.environment import environment  # noqa: PLC0415

    _check_target(json_file)
    found = {**environment(), "frameworks": list(api.frameworks())}
    _write_json(json_file, found)
    if not quiet:
        _show(tables.print_doctor, found)


RateOption = Annotated[
    float | None, typer.Option(help="Adam's rate at the beginning. Default: 0.002.", show_default=False)
]


@app.command()
def train(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL", help="A recipe, or a checkpoint to begin with; with --resume, the recipe that it is of."
        ),
    ],
    framework: Annotated[
        Framework | None, typer.Option(help="Train in this one. Default: the first installed.")
    ] = None,
    target: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="The checkpoint to write. Default: RECIPE.npz, or the one of --resume.",
            show_default=False,
        ),
    ] = None,
    resume: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Go on with this checkpoint of an earlier training, in any framework."),
    ] = None,
    steps: Annotated[int, typer.Option(min=1, help="Train up to this step.")] = 20_000,
    save_every: Annotated[int, typer.Option(min=1, help="Steps after which the checkpoint is written.")] = 1_000,
    rate: RateOption = None,
    decay: Annotated[
        float | None, typer.Option(help="What the rate is multiplied by. Default: 0.5.", show_default=False)
    ] = None,
    epochs_per_decay: Annotated[
        int | None, typer.Option(help="Epochs after which it is. Default: 3.", show_default=False)
    ] = None,
    samples_per_epoch: Annotated[
        int | None, typer.Option(help="Sentences in an epoch. Default: 16000.", show_default=False)
    ] = None,
    batch_size: Annotated[
        int | None, typer.Option(help="Sentences in a batch. Default: 8.", show_default=False)
    ] = None,
    dropout: Annotated[
        bool | None, typer.Option("--dropout/--no-dropout", help="Drop out as the model says.", show_default=False)
    ] = None,
    seed: Annotated[
        int | None, typer.Option(min=0, help="Seed of weights, samples and dropout. Default: 0.", show_default=False)
    ] = None,
    dtype: Annotated[
        Dtype | None,
        typer.Option(help="The number format to train in. Default: float32, or that of --resume.", show_default=False),
    ] = None,
    device: Annotated[Device, typer.Option(help="Where to run.")] = Device.cpu,
    threads: Annotated[int | None, typer.Option(min=1, help="Threads. Default: one per core.")] = None,
    plot: Annotated[Path | None, typer.Option(metavar="FILE", help="Draw the curves: a .png, .svg or .pdf.")] = None,
    json_file: JsonOption = None,
    quiet: QuietOption = False,
) -> None:
    """Train an encoder-decoder on the toy translation of article 000, or go on with a training, in any framework.

    Ctrl-C ends it after the step that it is at, and writes the checkpoint.
    """
    from triglot import api, models, plots, tables, training  # noqa: PLC0415
    from triglot.shared.environment import limit_threads  # noqa: PLC0415

    target = _check_training_target(target, resume, model)
    _check_target(json_file, model, resume)
    if plot is not None:
        plots.check_plot(plot)
    _check_apart(target, json_file, plot)
    checkpoint = models.resolve(model, seed or 0).checkpoint if resume is None else api.load(resume)
    given = {
        "rate": rate,
        "decay": decay,
        "epochs_per_decay": epochs_per_decay,
        "samples_per_epoch": samples_per_epoch,
        "batch_size": batch_size,
        "dropout": dropout,
        "seed": seed,
    }
    plan = training.plan_for(
        checkpoint, model, resume, {name: value for name, value in given.items() if value is not None}
    )
    limit_threads(threads)
    name = framework.value if framework else api.first_framework()
    with tables.training_progress(steps, quiet=quiet) as on_step, _finishing_the_step() as interrupted:
        trained = training.train(
            checkpoint,
            name,
            target,
            steps=steps,
            plan=plan,
            save_every=save_every,
            device=device.value,
            dtype=dtype.value if dtype else None,
            on_step=lambda *step: (on_step is None or on_step(*step)) and not interrupted,
        )
    assert trained.training is not None
    if plot is not None:
        plots.draw_training(trained.training, plot, f"{model}, trained in {name}")
    if interrupted and trained.training.moments.steps < steps:
        done = trained.training.moments.steps
        print(f"triglot: {target} has {done} steps; go on with --resume {target}", file=sys.stderr)  # noqa: T201
        raise typer.Exit(INTERRUPTED)
    unseen = training.score(trained, name, seed=plan.seed)
    _write_json(json_file, training.report(trained, name, unseen))
    if not quiet:
        _show(tables.print_training, trained, target, name, unseen)


@app.command()
def translate(
    text: Annotated[str, typer.Argument(metavar="TEXT", help="Digits and small letters, such as 'q w e 1'.")],
    model: Annotated[
        str, typer.Option(metavar="MODEL", help="A checkpoint that triglot train wrote.")
    ] = "translation.npz",
    framework: Annotated[
        Framework | None, typer.Option(help="Translate in this one. Default: the first installed.")
    ] = None,
    json_file: JsonOption = None,
) -> None:
    """Translate a text with a trained model: the translation, and whether it is right."""
    from triglot import api, models, tables, training  # noqa: PLC0415

    _check_target(json_file, model)
    checkpoint = models.resolve(model).checkpoint
    name = framework.value if framework else api.first_framework()
    given, expected = training.translation(checkpoint, name, text)
    _write_json(json_file, {"text": text, "translation": given, "expected": expected, "framework": name})
    _show(tables.print_line, given)
    _show(tables.print_line, "right" if given == expected else f"wrong: it should be {expected}")


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
            _fail(f"not enough memory: {error}; use a smaller model, or a machine with more")
        _fail(f"unexpected {type(error).__name__}: {error}; run again with --debug, and report the traceback")
    if code == INTERRUPTED:
        print("triglot: interrupted", file=sys.stderr)  # noqa: T201
    sys.exit(code)


def _fail(message: str) -> NoReturn:
    line = " ".join(message.split())
    # Names come from files: one with an escape sequence is not to reach the terminal as such.
    shown = "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in line)
    print(f"triglot: {shown}", file=sys.stderr)  # noqa: T201
    sys.exit(2)


def _show(print_table: Callable[..., None], *content: object) -> None:
    """Print; a reader who has seen enough, ``head`` say, changes neither the result nor the exit code."""
    if sys.stdout is None:  # pyright: ignore[reportUnnecessaryComparison]
        return  # it was closed before the start
    try:
        print_table(*content)
        sys.stdout.flush()
    except OSError as error:
        # Let nothing complain again while Python shuts down.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if not isinstance(error, BrokenPipeError):
            raise OutputError(f"cannot write to standard output: {error.strerror}; free space") from error


def _check_training_target(target: Path | None, resume: Path | None, model: str) -> Path:
    """Where the checkpoint of a training goes: nowhere where it would replace another one than that it goes on with."""
    path = target or resume or Path(f"{Path(model).name.removesuffix('.npz')}.npz")
    files.check_target(path)
    if path.exists() and not (resume is not None and resume.exists() and path.samefile(resume)):
        raise OutputError(f"{path} is there already; go on with it by --resume {path}, or choose another --target")
    return path


@contextmanager
def _finishing_the_step() -> Iterator[list[bool]]:
    """Inside, the first Ctrl-C puts an entry into the list that this yields; the second one ends the program."""
    asked: list[bool] = []

    def ask(number: int, frame: FrameType | None) -> None:
        if asked:
            signal.default_int_handler(number, frame)
        asked.append(True)

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _check_apart(*targets: Path | None) -> None:
    """Refuse targets of which one would replace the other."""
    seen: set[str] = set()
    for path in targets:
        if path is not None:
            if os.path.realpath(path) in seen:
                raise OutputError(f"{path} is to be written twice; choose another file for one of the two")
            seen.add(os.path.realpath(path))


def _check_target(path: Path | None, *sources: str | Path | None) -> None:
    """Refuse a target that cannot be written, or that would replace what is read, before the work, not after it."""
    if path is None:
        return
    files.check_target(path)
    for source in sources:
        if source is not None and os.path.exists(path) and os.path.exists(source) and os.path.samefile(path, source):
            raise OutputError(f"cannot write {path}: it is read as well, and would be lost; choose another file")


def _write_json(path: Path | None, content: dict[str, Any]) -> None:
    if path is not None:
        with files.writing(path) as file:
            file.write(json.dumps(content, indent=1, allow_nan=False).encode() + b"\n")
