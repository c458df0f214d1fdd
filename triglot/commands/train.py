"""``triglot train``: the toy translation of article 000, from the start or from where a training stopped."""

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Annotated

import typer

from triglot.commands.options import Device, Dtype, Framework, JsonOption, QuietOption
from triglot.commands.output import check_apart, check_target, show, shows_tables, write_json
from triglot.shared.errors import OutputError

INTERRUPTED = 130  # the exit code of a program that Ctrl-C ended, by convention


RateOption = Annotated[
    float | None, typer.Option(help="Adam's rate at the beginning. Default: 0.002.", show_default=False)
]


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
            help="The checkpoint to write. Default: RECIPE.npz, NAME-trained.npz if MODEL is a file, or the one of "
            "--resume.",
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

    Ctrl-C ends it after the step that it is at, and writes the checkpoint. A second one ends it at once: what came
    after the last checkpoint is lost.
    """
    from triglot import api, models, plots, tables, training  # noqa: PLC0415
    from triglot.shared.environment import limit_threads  # noqa: PLC0415

    target = _check_training_target(target, resume, model)
    check_target(json_file, model, resume)
    if plot is not None:
        plots.check_plot(plot)
    check_apart(target, json_file, plot)
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
        write_json(json_file, training.report(trained, name))
        steps_done = "1 step" if done == 1 else f"{done} steps"
        print(f"triglot: {target} has {steps_done}; go on with --resume {target}", file=sys.stderr)  # noqa: T201
        raise typer.Exit(INTERRUPTED)
    unseen = training.score(trained, name, seed=plan.seed)
    write_json(json_file, training.report(trained, name, unseen))
    if shows_tables(json_file, quiet=quiet):
        show(tables.print_training, trained, target, name, unseen)


def _check_training_target(target: Path | None, resume: Path | None, model: str) -> Path:
    """Where the checkpoint of a training goes: nowhere where it would replace another one than that it goes on with."""
    from triglot.shared import checkpoint as checkpoints  # noqa: PLC0415

    begins_with_file = Path(model).exists()  # which stays as it is
    path = target or resume or Path(f"{Path(model).stem}-trained.npz" if begins_with_file else f"{model}.npz")
    checkpoints.check_target(path)
    if path.exists() and not (resume is not None and resume.exists() and path.samefile(resume)):
        raise OutputError(
            f"{path} is there already; choose another --target, or, if it is a training, go on with it by --resume"
        )
    return path


@contextmanager
def _finishing_the_step() -> Iterator[list[bool]]:
    """Inside, the first Ctrl-C puts an entry into the list that this yields; the second one ends the program."""
    asked: list[bool] = []

    def ask(number: int, frame: FrameType | None) -> None:
        if asked:
            signal.default_int_handler(number, frame)
        asked.append(True)
        os.write(2, b"triglot: ending after this step; another Ctrl-C loses what is not written yet\n")

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
