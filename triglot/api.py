"""The public functions except those for training. Each combines parts of ``shared``, ``impls`` and ``parity``."""

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from triglot import arguments, impls
from triglot.impls.model import Model
from triglot.parity.originals import Original
from triglot.parity.report import Report
from triglot.shared import checkpoint as checkpoints
from triglot.shared.checkpoint import Checkpoint, Verify
from triglot.shared.errors import ConfigError, FrameworkError, InputError, ModelNotFoundError
from triglot.shared.inputs import Batch
from triglot.shared.inputs import encoder_batch as batch
from triglot.shared.model import recipes as configurations
from triglot.shared.model.config import ModelConfig
from triglot.shared.model.initializers import initialize as draw

__all__ = ["batch", "build", "check", "frameworks", "initialize", "load", "port", "recipes", "save"]


def frameworks() -> tuple[str, ...]:
    """Return the installed ones of "torch", "paddle" and "jax", in that order, without importing them."""
    return impls.installed()


def first_framework() -> str:
    """Return the first installed framework.

    Raises:
        FrameworkError: none is installed.
    """
    if not frameworks():
        raise FrameworkError("no framework is installed; install triglot[torch], triglot[paddle] or triglot[jax]")
    return frameworks()[0]


def recipes() -> dict[str, ModelConfig]:
    """Return the named configurations."""
    return configurations.recipes()


def initialize(recipe_or_config: str | ModelConfig, seed: int = 0) -> Checkpoint:
    """Return a checkpoint with seeded random weights, which are the same on every machine.

    Raises:
        ConfigError: no recipe has that name, or the seed is not a whole number of at least 0.
    """
    arguments.whole_number("seed", seed, 0)
    config = configurations.configured({}, recipe_or_config)
    return Checkpoint(config, draw(config, seed))


def load(path: str | Path, verify: Verify = "touched") -> Checkpoint:
    """Open a neutral checkpoint; see ``shared.checkpoint.load``.

    Raises:
        ModelNotFoundError: ``path`` does not exist.
        CheckpointError: it is not a checkpoint, or damaged.
    """
    path = Path(arguments.path("path", path))
    if str(path) in recipes() and not path.exists():
        raise ModelNotFoundError(f"{path} is a recipe; expected a checkpoint (.npz); call triglot.port({str(path)!r})")
    return checkpoints.load(path, verify)


def save(checkpoint: Checkpoint, path: str | Path, *, shard_size: int | str | None = None) -> None:
    """Write a neutral checkpoint, completely or not at all; see ``shared.checkpoint.save``.

    With a ``shard_size``, a number of bytes or a text such as "2GB", ``path`` is a new folder of several files.
    """
    checkpoints.save(arguments.checkpoint(checkpoint), arguments.path("path", path), _bytes(shard_size))


def port(
    source: str | Path | Checkpoint,
    target: str | Path | None = None,
    *,
    source_dialect: str | None = None,
    target_dialect: str | None = None,
    config: str | ModelConfig | Mapping[str, Any] | None = None,
    heads: Collection[str] | None = None,
    dtype: str | None = None,
    allow_lossy: bool = False,
    allow_nonfinite: bool = False,
    example: str | Path | None = None,
    shard_size: int | str | None = None,
) -> Checkpoint:
    """Read weights in any dialect and return them as a checkpoint; write them to ``target`` if that is given.

    ``source`` is a path, a checkpoint, or the name of a recipe, which brings its trained weights if it has any.
    ``docs/porting.md`` lists the dialects. ``target_dialect`` None means "neutral". ``source_dialect`` None means that
    the names of the tensors decide.

    ``config`` is a recipe, a complete configuration or single fields. It says what the weights do not, such as the
    number of attention heads and the activation. ``heads`` names the output heads of an encoder to keep (not its
    attention heads): None keeps all, () keeps none.
    ``dtype`` converts all tensors; a number that is too large for it is an error, unless ``allow_lossy`` makes it the
    largest one. ``allow_nonfinite`` writes NaN and infinity, too. ``example`` is an ``.npz`` file with inputs and
    outputs of the original, which the port must reproduce (``docs/porting.md``). ``shard_size``, a number of bytes or a
    text such as "2GB", divides the target into several files.

    The tensors of the result are mapped from the files of the source: do not change these files while you use it. Its
    ``left_out`` names the tensors that were not kept, and why.

    Raises:
        ModelNotFoundError: ``source`` does not exist.
        PortingError: a dialect is unknown, or the source is not in it, cannot be translated without loss, or does not
            compute the outputs in ``example``.
        CheckpointError: a checkpoint file is damaged, or does not match ``config``.
        ConfigError: ``config`` is wrong.
        InputError: ``example`` cannot be read, or does not fit the model; or ``shard_size`` is not a size.
        OutputError: ``target`` cannot be written.
    """
    # These load the porter, which programs that only build models do not need.
    from triglot import models  # noqa: PLC0415
    from triglot.shared import porting  # noqa: PLC0415
    from triglot.verification import verify_example  # noqa: PLC0415

    if example is not None:
        example = Path(arguments.path("example", example))
    if target is not None:
        arguments.path("target", target)
    heads = arguments.names("heads", heads)
    writer = porting.find_dialect(target_dialect or "neutral")
    bytes_per_shard = _bytes(shard_size)
    if isinstance(source, Checkpoint):
        checkpoint, verified = porting.read(source, source_dialect, config, heads), ""
    else:
        path = arguments.path("source", source)
        model = models.resolve(path, config=config, dialect=source_dialect, heads=heads, example=example)
        checkpoint, verified = model.checkpoint, model.verified
    if example is not None and not verified:
        verify_example(example, checkpoint)
    if dtype is not None:
        checkpoint, _ = porting.convert(checkpoint, dtype, allow_lossy=allow_lossy)
    if target is not None:
        porting.write(checkpoint, target, writer.name, shard_size=bytes_per_shard, allow_nonfinite=allow_nonfinite)
    return checkpoint


def _bytes(shard_size: int | str | None) -> int | None:
    return None if shard_size is None else checkpoints.parse_size(shard_size)


def build(
    framework: str, checkpoint: Checkpoint, *, device: str = "cpu", dtype: str | None = None, mode: str = "eager"
) -> Model:
    """Build the model of ``checkpoint`` in "torch", "paddle", "jax" or "numpy" (the reference); see ``impls.build``.

    It warns (``SlowWarning``) if mode "compiled" gains nothing from bfloat16 on this processor.

    Raises:
        FrameworkError: the framework is unknown or not installed, or does not support the device, dtype or mode.
        CheckpointError: a weight is NaN or infinite, or does not fit into the dtype.
    """
    model = impls.build(framework, arguments.checkpoint(checkpoint), device=device, dtype=dtype, mode=mode)
    impls.warn_if_slow(framework, device, dtype or "float32", mode)
    return model


def check(
    checkpoint: Checkpoint,
    frameworks: Sequence[str] | None = None,
    *,
    batches: Sequence[Batch] | None = None,
    checks: Sequence[str] | None = None,
    isolate: bool = True,
    pythons: Mapping[str, str | Path] | None = None,
    device: str = "cpu",
    dtype: str = "float32",
    mode: str = "eager",
    seed: int = 0,
    threads: int | None = None,
    time_limit: float = 300.0,
    model: str = "checkpoint",
    inputs: str | None = None,
    against: str | Path | Original | None = None,
    example: str | Path | None = None,
    progress: Callable[[int, int, str], None] | None = None,
) -> Report:
    """Compare every framework with the float64 reference on the weights of ``checkpoint``, and return the report.

    ``frameworks`` None means every installed one, and ``batches`` None means seeded random tokens. ``checks``:
    the kinds of check, some of ``CHECKS`` in ``shared/choices.py``; None: all that the model has, but
    gradients and training. ``isolate`` runs
    each framework in its own process with ``threads`` threads (None: one per core) and ``time_limit`` seconds per
    check. ``pythons`` maps a framework to the interpreter that runs its process, for frameworks that cannot share an
    environment; Triglot has to be installed there too. ``against`` is the model that was ported, to be run by its own
    library; ``example`` is a file of its inputs and outputs (``docs/porting.md``). ``model`` and ``inputs`` describe
    the model and the inputs in the report. ``progress`` is called with the number of checks done, their total and the
    name of the next one.

    Raises:
        FrameworkError: a framework is unknown or not installed, an interpreter cannot be started, or the dtype,
            device or mode is unknown.
        CheckpointError: a weight is NaN or infinite.
        InputError: there is no batch, or a batch does not fit the model; or the original cannot be run.
        PortingError: the original is in no known dialect.
        ConfigError: another argument is of the wrong type, or out of range.
    """
    # These load the whole harness, and loading weights should not wait for that.
    from triglot.parity import run  # noqa: PLC0415
    from triglot.parity.originals.recorded import read_example  # noqa: PLC0415

    arguments.checkpoint(checkpoint)
    arguments.whole_number("seed", seed, 0)
    if threads is not None:
        arguments.whole_number("threads", threads, 1)
    arguments.description("model", model)
    arguments.description("inputs", inputs)
    if batches is not None:
        arguments.batches(batches)
    elif inputs is not None:
        raise InputError("inputs describes batches, but there are none; pass batches, made with triglot.batch")
    original = against if isinstance(against, Original) or against is None else _original(against, checkpoint)
    if progress is not None and not callable(progress):
        raise ConfigError(f"progress is a {type(progress).__name__}; expected a function")
    return run.check(
        checkpoint,
        frameworks,
        batches=batches,
        checks=checks,
        isolate=isolate,
        pythons=pythons or {},
        device=device,
        dtype=dtype,
        mode=mode,
        seed=seed,
        threads=threads,
        time_limit=arguments.seconds("time_limit", time_limit),
        model=model,
        inputs=inputs,
        original=original,
        example=None if example is None else read_example(checkpoint.config, Path(arguments.path("example", example))),
        progress=progress,
    )


def _original(against: str | Path, checkpoint: Checkpoint) -> Original:
    from triglot import models  # noqa: PLC0415 (it loads the porter, see above)

    return models.original(Path(arguments.path("against", against)), checkpoint)
