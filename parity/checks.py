"""What the harness runs: the checks, and what an implementation returns in one of them.

``end_to_end``      the whole model on the given inputs; every named value is the model's own
``local``           each step of these runs again, judged on what it really received (see ``judge.py``)
``normal``, ``low_variance``, ``large``, ``offset``, ``masking``
                    each step receives fresh values (``probes.py``)
``length_one``, ``left_padding``, ...
                    the whole model on unusual inputs (``unusual.py``)
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
    fit_dtype,
    random_batch,
)
from triglot.shared.model import masks
from triglot.shared.model.config import ModelConfig
from triglot.shared.model.schema import named_values, parameters

from . import probes, unusual
from .revealing import Revealing, offset, quiet_scale

MASKS = "masks"
API = "api"
WORKER = "worker"  # not a check: the row of a framework that died or could not be built
END_TO_END = "end_to_end"
LOCAL = "local"
LOCAL_CHECKS = (LOCAL, *probes.KINDS)
QUIET, EXTREME = "quiet", "extreme"
CHECKS = (MASKS, API, END_TO_END, *LOCAL_CHECKS, *unusual.NAMES, QUIET, EXTREME)
LENGTHS = (24, 11, 1, 17)  # of the rows of most batches

ENCODE = f"{API}.encode"
FORWARD = f"{API}.forward"
ATTEND = f"{API}.attend"
AVERAGED_WEIGHTS = f"{API}.attend.weights"
CHANGED_WEIGHTS = f"{API}.weights"  # the number of tensors that differ from the checkpoint's

Weights = Literal["given", "perturbed"] | Revealing


@dataclass(frozen=True)
class Check:
    """One run of a model: on which weights, on which batch, and which values replace its own.

    ``weights``: "given", "perturbed" so that no norm and no bias is the identity, or "loud", "quiet" and "extreme"
    (``revealing.py``). ``values``: None for the model's own, or a kind of fresh values. ``methods``: also call the
    public methods. ``steps``: also judge each step on what it really received.
    """

    name: str
    batch: Batch
    weights: Weights
    values: probes.Kind | None = None
    methods: bool = False
    steps: bool = False


def plan(config: ModelConfig, shallow: ModelConfig, batches: Sequence[Batch], seed: int, dtype: str) -> list[Check]:
    """Return every check for a model of ``config`` in ``dtype``. ``batches`` are the inputs of the end-to-end check.

    ``shallow``: the configuration of the revealing weights. Embedded inputs are rounded to ``dtype``, as the weights
    are. Most batches have the same shape, because some frameworks compile their programs anew for every shape.
    """
    generator = np.random.default_rng([seed, 1])
    lengths = [min(config.source_max_length, length) for length in LENGTHS]
    checks = [Check(END_TO_END, batch, "given") for batch in batches]
    checks[0] = replace(checks[0], methods=True, steps=True)
    checks += [
        Check(kind, probes.batch(kind, config, lengths, generator, dtype), "perturbed", kind) for kind in probes.KINDS
    ]
    for name in unusual.NAMES:
        # The ends of a vocabulary are those of the real table.
        of_given = name == "edge_ids" and config.source_vocabulary
        batch = unusual.unusual_batch(name, config if of_given else shallow, lengths, generator)
        short = name != "maximum_length"  # it would take as long as all others together
        checks.append(Check(name, batch, "given" if of_given else "loud", methods=True, steps=short))
    if any(parameter.role == "scale" for parameter in parameters(config).values()):
        quiet = unusual.scaled(random_batch(shallow, lengths, generator), quiet_scale(config, dtype))
        checks.append(Check(QUIET, quiet, "quiet", methods=True, steps=True))
    extreme = unusual.shifted(random_batch(shallow, lengths, generator), offset(config, dtype))
    checks.append(Check(EXTREME, extreme, "extreme", methods=True))
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


def run(
    model: Model, checkpoint: Checkpoint, inputs: Batch, replaced: Mapping[str, Array], *, methods: bool
) -> dict[str, Array]:
    """Return what an implementation returns in a check.

    That is every named value, and its masks as ``masks.<name>``. With ``methods``, it is also what its public methods
    return, as ``api.<name>``.
    """
    results = dict(model.trace(inputs, replaced))
    results.update({f"{MASKS}.{name}": mask for name, mask in model.masks(inputs.valid).items()})
    if isinstance(inputs, PairBatch):
        results.update({f"{MASKS}.target_{name}": mask for name, mask in model.masks(inputs.target_valid).items()})
    if methods:
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


def _rounded(inputs: Batch, dtype: str) -> Batch:
    """Return the batch with its vectors rounded to ``dtype``."""
    vectors = {name: array for name, array in inputs.arrays().items() if array.dtype.kind == "f"}
    if dtype == "float64" or not vectors:
        return inputs
    return replace(inputs, **{name: representable(array, dtype) for name, array in fit_dtype(vectors, dtype).items()})
