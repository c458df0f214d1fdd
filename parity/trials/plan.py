"""Plan the trials of a parity run: those of the chosen kinds of check that apply to the model."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from triglot.parity import checks
from triglot.parity.revealing import Weights
from triglot.parity.truth import Reference
from triglot.shared.arrays import HALVES
from triglot.shared.checkpoint import Checkpoint
from triglot.shared.checkpoint.training_state import check_beginning
from triglot.shared.choices import CHECKS, CHECKS_ON_DEMAND
from triglot.shared.errors import ConfigError, InputError, TrainingError
from triglot.shared.inputs import (
    Batch,
    PairBatch,
    check_generates,
    check_trainable,
    labelled,
    random_batch,
    sources_to_generate_from,
    taught,
)
from triglot.shared.model.config import ModelConfig
from triglot.shared.training.dropout_masks import draw_dropout_masks

from .derivatives import DerivativeTrial
from .findings import Findings
from .forward import ForwardTrial
from .generation import GenerationTrial
from .invariants import invariant_trials
from .trial import Subjects, Trial

SHORTER, LONGEST = 24, 64  # tokens to generate: each costs a pass of the reference


def selected_checks(chosen: Sequence[str] | None, config: ModelConfig, dtype: str, mode: str) -> tuple[str, ...]:
    """Return the kinds of check to run: those chosen, or all that apply to the model, except those on demand.

    Raises:
        ConfigError: a kind is unknown, or does not apply to the model; or none is chosen.
    """
    possible = [kind for kind in CHECKS if not _reason(kind, config, dtype, mode)]
    if chosen is None:
        return tuple(kind for kind in possible if kind not in CHECKS_ON_DEMAND)
    if isinstance(chosen, str):
        raise ConfigError(f"checks is {chosen!r}; expected a list of names")
    if not chosen:
        raise ConfigError(f"checks is empty; name some of {', '.join(CHECKS)}, or pass None for all")
    for kind in chosen:
        if kind not in CHECKS:
            raise ConfigError(f"there is no check {kind!r}; expected some of {', '.join(CHECKS)}")
        if kind not in possible:
            reason = _reason(kind, config, dtype, mode)
            raise ConfigError(f"the check {kind!r} is impossible here: {reason}")
    return tuple(kind for kind in CHECKS if kind in chosen)


def unchecked(selected: Sequence[str], config: ModelConfig) -> tuple[str, ...]:
    """Return the kinds of check that apply to the model, at least in float32, but were not selected."""
    return tuple(kind for kind in CHECKS if kind not in selected and not _reason(kind, config, "float32", "eager"))


def plan_trials(
    selected: Sequence[str],
    references: Mapping[Weights, Reference],
    weights: Mapping[Weights, Checkpoint],
    batches: Sequence[Batch],
    subjects: Subjects,
    findings: Findings,
    seed: int,
) -> list[Trial]:
    """Return the trials of the selected kinds of check."""
    (dtype,) = {subject.dtype for subject in subjects.values()}
    generator = np.random.default_rng([seed, 5])
    config, loud = weights["given"].config, weights["loud"]
    trials: list[Trial] = [
        ForwardTrial(check, subjects, references[check.weights], findings, seed)
        for check in _forward_checks(selected, checks.plan(config, loud.config, batches, seed, dtype))
    ]
    if "invariants" in selected:
        trials += invariant_trials(references, subjects, findings, dtype, seed)
    if "generation" in selected:
        for name in ("given", "varied"):
            batch = _sources(weights[name].config, generator, at_the_left=name == "varied")
            trials.append(GenerationTrial(subjects, name, weights[name], batch))
    for kind in ("gradients", "training"):
        if kind in selected:
            batch = checks.rounded_batch(_to_learn(loud.config, generator), dtype)
            masks = draw_dropout_masks(loud.config, batch, generator) if kind == "training" else None
            trials.append(DerivativeTrial(subjects, loud, batch, masks))
    return trials


def _forward_checks(selected: Sequence[str], planned: Sequence[checks.Check]) -> list[checks.Check]:
    """Return the forward passes that the selected kinds of check need, and what is judged in each."""
    steps, forward = "steps" in selected, "forward" in selected
    if not (steps or forward):
        first = next(check for check in planned if check.name == checks.END_TO_END)
        return [replace(first, methods=False, steps=False)] if "masks" in selected else []
    return [
        replace(check, methods=check.methods and forward, steps=check.steps and steps)
        for check in planned
        if (steps if check.values else forward or check.steps)
    ]


def _sources(config: ModelConfig, generator: np.random.Generator, *, at_the_left: bool) -> PairBatch:
    """Return sources to generate from.

    Only the length of the targets counts: it says how many tokens to generate. With padding at the left, that is as
    many as the model allows, up to ``LONGEST``; otherwise fewer.
    """
    batch = random_batch(config, 2 * checks.row_lengths(config), generator)
    assert isinstance(batch, PairBatch)
    source = sources_to_generate_from(batch)
    length = min(config.target_max_length, LONGEST) if at_the_left else min(config.target_max_length - 1, SHORTER)
    target = np.zeros((batch.rows, max(1, length)), batch.target.dtype)
    order = slice(None, None, -1 if at_the_left else 1)
    return replace(
        batch,
        source=source[:, order],
        valid=batch.valid[:, order],
        target=target,
        target_valid=np.ones(target.shape, np.bool_),
    )


def _to_learn(config: ModelConfig, generator: np.random.Generator) -> Batch:
    """Return a batch with labels, a quarter of which do not count, or with the vectors of a teacher."""
    batch = random_batch(config, checks.row_lengths(config), generator)
    if isinstance(batch, PairBatch):
        labels = generator.integers(0, config.target_vocabulary, batch.target.shape)
        labels[generator.random(labels.shape) < 1 / 4] = -1
        labels[0, 0] = 0  # at least one counts
        return labelled(config, batch, labels)
    shape = (*batch.valid.shape, config.hidden_size)
    return taught(config, batch, generator.standard_normal(shape).astype(np.float32))


def _reason(kind: str, config: ModelConfig, dtype: str, mode: str) -> str:
    """Return why a kind of check does not apply to a model; empty if it does."""
    try:
        if kind == "generation":
            check_generates(config)
        if kind == "gradients":
            check_trainable(config)
        if kind == "training":
            check_beginning(config, dtype, mode, None)
    except (InputError, TrainingError) as error:
        return str(error)
    if kind == "gradients" and dtype in HALVES:
        return f"the noise of gradients is not known in {dtype}; use float32 or float64"
    return ""
