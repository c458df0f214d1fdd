"""Training and translating with a model: what ``triglot train`` and ``triglot translate`` do, as functions."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from triglot import api, arguments, impls, models
from triglot.shared import checkpoint as checkpoints
from triglot.shared.checkpoint import Checkpoint
from triglot.shared.errors import TaskError, TrainingError
from triglot.shared.training.loop import Learner, judge
from triglot.shared.training.plan import Outcome, Plan, Training
from triglot.shared.training.translation import Score, TranslationTask, translate, write

STEPS = 20_000
SAVE_EVERY = 1_000

OnStep = Callable[[int, float, Outcome], bool]


def train(
    checkpoint: Checkpoint,
    framework: str,
    target: str | Path | None = None,
    *,
    steps: int = STEPS,
    plan: Plan | None = None,
    save_every: int = SAVE_EVERY,
    device: str = "cpu",
    dtype: str | None = None,
    on_step: OnStep | None = None,
) -> Checkpoint:
    """Train ``checkpoint`` on the toy translation of article 000, up to step number ``steps``.

    One that was trained before goes on exactly where it stopped, in any framework, with the plan and the dtype that it
    has; ``plan`` and ``dtype`` None: those, or the defaults, float32 among them. Every ``save_every`` steps, and at the
    end, what is there is written to ``target``, all of it or nothing, in the place of a file of that name. ``on_step``
    is called after each step with the number of steps made, the rate and what the step saw; training stops when it
    returns False.

    Raises:
        TaskError: the model cannot learn this task.
        TrainingError: it is beyond ``steps`` already, plan or dtype are not those that it was trained with, the dtype
            is no format to train in, or a loss is not finite: the last file written stays as it is.
        FrameworkError: the framework is not installed, is the reference, or does not know the device.
        OutputError: ``target`` cannot be written.
    """
    arguments.checkpoint(checkpoint)
    arguments.whole_number("steps", steps, 1)
    arguments.whole_number("save_every", save_every, 1)
    if target is not None:
        arguments.path("target", target)
    TranslationTask.for_model(checkpoint.config)  # before a framework is loaded
    begun = checkpoint.training
    if begun is not None and begun.moments.steps >= steps:
        raise TrainingError(f"the training has made {begun.moments.steps} steps; ask for more than that")
    plan = plan or (begun.plan if begun else Plan())
    kept_in = _format(begun) if begun else "float32"
    dtype = dtype or kept_in
    if begun is not None and dtype != kept_in:
        raise TrainingError(f"dtype of the training is {kept_in}, not {dtype}; leave it, or begin anew")
    learner = Learner(impls.build(framework, checkpoint, device=device, dtype=dtype), checkpoint, plan)
    goes_on = True

    def follow(step: int, rate: float, outcome: Outcome) -> bool:
        nonlocal goes_on
        goes_on = on_step is None or on_step(step, rate, outcome)
        return goes_on

    while goes_on and learner.steps < steps:
        learner.learn(min(steps, learner.steps - learner.steps % save_every + save_every), follow)
        if target is not None:
            checkpoints.save(learner.checkpoint(), target)
    return learner.checkpoint()


def _format(training: Training) -> str:
    return next(iter(training.moments.first.values())).dtype.name


def plan_for(checkpoint: Checkpoint, model: str, resume: Path | None, given: Mapping[str, Any]) -> Plan:
    """The plan that the options ask for: of a training that goes on its own, which they may repeat, not change.

    Raises:
        TrainingError: they ask for another plan, or for another model than that of the checkpoint to go on with.
    """
    if resume is not None:
        if checkpoint.training is None:
            raise TrainingError(f"{resume} keeps no training to go on with; give it as MODEL, without --resume")
        if models.resolve(model).checkpoint.config != checkpoint.config:
            raise TrainingError(f"{resume} is no {model}; name the recipe that it was trained from")
    kept = checkpoint.training.plan.to_dict() if checkpoint.training else {}
    return Plan(**{**kept, **given})


def score(checkpoint: Checkpoint, framework: str, *, seed: int = 0, count: int = 256) -> Score:
    """The share of tokens, and of whole sentences, that come out right for ``count`` sentences no training has seen.

    Raises:
        TaskError: the model cannot have learnt the task.
        FrameworkError: the framework is not installed.
    """
    arguments.whole_number("seed", seed, 0)
    arguments.whole_number("count", count, 1)
    return judge(api.build(framework, checkpoint), seed, count)


def translation(checkpoint: Checkpoint, framework: str, text: str) -> tuple[str, str]:
    """What the model makes of ``text``, and what it should have made.

    Raises:
        TaskError: the text has other symbols than the task, or is too long, or the model cannot have learnt the task.
        FrameworkError: the framework is not installed.
    """
    task = TranslationTask.for_model(arguments.checkpoint(checkpoint).config)
    words = task.read(text)
    generated = api.build(framework, checkpoint).generate(task.source_ids(words))
    return write(int(token) for token in generated[0]), " ".join(translate(words))


def report(checkpoint: Checkpoint, framework: str, unseen: Score | None = None) -> dict[str, Any]:
    """What ``triglot train --json`` writes; ``unseen`` is null of a training that was interrupted.

    Raises:
        TaskError: the checkpoint was not trained.
    """
    training = checkpoint.training
    if training is None:
        raise TaskError("this checkpoint keeps no training; make one with triglot train")
    return {
        "schema": "triglot.train/1",
        "framework": framework,
        "config": checkpoint.config.to_dict(),
        "plan": training.plan.to_dict(),
        "steps": training.moments.steps,
        "loss": [float(value) for value in np.asarray(training.history.loss)],
        "accuracy": [float(value) for value in np.asarray(training.history.accuracy)],
        "unseen": {"tokens": unseen.tokens, "sequences": unseen.sequences} if unseen else None,
        "weights_digest": checkpoint.digest,
    }
