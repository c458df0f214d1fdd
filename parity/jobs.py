"""What a framework does in a check: it runs a model of some weights on a batch, and returns named arrays.

``values``             every named value of a forward pass, and the masks
``values and methods`` the same, what the public methods return, and how many weights differ from the checkpoint's
``methods``            what the public methods return, called between other calls
``gradients``          the loss and its gradients, in the dtype under test and in float64, and their noise
``training``           the same with dropout; what a step of Adam does, at first, when training resumes, and once more;
                       and what the public methods return after that
``generation``         ids, decoded with a key-value cache and without one, and those of a sentence decoded alone
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np

from triglot.impls.model import Model
from triglot.shared.arrays import Array
from triglot.shared.checkpoint import Checkpoint
from triglot.shared.inputs import AttentionBatch, Batch, EncoderBatch, PairBatch

from . import gradients
from .adam import PLAN, drawn_moments
from .output_names import (
    ALONE,
    API,
    ATTEND,
    AVERAGED_WEIGHTS,
    CACHED,
    CHANGED_WEIGHTS,
    CONTINUED,
    ENCODE,
    FIRST_MOMENTS,
    FORWARD,
    FRESH,
    MASKS,
    NOISE,
    RECOMPUTED,
    RESUMED,
    SECOND_MOMENTS,
    TRAINED,
    TRUE,
    WEIGHTS,
    name_gradients,
)
from .revealing import Weights

Kind = Literal["values", "values and methods", "methods", "gradients", "training", "generation"]
Results = Mapping[str, Array]

# Makes a model of a checkpoint in a dtype and a mode.
Build = Callable[[Checkpoint, str, str], Model]


@dataclass(frozen=True)
class Job:
    """What to do, on which weights (see ``checks.py``) and which batch.

    ``arrays``: values that replace the model's own, or dropout masks.
    """

    kind: Kind
    weights: Weights
    batch: Batch
    arrays: Mapping[str, Array] = field(default_factory=dict[str, Array])


class Runner:
    """Does jobs in one framework, in one dtype and mode. Models are kept from job to job."""

    def __init__(self, build: Build, dtype: str, mode: str) -> None:
        self._build = build
        self._dtype, self._mode = dtype, mode
        self._models: dict[int, tuple[Checkpoint, Model]] = {}

    def model(self, checkpoint: Checkpoint) -> Model:
        """Return the model of a checkpoint."""
        if id(checkpoint) not in self._models:
            # Keep a reference to the checkpoint, so that no other one gets its id.
            self._models[id(checkpoint)] = checkpoint, self._build(checkpoint, self._dtype, self._mode)
        return self._models[id(checkpoint)][1]

    def run(self, kind: Kind, checkpoint: Checkpoint, batch: Batch, arrays: Mapping[str, Array]) -> dict[str, Array]:
        """Return what the framework computes in a job."""
        if kind == "gradients":
            return self._differentiate(checkpoint, batch, arrays)
        if kind == "training":
            return self._differentiate(checkpoint, batch, arrays) | self._train(checkpoint, batch, arrays)
        model = self.model(checkpoint)
        if kind == "generation":
            assert isinstance(batch, PairBatch)
            return generate(model, batch)
        if kind == "methods":
            return call_methods_in_turns(model, batch)
        results = trace(model, batch, arrays)
        if kind == "values and methods":
            results |= call_methods(model, batch)
            results[CHANGED_WEIGHTS] = _count_changed(model.weights(), checkpoint.tensors)
        return results

    def _differentiate(self, checkpoint: Checkpoint, batch: Batch, masks: Mapping[str, Array]) -> dict[str, Array]:
        """Return loss and gradients, with their float64 truth under "true" and their noise under "noise"."""

        def derive(
            weights: Checkpoint, batch: Batch, masks: Mapping[str, Array], dtype: str
        ) -> tuple[float, dict[str, Array]]:
            return self._build(weights, dtype, "eager").loss_and_gradients(batch, masks)

        truth = gradients.measure(checkpoint, batch, derive, masks).truth()
        model = self._build(checkpoint, self._dtype, self._mode)
        model.loss_and_gradients(batch, masks)  # called twice: the first call must not affect the second
        return {
            **name_gradients(*model.loss_and_gradients(batch, masks)),
            **{TRUE + name: value for name, value in truth.values.items()},
            **{NOISE + name: np.asarray(noise) for name, noise in truth.noise.items()},
        }

    def _train(self, checkpoint: Checkpoint, batch: Batch, masks: Mapping[str, Array]) -> dict[str, Array]:
        """Return the moments and the weights after one step: the first of all, one that resumes, and the one after it.

        The last one comes with the gradients of a new model that has the weights before it, and with the results of the
        public methods after it.
        """
        fresh = self._build(checkpoint, self._dtype, self._mode)
        fresh.begin_training(PLAN)
        results = step(fresh, batch, masks, FRESH)
        resumed = self._build(checkpoint, self._dtype, self._mode)
        resumed.begin_training(PLAN, drawn_moments(checkpoint.config))
        results |= step(resumed, batch, masks, RESUMED)
        weights = {name: np.array(tensor) for name, tensor in resumed.weights().items()}
        if not all(np.isfinite(tensor).all() for tensor in weights.values()):
            return results  # no model can be made of them
        same = self._build(Checkpoint(checkpoint.config, weights), self._dtype, self._mode)
        gradients = name_gradients(*same.loss_and_gradients(batch, masks))
        results |= {f"{CONTINUED}{name}": gradient for name, gradient in gradients.items()}
        results |= step(resumed, batch, masks, CONTINUED)
        methods = call_methods(resumed, batch).items()
        return results | {f"{TRAINED}{name.removeprefix(f'{API}.')}": value for name, value in methods}


def step(model: Model, batch: Batch, masks: Mapping[str, Array], run: str) -> dict[str, Array]:
    """Train a model by one step, and return its moments and weights, under names that begin with ``run``."""
    model.training_step(batch, masks)
    after = model.moments()
    parts = {FIRST_MOMENTS: after.first, SECOND_MOMENTS: after.second, WEIGHTS: model.weights()}
    return {
        f"{run}{part}{name}": np.array(tensor) for part, tensors in parts.items() for name, tensor in tensors.items()
    }


def trace(model: Model, batch: Batch, replaced: Mapping[str, Array]) -> dict[str, Array]:
    """Return every named value, and the masks that the framework builds as ``masks.<name>``."""
    results = dict(model.trace(batch, replaced))
    results.update({f"{MASKS}.{name}": mask for name, mask in model.masks(batch.valid).items()})
    if isinstance(batch, PairBatch):
        results.update({f"{MASKS}.target_{name}": mask for name, mask in model.masks(batch.target_valid).items()})
    return results


def call_methods(model: Model, batch: Batch) -> dict[str, Array]:
    """Return what the public methods return, as ``api.<name>``."""
    if isinstance(batch, AttentionBatch):
        output, averaged = model.attend(batch.query, batch.key, batch.value, batch.allowed, batch.valid, batch.bias)
        return {ATTEND: output, AVERAGED_WEIGHTS: averaged}
    if isinstance(batch, PairBatch):
        scores = model.forward(batch.source, batch.target, batch.valid, batch.target_valid)
        return {ENCODE: model.encode(batch.source, batch.valid), FORWARD: scores}
    assert isinstance(batch, EncoderBatch)
    arguments = batch.source, batch.valid, batch.segment_ids, batch.task_ids
    heads = {f"{API}.heads.{name}": value for name, value in model.heads(*arguments).items()}
    return {ENCODE: model.encode(*arguments), **heads}


def call_methods_in_turns(model: Model, batch: Batch) -> dict[str, Array]:
    """Return what the public methods return, called between other calls with inputs of the same shapes.

    Nothing may be kept from the call before, in which the same tokens have other segments, tasks, targets or values.
    Nor may the call after it, with the rows in another order, change its results.
    """
    arrays = batch.arrays()
    rolled = {"segment_ids": batch.config.segments, "task_ids": batch.config.tasks}
    rolled["target"] = batch.config.target_vocabulary
    before = {name: (arrays[name] + 1) % count for name, count in rolled.items() if name in arrays and count}
    before |= {name: -arrays[name] for name in ("value", "target") if name in arrays and name not in before}
    call_methods(model, replace(batch, **before))
    results = call_methods(model, batch)
    call_methods(model, replace(batch, **{name: np.ascontiguousarray(array[::-1]) for name, array in arrays.items()}))
    return results


def generate(model: Model, batch: PairBatch) -> dict[str, Array]:
    """Return the ids that the model generates, as many as the targets have, decoded in both ways.

    Other sources of the same shape are decoded first, to show state that is left from them. In ``ALONE``, the longest
    sentence was decoded by itself, and the others together.
    """
    length = batch.target.shape[1]
    model.generate(np.ascontiguousarray(batch.source[::-1]), length, cached=True)
    cached = model.generate(batch.source, length, cached=True)
    longest = int((cached != batch.config.pad_id).sum(axis=1).argmax())
    alone = np.array(cached)
    alone[longest : longest + 1] = model.generate(batch.source[longest : longest + 1], length, cached=True)
    return {
        CACHED: cached,
        RECOMPUTED: model.generate(batch.source, length, cached=False),
        ALONE: alone,
    }


def _count_changed(weights: Mapping[str, Array], tensors: Mapping[str, Array]) -> Array:
    names = weights.keys() | tensors.keys()
    return np.array(sum(not np.array_equal(weights.get(name, ()), tensors.get(name, ())) for name in names))
