"""What the harness runs: the checks, and what an implementation returns in one of them.

``end_to_end``      the whole model on the given inputs; every named value is the model's own
``local``           the same inputs, but each step receives the truth of the step before it, so it shows its own error
``normal``, ``low_variance``, ``large``, ``offset``, ``masking``
                    each step receives fresh values (``probes.py``)
``length_one``, ``maximum_length``, ``repeated_tokens``
                    the whole model on inputs of that kind
``masks``           the masks that each framework builds, bit for bit
``api``             what ``encode``, ``heads``, ``forward`` and ``attend`` return, and the weights, bit for bit
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from triglot.impls.model import Model
from triglot.shared.arrays import Array, Bools, representable
from triglot.shared.checkpoint import Checkpoint
from triglot.shared.inputs import (
    AttentionBatch,
    Batch,
    EncoderBatch,
    PairBatch,
    attention_batch,
    encoder_batch,
    fit_dtype,
    pair_batch,
    random_batch,
)
from triglot.shared.model import masks
from triglot.shared.model.config import ModelConfig
from triglot.shared.model.schema import named_values

from . import probes

MASKS = "masks"
API = "api"
WORKER = "worker"  # not a check: the row of a framework that died or could not be built
END_TO_END = "end_to_end"
LOCAL = "local"
LOCAL_CHECKS = (LOCAL, *probes.KINDS)
UNUSUAL_INPUTS = ("length_one", "maximum_length", "repeated_tokens")
CHECKS = (MASKS, API, END_TO_END, *LOCAL_CHECKS, *UNUSUAL_INPUTS)

ENCODE = f"{API}.encode"
FORWARD = f"{API}.forward"
ATTEND = f"{API}.attend"
AVERAGED_WEIGHTS = f"{API}.attend.weights"
CHANGED_WEIGHTS = f"{API}.weights"  # the number of tensors that differ from the checkpoint's

Weights = Literal["given", "perturbed"]


@dataclass(frozen=True)
class Check:
    """One run of a model: on which weights, on which batch, and which values replace its own.

    ``weights``: "given", or "perturbed" so that no norm and no bias is the identity. ``values``: None for the model's
    own, "truth" for those of the reference, or a kind of fresh values.
    """

    name: str
    batch: Batch
    weights: Weights
    values: Literal["truth"] | probes.Kind | None = None


def plan(config: ModelConfig, batches: Sequence[Batch], seed: int, dtype: str) -> list[Check]:
    """Return every check for a model of ``config`` in ``dtype``. ``batches`` are the inputs of the end-to-end check.

    Embedded inputs are rounded to ``dtype``, as the weights are.
    """
    generator = np.random.default_rng([seed, 1])
    longest = config.source_max_length
    lengths = [min(longest, length) for length in (24, 11, 1, 17)]
    checks = [Check(END_TO_END, inputs, "given") for inputs in batches]
    checks += [Check(LOCAL, inputs, "given", "truth") for inputs in batches]
    checks += [
        Check(kind, probes.batch(kind, config, lengths, generator, dtype), "perturbed", kind) for kind in probes.KINDS
    ]
    unusual = (
        random_batch(config, [1, 1], generator),
        random_batch(config, [longest], generator),
        _repeated(config, len(lengths), max(lengths), generator),
    )
    checks += [Check(name, inputs, "perturbed") for name, inputs in zip(UNUSUAL_INPUTS, unusual, strict=True)]
    return [replace(check, batch=_rounded(check.batch, dtype)) for check in checks]


def judged_tokens(name: str, check: Check, config: ModelConfig) -> Bools | None:
    """Return where the named value is judged: at real tokens, as a mask that broadcasts to it. None: everywhere.

    A step that receives fresh values is judged at padding too, because its inputs are defined there.
    """
    if check.values in probes.KINDS:
        return None
    valid = check.batch.real_tokens()
    selected: Bools | None = None
    axes = named_values(config)[name].axes
    for axis, meaning in enumerate(axes):
        if meaning in valid:
            shape = [1] * len(axes)
            shape[axes.index("batch")], shape[axis] = valid[meaning].shape
            tokens = valid[meaning].reshape(shape)
            selected = tokens if selected is None else selected & tokens
    return selected


def run(model: Model, checkpoint: Checkpoint, inputs: Batch, replaced: Mapping[str, Array]) -> dict[str, Array]:
    """Return what an implementation returns in a check.

    That is every named value, and its masks as ``masks.<name>``. Where its own values flow, it is also what its public
    methods return, as ``api.<name>``.
    """
    results = dict(model.trace(inputs, replaced))
    results.update({f"{MASKS}.{name}": mask for name, mask in model.masks(inputs.valid).items()})
    if isinstance(inputs, PairBatch):
        results.update({f"{MASKS}.target_{name}": mask for name, mask in model.masks(inputs.target_valid).items()})
    if not replaced:
        results |= _call_methods(model, inputs)
        results[CHANGED_WEIGHTS] = _count_changed(model.weights(), checkpoint.tensors)
    return results


def expected_masks(inputs: Batch) -> dict[str, Array]:
    """Return the canonical masks of a batch as ``masks.<name>``."""
    expected = {f"{MASKS}.{name}": mask for name, mask in masks.all_masks(inputs.valid).items()}
    if isinstance(inputs, PairBatch):
        expected |= {f"{MASKS}.target_{name}": mask for name, mask in masks.all_masks(inputs.target_valid).items()}
    return expected


def _call_methods(model: Model, inputs: Batch) -> dict[str, Array]:
    if isinstance(inputs, AttentionBatch):
        vectors = (inputs.query, inputs.key, inputs.value)
        output, averaged = model.attend(*vectors, inputs.allowed, inputs.valid, inputs.bias)
        return {ATTEND: output, AVERAGED_WEIGHTS: averaged}
    if isinstance(inputs, PairBatch):
        scores = model.forward(inputs.source, inputs.target, inputs.valid, inputs.target_valid)
        return {ENCODE: model.encode(inputs.source, inputs.valid), FORWARD: scores}
    assert isinstance(inputs, EncoderBatch)
    arguments = inputs.source, inputs.valid, inputs.segment_ids, inputs.task_ids
    heads = {f"{API}.heads.{name}": value for name, value in model.heads(*arguments).items()}
    return {ENCODE: model.encode(*arguments), **heads}


def _count_changed(weights: Mapping[str, Array], tensors: Mapping[str, Array]) -> Array:
    names = weights.keys() | tensors.keys()
    return np.array(sum(not np.array_equal(weights.get(name, ()), tensors.get(name, ())) for name in names))


def _repeated(config: ModelConfig, rows: int, length: int, generator: np.random.Generator) -> Batch:
    """Return rows that repeat one token each."""
    one = random_batch(config, [1] * rows, generator)
    if isinstance(one, PairBatch):
        sources = one.source.repeat(length, axis=1)
        targets = one.target[:, :1].repeat(min(length, config.target_max_length), axis=1)
        return pair_batch(config, sources, targets, np.ones(sources.shape, np.bool_), np.ones(targets.shape, np.bool_))
    if isinstance(one, AttentionBatch):
        query, key, value = (part[:, :1].repeat(length, axis=1) for part in (one.query, one.key, one.value))
        return attention_batch(config, query[:, : config.target_max_length], key, value)
    assert isinstance(one, EncoderBatch)
    return encoder_batch(config, one.source.repeat(length, axis=1))


def _rounded(inputs: Batch, dtype: str) -> Batch:
    """Return the batch with its vectors rounded to ``dtype``."""
    vectors = {name: array for name, array in inputs.arrays().items() if array.dtype.kind == "f"}
    if dtype == "float64" or not vectors:
        return inputs
    return replace(inputs, **{name: representable(array, dtype) for name, array in fit_dtype(vectors, dtype).items()})
