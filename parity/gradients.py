"""What the gradients of a loss are, and how far a correct implementation may be off.

The reference has no backward pass, but its derivative along a direction, by the complex step, is exact to rounding. So
the float64 gradients of a framework become the truth once they agree with it along random directions, in which every
tensor weighs alike. Its float32 gradients, with weights moved by up to an ulp each time, are the noise around it: if
they are where float64 gradients go when weights and values are off by an ulp, or not much further.
"""

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from triglot.shared.arrays import Array
from triglot.shared.checkpoint import Checkpoint
from triglot.shared.inputs.validation import Batch
from triglot.shared.training.dropout_masks import draw_dropout_masks

from .budgets import (
    DERIVATIVE_UNITS,
    EXPLAINED,
    NOISE_RUNS,
    UNIT_ROUNDOFF,
    budget,
    noise_in,
    noise_of_mean,
)

# Loss and gradients of a checkpoint, on a batch, where values are multiplied with masks, in a dtype.
Derive = Callable[[Checkpoint, Batch, Mapping[str, Array], str], tuple[float, Mapping[str, Array]]]

DIRECTIONS = 8
LOSS = "loss"
GRADIENTS = "gradients."
ULP = 2.0**-23  # of float32, at 1


class NoiseError(Exception):
    """Float32 gradients are no measure of noise: they are wrong."""


@dataclass(frozen=True)
class Truth:
    """The loss and, under ``gradients.NAME``, the gradients in float64, and the float32 noise of each."""

    values: Mapping[str, Array]
    noise: Mapping[str, float]

    def budget(self, name: str, dtype: str) -> float:
        """The largest accepted error of a value."""
        # A key bias moves all scores of a query alike, so its gradient is zero in theory, and its rounding error that
        # of what flows through its neighbour.
        neighbour = name.replace(".key.bias", ".query.bias")
        if neighbour not in self.values:
            neighbour = name
        noise = max(self.noise[name], self.noise[neighbour])
        return budget(noise_in(dtype, noise), float(np.abs(self.values[neighbour]).max()), dtype)


def truth(checkpoint: Checkpoint, batch: Batch, derive: Derive, seed: int = 0) -> Truth:
    """What ``derive`` says in float64, which has to agree with the reference (``disagreement``), and its float32 noise.

    Raises:
        NoiseError: the float32 gradients are further off than rounding explains.
    """
    values = named(*derive(checkpoint, batch, {}, "float64"))

    def distances(weights: Checkpoint, masks: Mapping[str, Array], dtype: str) -> dict[str, float]:
        found = named(*derive(weights, batch, masks, dtype))
        return {name: float(np.abs(value - values[name]).max(initial=0.0)) for name, value in found.items()}

    # What could be dropped is multiplied with a mask, forward and backward: so it can be moved by one too, in every
    # framework. What a sum of the backward pass loses that is zero in theory, as that over a softmax, is not seen so:
    # float32 was seen at 9 times this noise there, and at twice elsewhere.
    config = dataclasses.replace(checkpoint.config, **dict.fromkeys(_rates(checkpoint), 0.5))
    generator = np.random.default_rng(seed)
    drawn = draw_dropout_masks(config, batch, generator).items()
    masks = {name: _moved(np.ones(mask.shape), generator) for name, mask in drawn}
    moved = {name: _moved(tensor, generator) for name, tensor in checkpoint.tensors.items()}
    explained = Truth(values, distances(Checkpoint(config, moved), masks, "float64"))

    noise = dict.fromkeys(values, 0.0)
    for _ in range(NOISE_RUNS):
        moved = {name: _moved(tensor, generator).astype(np.float32) for name, tensor in checkpoint.tensors.items()}
        for name, distance in distances(Checkpoint(checkpoint.config, moved), {}, "float32").items():
            noise[name] = float(np.maximum(noise[name], distance))  # NaN if there is a NaN
    for name, distance in noise.items():
        if not distance <= EXPLAINED * explained.budget(name, "float32"):
            raise NoiseError(f"in float32, {name} is {distance:.3g} off, which rounding does not explain")
    terms = batch.teacher[batch.valid].size if batch.teacher.size else int((batch.labels >= 0).sum())
    noise[LOSS] = max(noise[LOSS], noise_of_mean(float(values[LOSS]), terms))
    return Truth(values, noise)


def disagreement(
    loss: float,
    gradients: Mapping[str, Array],
    exact: float,
    derivative: Callable[[Mapping[str, Array]], float],
    seed: int = 0,
) -> float:
    """How far a float64 loss and its gradients are from those of the reference, in units of what both may err by.

    ``exact``: the loss of the reference; ``derivative``: its derivative along a direction. Up to 1 is agreement; NaN is
    none.
    """
    if not all(np.isfinite(gradient).all() for gradient in gradients.values()):
        return float("inf")
    generator = np.random.default_rng(seed)
    lengths = {name: float(np.linalg.norm(gradient)) for name, gradient in gradients.items()}
    # One that is zero in theory must not become as long as the others.
    shortest = max(lengths.values()) / 1000 or 1.0
    worst = abs(loss - exact) / (DERIVATIVE_UNITS * UNIT_ROUNDOFF["float64"] * abs(exact))
    for _ in range(DIRECTIONS):
        direction = {
            name: generator.choice([-1.0, 1.0], gradient.shape) / max(lengths[name], shortest)
            for name, gradient in gradients.items()
        }
        expected = derivative(direction)
        found = sum(float((gradient * direction[name]).sum()) for name, gradient in gradients.items())
        scale = sum(float(np.abs(gradient * direction[name]).sum()) for name, gradient in gradients.items())
        error = abs(found - expected) / (DERIVATIVE_UNITS * UNIT_ROUNDOFF["float64"] * (scale + abs(exact) / 1000))
        worst = float(np.maximum(worst, error))  # NaN if there is a NaN
    return worst


def named(loss: float, gradients: Mapping[str, Array]) -> dict[str, Array]:
    """Both under the names by which they are judged."""
    return {LOSS: np.asarray(loss), **{GRADIENTS + name: np.asarray(value) for name, value in gradients.items()}}


def _moved(array: Array, generator: np.random.Generator) -> Array:
    return array.astype(np.float64) * (1 + generator.uniform(-ULP, ULP, array.shape))


def _rates(checkpoint: Checkpoint) -> list[str]:
    """The fields of a configuration that say how much is dropped."""
    return [field.name for field in dataclasses.fields(checkpoint.config) if field.name.endswith("_dropout")]
