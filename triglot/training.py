"""The public functions for training and translation: ``train``, ``score`` and ``translation``."""

from pathlib import Path

from triglot import arguments, impls
from triglot.shared import checkpoint as checkpoints
from triglot.shared.checkpoint import Checkpoint
from triglot.shared.errors import TrainingError
from triglot.shared.training.loop import OnStep, TrainingLoop, evaluate
from triglot.shared.training.plan import Plan, Training
from triglot.shared.training.translation import Score, TranslationTask, translate, write

STEPS = 20_000
SAVE_EVERY = 1_000


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

    A checkpoint that holds a training state resumes exactly where it stopped, in any framework. Its plan and dtype
    cannot change: ``plan`` and ``dtype`` must be None or repeat them. For a new run, None means the default plan and
    float32.

    The checkpoint is written to ``target`` every ``save_every`` steps and at the end. It replaces an earlier file of
    that name, completely or not at all. ``on_step`` is called after each step with the number of steps made, the
    learning rate and the outcome of the step; training stops when it returns False.

    Raises:
        TaskError: the model cannot learn this task.
        TrainingError: the checkpoint has made ``steps`` steps already, the plan or dtype differs from that of its
            training, the dtype is not supported for training, or a loss is not finite. The last file written stays.
        FrameworkError: the framework is not installed, is the reference, or does not support the device.
        OutputError: ``target`` cannot be written.
    """
    arguments.checkpoint(checkpoint)
    arguments.whole_number("steps", steps, 1)
    arguments.whole_number("save_every", save_every, 1)
    if target is not None:
        arguments.path("target", target)
    TranslationTask.for_model(checkpoint.config)  # refuse an unsuitable model before a framework is loaded
    plan, dtype = _settings(checkpoint.training, steps, plan, dtype)
    loop = TrainingLoop(impls.build(framework, checkpoint, device=device, dtype=dtype), checkpoint, plan)
    continues = True
    while continues and loop.steps < steps:
        next_save = loop.steps - loop.steps % save_every + save_every
        continues = loop.run(min(steps, next_save), on_step)
        if target is not None:
            checkpoints.save(loop.checkpoint(), target)
    return loop.checkpoint()


def score(checkpoint: Checkpoint, framework: str, *, seed: int = 0, count: int = 256) -> Score:
    """Translate ``count`` sentences that no training run has seen.

    Return the shares of correct tokens and of correct sentences.

    Raises:
        TaskError: the model cannot have learned the task.
        FrameworkError: the framework is not installed.
    """
    arguments.checkpoint(checkpoint)
    arguments.whole_number("seed", seed, 0)
    arguments.whole_number("count", count, 1)
    return evaluate(impls.build(framework, checkpoint), seed, count)


def translation(checkpoint: Checkpoint, framework: str, text: str) -> tuple[str, str]:
    """Return the model's translation of ``text`` and the correct translation.

    Raises:
        TaskError: the text is empty, too long or holds unknown symbols, or the model cannot have learned the task.
        FrameworkError: the framework is not installed.
    """
    task = TranslationTask.for_model(arguments.checkpoint(checkpoint).config)
    words = task.read(text)
    generated_ids = impls.build(framework, checkpoint).generate(task.source_ids(words))
    return write(int(token_id) for token_id in generated_ids[0]), " ".join(translate(words))


def _settings(resumed: Training | None, steps: int, plan: Plan | None, dtype: str | None) -> tuple[Plan, str]:
    """Return the plan and dtype to train with. ``TrainingLoop`` refuses a plan that differs from the resumed one."""
    if resumed is None:
        return plan or Plan(), dtype or "float32"
    if resumed.moments.steps >= steps:
        raise TrainingError(
            f"steps is {steps}; expected more than the {resumed.moments.steps} that this training run has made already"
        )
    resumed_dtype = next(iter(resumed.moments.first.values())).dtype.name
    if dtype not in (None, resumed_dtype):
        raise TrainingError(
            f"dtype is {dtype!r}; expected {resumed_dtype!r}, in which this training run began; omit it, or start a "
            "new one"
        )
    return plan or resumed.plan, resumed_dtype
