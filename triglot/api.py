"""The public functions: thin, each puts together what ``shared`` and ``impls`` offer."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from triglot import arguments, impls, models
from triglot.parity.report import Report
from triglot.shared import checkpoint as checkpoints
from triglot.shared.checkpoint import Checkpoint, Verify
from triglot.shared.errors import FrameworkError
from triglot.shared.inputs.validation import Batch, batch
from triglot.shared.model import recipes as named
from triglot.shared.model.config import ModelConfig
from triglot.shared.model.initializers import initialize as draw
from triglot.shared.model.overrides import configured
from triglot.shared.model.protocol import Model
from triglot.shared.porting import port as porting

__all__ = ["batch", "build", "check", "frameworks", "initialize", "load", "port", "recipes", "save"]


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
    from triglot.parity import run  # noqa: PLC0415 (it loads SciPy, and loading weights should not wait for that)

    arguments.checkpoint(checkpoint)
    arguments.whole_number("seed", seed, 0)
    if threads is not None:
        arguments.whole_number("threads", threads, 1)
    if batches is not None:
        arguments.batches(batches)
    return run.check(
        checkpoint,
        frameworks,
        batches=batches,
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
        progress=progress,
    )
