"""``triglot train``: learn the toy translation of article 000, or resume a training run."""

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from types import FrameType
from typing import Annotated, Any

import typer

from triglot import api, exit_codes, models, plots, training
from triglot.commands.options import CPU, Device, Dtype, Framework, JsonOption, QuietOption
from triglot.commands.output import check_apart, check_output, show, shows_tables, write_json
from triglot.shared import checkpoint as checkpoints
from triglot.shared.checkpoint import Checkpoint
from triglot.shared.environment import limit_threads
from triglot.shared.errors import OutputError, TrainingError
from triglot.shared.training.plan import Outcome, Plan
from triglot.shared.training.translation import Score


def train(
    model: Annotated[
        str,
        typer.Argument(metavar="MODEL", help="A recipe or checkpoint to start from; with --resume, its recipe."),
    ],
    framework: Annotated[
        Framework | None, typer.Option(help="Framework to train in. Default: the first installed.")
    ] = None,
    target: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Checkpoint to write. Default: RECIPE.npz, or that of --resume."),
    ] = None,
    resume: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Resume the run in this checkpoint, in any framework."),
    ] = None,
    steps: Annotated[int, typer.Option(min=1, help="Train up to this step.")] = training.STEPS,
    save_every: Annotated[
        int, typer.Option(min=1, help="Steps between writes of the checkpoint.")
    ] = training.SAVE_EVERY,
    rate: Annotated[float | None, typer.Option(help="Initial learning rate of Adam. Default: 0.002.")] = None,
    decay: Annotated[float | None, typer.Option(help="Factor of each learning-rate decay. Default: 0.5.")] = None,
    epochs_per_decay: Annotated[
        int | None, typer.Option(help="Epochs between learning-rate decays. Default: 3.")
    ] = None,
    samples_per_epoch: Annotated[int | None, typer.Option(help="Sentences per epoch. Default: 16000.")] = None,
    batch_size: Annotated[int | None, typer.Option(help="Sentences per batch. Default: 8.")] = None,
    dropout: Annotated[
        bool | None, typer.Option("--dropout/--no-dropout", help="Use the model's dropout rates. Default: yes.")
    ] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Seed of weights, samples and dropout. Default: 0.")] = None,
    dtype: Annotated[Dtype | None, typer.Option(help="Number format. Default: float32, or that of --resume.")] = None,
    device: Annotated[Device, typer.Option(help="Device to run on.")] = CPU,
    threads: Annotated[int | None, typer.Option(min=1, help="Threads. Default: one per core.")] = None,
    plot: Annotated[Path | None, typer.Option(metavar="FILE", help="Plot the curves as .png, .svg or .pdf.")] = None,
    json_file: JsonOption = None,
    quiet: QuietOption = False,
) -> None:
    """Train a model on a toy translation task.

    The task is that of article 000; the model has to be an encoder-decoder.

    Ctrl-C stops after the current step and writes the checkpoint. A second Ctrl-C stops at once and loses the steps
    since the last checkpoint.
    """
    from triglot import tables  # noqa: PLC0415 (Rich takes longer to import than --help to print)
    from triglot.shared.console import progress  # noqa: PLC0415

    target = _check_training_target(target, resume, model)
    check_output(json_file, model, resume)
    if plot is not None:
        plots.check_plot(plot)
    check_apart(target, json_file, plot)
    options = {
        "rate": rate,
        "decay": decay,
        "epochs_per_decay": epochs_per_decay,
        "samples_per_epoch": samples_per_epoch,
        "batch_size": batch_size,
        "dropout": dropout,
        "seed": seed,
    }
    checkpoint = models.resolve(model, seed or 0).checkpoint if resume is None else _resumable(resume, model)
    plan = checkpoint.training.plan if checkpoint.training else Plan()
    # A resumed run keeps its plan, and options that differ are refused.
    plan = replace(plan, **{name: value for name, value in options.items() if value is not None})
    limit_threads(threads)
    framework_name = framework.value if framework else api.first_framework()
    with progress("training", quiet=quiet) as update, _finish_step_on_interrupt() as interrupts:

        def on_step(step: int, rate: float, outcome: Outcome) -> bool:
            if update is not None:
                accuracy = outcome.right / outcome.counted
                update(step, steps, f"rate {rate:.3g}  loss {outcome.loss:.4f}  accuracy {accuracy:.1%}")
            return not interrupts

        trained = training.train(
            checkpoint,
            framework_name,
            target,
            steps=steps,
            plan=plan,
            save_every=save_every,
            device=device.value,
            dtype=dtype.value if dtype else None,
            on_step=on_step,
        )
    assert trained.training is not None
    if plot is not None:
        plots.draw_training(trained.training, plot, f"{model}, trained in {framework_name}")
    steps_made = trained.training.moments.steps
    if interrupts and steps_made < steps:
        write_json(json_file, _report(trained, framework_name, unseen=None))
        progress_made = "1 step" if steps_made == 1 else f"{steps_made} steps"
        print(f"triglot: {target} holds {progress_made}; resume with --resume {target}", file=sys.stderr)  # noqa: T201
        raise typer.Exit(exit_codes.INTERRUPTED)
    unseen = training.score(trained, framework_name, seed=plan.seed)
    write_json(json_file, _report(trained, framework_name, unseen))
    if shows_tables(json_file, quiet=quiet):
        show(tables.print_training, trained, target, framework_name, unseen)


def _check_training_target(target: Path | None, resume: Path | None, model: str) -> Path:
    """Choose the output path. Refuse to overwrite any file except the one being resumed."""
    starts_from_file = Path(model).exists()
    path = target or resume or Path(f"{Path(model).stem}-trained.npz" if starts_from_file else f"{model}.npz")
    checkpoints.check_target(path)
    if path.exists() and not (resume is not None and resume.exists() and path.samefile(resume)):
        raise OutputError(f"{path} already exists; choose another --target, or resume it with --resume")
    return path


def _resumable(path: Path, model: str) -> Checkpoint:
    """Load a checkpoint that holds a training run of ``model``."""
    checkpoint = api.load(path)
    if checkpoint.training is None:
        raise TrainingError(f"{path} holds no training run to resume; pass it as MODEL, without --resume")
    if models.resolve(model).checkpoint.config != checkpoint.config:
        raise TrainingError(f"{path} was not trained from {model}; name the recipe that it was trained from")
    return checkpoint


def _report(checkpoint: Checkpoint, framework: str, unseen: Score | None) -> dict[str, Any]:
    """Return what ``--json`` writes, ``triglot.train/1``. ``unseen`` is None for an interrupted training."""
    trained = checkpoint.training
    assert trained is not None
    return {
        "schema": "triglot.train/1",
        "framework": framework,
        "config": checkpoint.config.to_dict(),
        "plan": trained.plan.to_dict(),
        "steps": trained.moments.steps,
        "loss": [float(value) for value in trained.history.loss],
        "accuracy": [float(value) for value in trained.history.accuracy],
        "unseen": asdict(unseen) if unseen else None,
        "weights_digest": checkpoint.digest,
    }


@contextmanager
def _finish_step_on_interrupt() -> Iterator[list[bool]]:
    """Record the first Ctrl-C in the list that this yields; let the second one stop the program."""
    interrupts: list[bool] = []

    def record(number: int, frame: FrameType | None) -> None:
        if interrupts:
            signal.default_int_handler(number, frame)
        interrupts.append(True)
        os.write(2, b"triglot: stopping after this step; press Ctrl-C again to stop now and lose unsaved steps\n")

    handlers = {number: signal.signal(number, record) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield interrupts
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
