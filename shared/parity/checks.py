"""What is run to compare implementations, and what a correct one gives.

``end_to_end``      the whole model on the inputs given; every named value, as it comes
``local``           the same, each step fed with the truth of the step before: the error that it makes alone
``normal``, ``low_variance``, ``large``
                    each step fed with fresh values (``probes.py``)
``length_one``, ``maximum_length``, ``repeated_tokens``
                    the whole model on inputs of that kind
``masks``           the masks that each framework builds, bit for bit
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from .. import masks
from ..activations import activations
from ..arrays import Array, Bools
from ..config import ModelConfig
from ..inputs import Batch, batch, random_batch
from ..protocol import Model, Reference
from . import probes
from .budgets import NOISE_RUNS

MASKS = "masks"
WORKER = "worker"  # no check: the row of a framework that died or could not be built
END_TO_END = "end_to_end"
LOCAL = "local"
LOCAL_CHECKS = (LOCAL, *probes.KINDS)
CHECKS = (MASKS, END_TO_END, *LOCAL_CHECKS, "length_one", "maximum_length", "repeated_tokens")

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
    """What a correct implementation gives in a check: the float64 truth, and the float32 noise around it."""

    truth: Mapping[str, Array]
    noise: Mapping[str, float]


def plan(config: ModelConfig, batches: Sequence[Batch], seed: int) -> list[Check]:
    """Every check for a model of ``config``; ``batches`` are the inputs of the end-to-end check."""
    generator = np.random.default_rng([seed, 1])
    longest = config.source_max_length
    mixed = random_batch(config, [min(longest, length) for length in (24, 11, 1, 17)], generator)
    checks = [Check(END_TO_END, inputs, "given") for inputs in batches]
    checks += [Check(LOCAL, inputs, "given", "truth") for inputs in batches]
    checks += [Check(kind, mixed, "perturbed", kind) for kind in probes.KINDS]
    checks.append(Check("length_one", random_batch(config, [1, 1], generator), "perturbed"))
    checks.append(Check("maximum_length", random_batch(config, [longest], generator), "perturbed"))
    checks.append(Check("repeated_tokens", _repeated(config, mixed.valid.shape, generator), "perturbed"))
    return checks


def replacements(check: Check, reference: Reference, config: ModelConfig, seed: int) -> Mapping[str, Array]:
    """What is put in place of the named values in a check, float32; nothing where the model's own values flow."""
    if check.values is None:
        return {}
    truth = reference.truth(check.batch, {})
    if check.values == "truth":
        return {name: value.astype(np.float32) for name, value in truth.items()}
    return probes.replacements(check.values, activations(config), truth, seed)


def expect(check: Check, replaced: Mapping[str, Array], reference: Reference, config: ModelConfig) -> Expectation:
    """Run the reference: once in float64, and ``NOISE_RUNS`` times in float32 with its sums in other orders."""
    truth = reference.truth(check.batch, replaced)
    noise = dict.fromkeys(truth, 0.0)
    for run in range(NOISE_RUNS):
        for name, value in reference.rounded(check.batch, replaced, seed=run).items():
            noise[name] = max(noise[name], distance(value, truth[name], real(name, check.batch, config)))
    return Expectation(truth, noise)


def run(model: Model, inputs: Batch, replaced: Mapping[str, Array]) -> dict[str, Array]:
    """What an implementation gives in a check: every named value, and its masks as ``masks.<name>``."""
    results = dict(model.trace(inputs, replaced))
    results.update({f"{MASKS}.{name}": mask for name, mask in model.masks(inputs.valid).items()})
    return results


def expected_masks(inputs: Batch) -> dict[str, Array]:
    """The canonical masks as ``masks.<name>``."""
    return {f"{MASKS}.{name}": mask for name, mask in masks.all_masks(inputs.valid).items()}


def real(name: str, inputs: Batch, config: ModelConfig) -> Bools | None:
    """Where the named value belongs to real tokens: bool, broadcastable to the value; None: everywhere."""
    selected: Bools | None = None
    axes = activations(config)[name].axes
    for axis, meaning in enumerate(axes):
        if meaning in ("target", "source"):
            shape = [1] * len(axes)
            shape[axes.index("batch")], shape[axis] = inputs.valid.shape
            tokens = inputs.valid.reshape(shape)
            selected = tokens if selected is None else selected & tokens
    return selected


def distance(value: Array, truth: Array, selected: Bools | None) -> float:
    """The largest absolute difference over what is selected; NaN if there is a NaN."""
    with np.errstate(invalid="ignore"):  # the difference of two infinities is NaN, and that is what is returned
        difference = np.subtract(value, truth, dtype=np.float64)
    np.abs(difference, out=difference)
    return float(difference.max(initial=0.0, where=True if selected is None else selected))


def _repeated(config: ModelConfig, shape: tuple[int, ...], generator: np.random.Generator) -> Batch:
    rows, length = shape
    one = random_batch(config, [1] * rows, generator)
    return batch(config, one.source.repeat(length, axis=1))
