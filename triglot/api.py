"""The public functions: thin, each puts together what ``shared`` and ``impls`` offer."""

import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from triglot import arguments, impls, models
from triglot.parity.report import Report
from triglot.shared import checkpoint as checkpoints
from triglot.shared.checkpoint import Checkpoint, Verify
from triglot.shared.dtypes import ARITHMETIC
from triglot.shared.errors import FrameworkError
from triglot.shared.inputs.random import random_batches
from triglot.shared.inputs.validation import Batch, batch, check_batch
from triglot.shared.model import recipes as named
from triglot.shared.model.config import ModelConfig
from triglot.shared.model.initializers import initialize as draw
from triglot.shared.model.overrides import configured
from triglot.shared.model.protocol import Model, Reference
from triglot.shared.porting import port as porting

__all__ = ["batch", "build", "check", "frameworks", "initialize", "load", "port", "recipes", "save"]

BATCHES, BATCH_SIZE = 4, 8


def frameworks() -> tuple[str, ...]:
    """The installed ones of "torch", "paddle" and "jax", in that order. Imports none of them."""
    return impls.installed()


def first_framework() -> str:
    """The first of the installed frameworks.

    Raises:
        FrameworkError: none is installed.
    """
    if not frameworks():
        raise FrameworkError("no framework is installed; install triglot[torch], triglot[paddle] or triglot[jax]")
    return frameworks()[0]


def recipes() -> dict[str, ModelConfig]:
    """The named configurations."""
    return named.recipes()


def initialize(recipe_or_config: str | ModelConfig, seed: int = 0) -> Checkpoint:
    """A checkpoint with seeded random weights, the same on every machine.

    Raises:
        ConfigError: there is no recipe of that name, or the seed is no whole number or negative.
    """
    arguments.whole_number("seed", seed, 0)
    config = configured({}, recipe_or_config)
    return Checkpoint(config, draw(config, seed))


def load(path: str | Path, verify: Verify = "touched") -> Checkpoint:
    """Open a neutral checkpoint; see ``shared.checkpoint.load``."""
    return checkpoints.load(arguments.path("path", path), verify)


def save(checkpoint: Checkpoint, path: str | Path) -> None:
    """Write a neutral checkpoint, all of it or nothing; see ``shared.checkpoint.save``."""
    checkpoints.save(arguments.checkpoint(checkpoint), arguments.path("path", path))


def port(
    source: str | Path | Checkpoint,
    target: str | Path | None = None,
    *,
    source_dialect: str | None = None,
    target_dialect: str | None = None,
    config: str | ModelConfig | Mapping[str, Any] | None = None,
) -> Checkpoint:
    """Foreign weights as a neutral checkpoint, and written to ``target`` in ``target_dialect``, if that is given.

    ``source`` is a path, a checkpoint, or a recipe, with its trained weights if it has any. The dialects are "neutral",
    the default of ``target_dialect``, "huggingface", and the state dicts of the articles: "article-translation",
    "article-dygraph", "article-prenorm", "article-annotated", "article-multihead". That of the source shows by its
    looks, but those of the articles have to be named. ``config``, a recipe, a whole configuration or single fields,
    says what the weights do not: for a bare state dict, heads, activation, norm_eps and masking; for that of an
    article, what differs from the recipe of that name. ``left_out`` of the result names what is not kept.

    Raises:
        ModelNotFoundError: there is nothing at ``source``.
        PortingError: a dialect is unknown, or the source is not in it, or cannot be translated without loss.
        CheckpointError: a checkpoint file is damaged, or does not match ``config``.
        ConfigError: ``config`` is wrong.
        OutputError: ``target`` cannot be written.
    """
    if target is not None:
        arguments.path("target", target)
    if isinstance(source, str) and source in recipes():
        source, config = models.resolve(source, config=config, dialect=source_dialect).checkpoint, None
        source_dialect = None
    elif not isinstance(source, Checkpoint):
        arguments.path("source", source)
    return porting.port(source, target, source_dialect=source_dialect, target_dialect=target_dialect, config=config)


def build(
    framework: str, checkpoint: Checkpoint, *, device: str = "cpu", dtype: str | None = None, mode: str = "eager"
) -> Model:
    """The model of ``checkpoint`` in "torch", "paddle", "jax" or "numpy", the reference; see ``impls.build``.

    Raises:
        FrameworkError: the framework is unknown or not installed, or does not know the device, dtype or mode.
        CheckpointError: a weight is NaN or infinite, or does not fit into the dtype.
    """
    return impls.build(framework, arguments.checkpoint(checkpoint), device=device, dtype=dtype, mode=mode)


def check(
    checkpoint: Checkpoint,
    frameworks: Sequence[str] | None = None,
    *,
    batches: Sequence[Batch] | None = None,
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
    progress: Callable[[int, int, str], None] | None = None,
) -> Report:
    """Prove, or disprove, that every framework computes what ``checkpoint`` says.

    ``frameworks`` None: every one that is installed. ``batches`` None: seeded random tokens. ``isolate`` gives each
    framework a process of its own with ``threads`` threads (None: as many as there are cores) and ``time_limit``
    seconds for each answer. ``pythons`` maps a framework to the interpreter that runs its process, for frameworks that
    cannot live in one environment; Triglot has to be installed there. ``model`` and ``inputs`` name both in the report.

    Raises:
        FrameworkError: a framework is unknown or not installed, none is installed, an interpreter cannot be started,
            or dtype, device or mode is unknown.
        CheckpointError: a weight is NaN or infinite.
        InputError: there is no batch, or one does not fit the model.
    """
    # Imported here: who only loads weights should not wait for the harness.
    from triglot.parity import run as harness  # noqa: PLC0415
    from triglot.parity.judge import Subject  # noqa: PLC0415
    from triglot.parity.pool import LocalPool, WorkerPool  # noqa: PLC0415
    from triglot.shared.environment import cores  # noqa: PLC0415

    for framework in pythons or {}:
        impls.check_choice("framework", framework, tuple(impls.FRAMEWORKS))
    arguments.checkpoint(checkpoint)
    arguments.whole_number("seed", seed, 0)
    if threads is not None:
        arguments.whole_number("threads", threads, 1)
    time_limit = arguments.seconds("time_limit", time_limit)
    if batches is not None:
        arguments.batches(batches)
    if isinstance(frameworks, str):
        raise FrameworkError(f"frameworks is {frameworks!r}; expected a list of names")
    if frameworks is not None and not frameworks:
        raise FrameworkError("frameworks is empty; name one, or give None for every one that is installed")
    pythons = {framework: _interpreter(path) for framework, path in (pythons or {}).items()}
    available = [name for name in impls.FRAMEWORKS if name in (*impls.installed(), *pythons)]
    asked = tuple(dict.fromkeys(available if frameworks is None else frameworks))
    _check_frameworks(asked, available)
    if unused := sorted(set(pythons) - set(asked)):
        raise FrameworkError(f"an interpreter was given for {', '.join(unused)}, which takes no part; leave it out")
    if pythons and not isolate:
        raise FrameworkError(
            "an interpreter was given, but without isolate all frameworks run in this one; isolate them"
        )
    impls.check_choice("dtype", dtype, ARITHMETIC)
    impls.check_choice("device", device, impls.DEVICES)
    impls.check_choice("mode", mode, impls.MODES)
    if batches is None:
        batches = random_batches(checkpoint.config, BATCHES, BATCH_SIZE, seed)
        inputs = f"{BATCHES} batches of {BATCH_SIZE} rows of random tokens"
    batches = [check_batch(checkpoint.config, given) for given in batches]
    weights = harness.weights_for(checkpoint, dtype, seed)
    subjects = [Subject(framework, mode, dtype) for framework in asked]
    settings = {"device": device, "dtype": dtype, "mode": mode}
    with tempfile.TemporaryDirectory(prefix="triglot-") as folder:
        if isolate:
            pool = WorkerPool(
                {name: [pythons.get(name, sys.executable), "-P", "-m", "triglot.parity.worker"] for name in asked},
                weights,
                Path(folder),
                settings=settings,
                threads=threads or cores(),
                time_limit=time_limit,
            )
        else:
            builders = {name: partial(impls.build, name, **settings) for name in asked}
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
    from triglot.parity import truth as reference  # noqa: PLC0415 (it loads SciPy, which takes longer than the rest)

    return reference.Reference(checkpoint)


def _interpreter(path: str | Path) -> str:
    found = shutil.which(path)
    if found is None:
        raise FrameworkError(f"there is no interpreter {path}; give the path of a Python that has Triglot installed")
    return found


def _check_frameworks(asked: Sequence[str], available: Sequence[str]) -> None:
    if not asked:
        raise FrameworkError("no framework is installed; install triglot[torch], triglot[paddle] or triglot[jax]")
    for framework in asked:
        impls.check_choice("framework", framework, tuple(impls.FRAMEWORKS))
        if framework not in available:
            raise FrameworkError(f"framework {framework!r} is not installed; install triglot[{framework}]")
