"""The public functions: thin, each puts together what ``shared`` and ``impls`` offer."""

import sys
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from triglot import impls, models
from triglot.impls import build
from triglot.shared import checkpoint as checkpoints
from triglot.shared import porting
from triglot.shared import recipes as named
from triglot.shared.checkpoint import Checkpoint, Verify
from triglot.shared.config import ModelConfig
from triglot.shared.errors import ConfigError, FrameworkError, InputError
from triglot.shared.initializers import initialize as draw
from triglot.shared.inputs import Batch, check_batch, random_batches
from triglot.shared.parity.reports import Report
from triglot.shared.protocol import Reference

__all__ = ["build", "check", "frameworks", "initialize", "load", "port", "recipes", "save"]

BATCHES, BATCH_SIZE = 4, 8


def frameworks() -> tuple[str, ...]:
    """The installed ones of "torch", "paddle" and "jax", in that order. Imports none of them."""
    return impls.installed()


def recipes() -> dict[str, ModelConfig]:
    """The named configurations."""
    return named.recipes()


def initialize(recipe_or_config: str | ModelConfig, seed: int = 0) -> Checkpoint:
    """A checkpoint with seeded random weights, the same on every machine.

    Raises:
        ConfigError: there is no recipe of that name, or the seed is negative.
    """
    if seed < 0:
        raise ConfigError(f"seed is {seed}; expected 0 or more")
    config = named.recipe(recipe_or_config) if isinstance(recipe_or_config, str) else recipe_or_config
    return Checkpoint(config, draw(config, seed))


def load(path: str | Path, verify: Verify = "touched") -> Checkpoint:
    """Open a neutral checkpoint; see ``shared.checkpoint.load``."""
    return checkpoints.load(path, verify)


def save(checkpoint: Checkpoint, path: str | Path) -> None:
    """Write a neutral checkpoint, all of it or nothing; see ``shared.checkpoint.save``."""
    checkpoints.save(checkpoint, path)


def port(source: str | Path | Checkpoint, target: str | Path | None = None) -> Checkpoint:
    """Foreign weights as a neutral checkpoint: of a model folder, or of a recipe whose trained weights are installed.

    Written to ``target``, if that is given. See ``shared.porting.port``.

    Raises:
        ModelNotFoundError: there is nothing at ``source``.
        PortingError: the folder is in no known dialect, or cannot be translated without loss.
        CheckpointError: a checkpoint file is damaged.
        OutputError: ``target`` cannot be written.
    """
    if isinstance(source, str) and source in models.TRAINED:
        source = models.resolve(source).checkpoint
    return porting.port(source, target)


def check(
    checkpoint: Checkpoint,
    frameworks: Sequence[str] | None = None,
    *,
    batches: Sequence[Batch] | None = None,
    isolate: bool = True,
    device: str = "cpu",
    dtype: str = "float32",
    seed: int = 0,
    threads: int | None = None,
    time_limit: float = 300.0,
    model: str = "checkpoint",
    inputs: str | None = None,
    progress: Callable[[int, int, str], None] | None = None,
) -> Report:
    """Prove, or disprove, that every framework computes what ``checkpoint`` says.

    ``frameworks`` None: every one that is installed. ``batches`` None: seeded random tokens. ``isolate`` gives each
    framework a process of its own with ``threads`` threads (None: as many as there are cores) and ``time_limit``
    seconds for each answer. ``model`` and ``inputs`` name both in the report.

    Raises:
        FrameworkError: a framework is unknown or not installed, none is installed, or dtype or device is unknown.
        InputError: there is no batch, or one does not fit the model.
    """
    # Imported here: who only loads weights should not wait for the harness.
    from triglot.shared.environment import cores  # noqa: PLC0415
    from triglot.shared.parity import harness  # noqa: PLC0415
    from triglot.shared.parity.judging import Subject  # noqa: PLC0415
    from triglot.shared.parity.pools import LocalPool, WorkerPool  # noqa: PLC0415

    asked = tuple(dict.fromkeys(impls.installed() if frameworks is None else frameworks))
    _check_frameworks(asked)
    if dtype not in ("float32", "float64"):
        raise FrameworkError(f"unknown dtype {dtype!r}; expected float32 or float64")
    if seed < 0:
        raise ConfigError(f"seed is {seed}; expected 0 or more")
    if device not in impls.DEVICES:
        raise FrameworkError(f"unknown device {device!r}; expected one of {', '.join(impls.DEVICES)}")
    if batches is not None and not batches:
        raise InputError("batches is empty; give at least one batch, or None for random ones")
    if batches is None:
        batches = random_batches(checkpoint.config, BATCHES, BATCH_SIZE, seed)
        inputs = f"{BATCHES} batches of {BATCH_SIZE} rows of random tokens"
    for batch in batches:
        check_batch(checkpoint.config, batch)
    weights = harness.weights_for(checkpoint, dtype, seed)
    subjects = [Subject(framework, "eager", dtype) for framework in asked]
    with tempfile.TemporaryDirectory(prefix="triglot-") as folder:
        if isolate:
            pool = WorkerPool(
                asked,
                weights,
                Path(folder),
                command=[sys.executable, "-P", "-m", "triglot.impls.worker"],
                device=device,
                dtype=dtype,
                threads=threads or cores(),
                time_limit=time_limit,
            )
        else:
            builders = {name: partial(build, name, device=device, dtype=dtype) for name in asked}
            pool = LocalPool(builders, weights)
        try:
            return harness.compare(
                weights,
                batches,
                subjects,
                pool,
                reference=_reference,
                seed=seed,
                digest=checkpoint.digest,
                model=model,
                inputs=inputs or f"{len(batches)} batches",
                progress=progress,
            )
        finally:
            pool.close()


def _reference(checkpoint: Checkpoint) -> Reference:
    from triglot.impls import reference  # noqa: PLC0415 (it loads SciPy, which takes longer than the rest)

    return reference.Reference(checkpoint)


def _check_frameworks(asked: Sequence[str]) -> None:
    if not asked:
        raise FrameworkError("no framework is installed; install triglot[torch], triglot[paddle] or triglot[jax]")
    for framework in asked:
        if framework not in impls.FRAMEWORKS:
            raise FrameworkError(f"unknown framework {framework!r}; expected one of {', '.join(impls.FRAMEWORKS)}")
        if framework not in impls.installed():
            raise FrameworkError(f"framework {framework!r} is not installed; install triglot[{framework}]")
