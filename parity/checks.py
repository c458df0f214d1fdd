"""What is run to compare implementations, and what a correct one gives.

``end_to_end``      the whole model on the inputs given; every named value, as it comes
``local``           the same, each step fed with the truth of the step before: the error that it makes alone
``normal``, ``low_variance``, ``large``, ``offset``, ``masking``
                    each step fed with fresh values (``probes.py``)
``length_one``, ``maximum_length``, ``repeated_tokens``
                    the whole model on inputs of that kind
``masks``           the masks that each framework builds, bit for bit
``api``             what ``encode`` and ``heads`` return, and the weights read back, bit for bit
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from triglot.shared.arrays import Array, Bools
from triglot.shared.checkpoint import Checkpoint
from triglot.shared.dtypes import representable
from triglot.shared.inputs.random import random_batch
from triglot.shared.inputs.validation import Batch, attention, batch, in_range, pair
from triglot.shared.model import masks
from triglot.shared.model.config import ModelConfig
from triglot.shared.model.named_values import activations
from triglot.shared.model.protocol import Model, Reference

from . import probes
from .budgets import NOISE_RUNS, noise_in

MASKS = "masks"
API = "api"
WORKER = "worker"  # no check: the row of a framework that died or could not be built
END_TO_END = "end_to_end"
LOCAL = "local"
LOCAL_CHECKS = (LOCAL, *probes.KINDS)
CHECKS = (MASKS, API, END_TO_END, *LOCAL_CHECKS, "length_one", "maximum_length", "repeated_tokens")

ENCODE = f"{API}.encode"
FORWARD = f"{API}.forward"
ATTEND = f"{API}.attend"
WEIGHTS_AVERAGED = f"{API}.attend.weights"
WEIGHTS = f"{API}.weights"  # how many tensors differ from the checkpoint's

Weights = Literal["given", "perturbed"]


@dataclass(frozen=True)
class Check:
    """One run of a model: on which weights, on which batch, and which values are put in place of its own.

    ``weights``: "given", or "perturbed" so that no norm and no bias is the identity. ``values``: None for the
    model's own, "truth" for the reference's, or a kind of fresh ones.
    """

    name: str
    batch: Batch
    weights: Weights
    values: Literal["truth"] | probes.Kind | None = None


@dataclass(frozen=True)
class Expectation:
    """What a correct implementation gives in a check: the float64 truth, and the rounding noise around it."""

    truth: Mapping[str, Array]
    noise: Mapping[str, float]


def plan(config: ModelConfig, batches: Sequence[Batch], seed: int, dtype: str) -> list[Check]:
    """Every check for a model of ``config`` that runs in ``dtype``; ``batches`` are the inputs of the end-to-end check.

    Embedded inputs are rounded to ``dtype`` first, as the weights are.
    """
    generator = np.random.default_rng([seed, 1])
    longest = config.source_max_length
    lengths = [min(longest, length) for length in (24, 11, 1, 17)]
    checks = [Check(END_TO_END, inputs, "given") for inputs in batches]
    checks += [Check(LOCAL, inputs, "given", "truth") for inputs in batches]
    checks += [
        Check(kind, probes.batch(kind, config, lengths, generator, dtype), "perturbed", kind) for kind in probes.KINDS
    ]
    unusual = {
        "length_one": random_batch(config, [1, 1], generator),
        "maximum_length": random_batch(config, [longest], generator),
        "repeated_tokens": _repeated(config, len(lengths), max(lengths), generator),
    }
    checks += [Check(name, inputs, "perturbed") for name, inputs in unusual.items()]
    return [replace(check, batch=_rounded(check.batch, dtype)) for check in checks]


def replacements(check: Check, reference: Reference, config: ModelConfig, seed: int, dtype: str) -> Mapping[str, Array]:
    """What is put in place of the named values in a check, float32; nothing where the model's own values flow."""
    if check.values is None:
        return {}
    truth = reference.truth(check.batch, {})
    fresh = truth if check.values == "truth" else probes.replacements(check.values, config, truth, seed, dtype)
    return {name: representable(value, dtype) for name, value in fresh.items()}


def expect(
    check: Check, replaced: Mapping[str, Array], reference: Reference, config: ModelConfig, dtype: str
) -> Expectation:
    """Run the reference: once in float64, and ``NOISE_RUNS`` times in float32 with its sums in other orders.

    The noise is that of ``dtype``.
    """
    truth = reference.truth(check.batch, replaced)
    noise = dict.fromkeys(truth, 0.0)
    for run in range(NOISE_RUNS):
        for name, value in reference.rounded(check.batch, replaced, seed=run, dtype=dtype).items():
            error = distance(value, truth[name], real(name, check, config))
            noise[name] = float(np.maximum(noise[name], error))  # NaN if there is a NaN, unlike max
    return Expectation(truth, {name: noise_in(dtype, measured) for name, measured in noise.items()})


def run(model: Model, checkpoint: Checkpoint, inputs: Batch, replaced: Mapping[str, Array]) -> dict[str, Array]:
    """What an implementation gives in a check.

    Every named value and, as ``masks.<name>``, its masks; when its own values flow, also what its other methods give,
    as ``api.<name>``.
    """
    results = dict(model.trace(inputs, replaced))
    results.update({f"{MASKS}.{name}": mask for name, mask in model.masks(inputs.valid).items()})
    if inputs.target.size:
        results.update({f"{MASKS}.target_{name}": mask for name, mask in model.masks(inputs.target_valid).items()})
    if not replaced:
        results |= _methods(model, checkpoint.config, inputs)
        weights = model.weights()
        names = weights.keys() | checkpoint.tensors.keys()
        same = [np.array_equal(weights.get(name, ()), checkpoint.tensors.get(name, ())) for name in names]
        results[WEIGHTS] = np.array(same.count(False))
    return results


def _methods(model: Model, config: ModelConfig, inputs: Batch) -> dict[str, Array]:
    """What the methods return that a user calls."""
    if config.kind == "attention":
        vectors = (inputs.query, inputs.source, inputs.value)
        output, averaged = model.attend(*vectors, inputs.allowed, inputs.valid, inputs.bias)
        return {ATTEND: output, WEIGHTS_AVERAGED: averaged}
    given = (
        inputs.source,
        inputs.valid,
        inputs.segment_ids if config.segments else None,
        inputs.task_ids if config.tasks else None,
    )
    encoded = {ENCODE: model.encode(*given)}
    if config.kind == "encoder_decoder":
        return encoded | {FORWARD: model.forward(inputs.source, inputs.target, inputs.valid, inputs.target_valid)}
    return encoded | {f"{API}.heads.{name}": value for name, value in model.heads(*given).items()}


def expected_masks(inputs: Batch) -> dict[str, Array]:
    """The canonical masks as ``masks.<name>``."""
    expected = {f"{MASKS}.{name}": mask for name, mask in masks.all_masks(inputs.valid).items()}
    if inputs.target.size:
        expected |= {f"{MASKS}.target_{name}": mask for name, mask in masks.all_masks(inputs.target_valid).items()}
    return expected


def real(name: str, check: Check, config: ModelConfig) -> Bools | None:
    """Where the named value is judged, at real tokens: bool, broadcastable to the value; None: everywhere.

    A step that is fed with fresh values is judged at padding too: its inputs are defined there.
    """
    if check.values in probes.KINDS:
        return None
    valid = {"source": check.batch.valid, "target": check.batch.target_valid}
    selected: Bools | None = None
    axes = activations(config)[name].axes
    for axis, meaning in enumerate(axes):
        if meaning in valid:
            shape = [1] * len(axes)
            shape[axes.index("batch")], shape[axis] = valid[meaning].shape
            tokens = valid[meaning].reshape(shape)
            selected = tokens if selected is None else selected & tokens
    return selected


def distance(value: Array, truth: Array, selected: Bools | None) -> float:
    """The largest absolute difference over what is selected; NaN if there is a NaN."""
    with np.errstate(invalid="ignore"):  # the difference of two infinities is NaN, and that is what is returned
        difference = np.subtract(value, truth, dtype=np.float64)
    np.abs(difference, out=difference)
    return float(difference.max(initial=0.0, where=True if selected is None else selected))


def _repeated(config: ModelConfig, rows: int, length: int, generator: np.random.Generator) -> Batch:
    one = random_batch(config, [1] * rows, generator)
    if config.kind == "encoder_decoder":
        sources = one.source.repeat(length, axis=1)
        targets = one.target[:, :1].repeat(min(length, config.target_max_length), axis=1)
        return pair(config, sources, targets, np.ones(sources.shape, np.bool_), np.ones(targets.shape, np.bool_))
    if config.kind == "attention":
        query, key, value = (part[:, :1].repeat(length, axis=1) for part in (one.query, one.source, one.value))
        return attention(config, query[:, : config.target_max_length], key, value)
    return batch(config, one.source.repeat(length, axis=1))


def _rounded(inputs: Batch, dtype: str) -> Batch:
    if dtype == "float64" or inputs.source.dtype.kind != "f":
        return inputs
    vectors = ("source", "query", "value", "bias")
    fitting = in_range({name: getattr(inputs, name) for name in vectors}, dtype)
    return replace(inputs, **{name: representable(array, dtype) for name, array in fitting.items()})
