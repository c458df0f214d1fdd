"""What the gradients of a loss are, and how far a correct implementation may be off.

The reference has no backward pass, but its derivative along a direction, by the complex step, is exact to rounding. So
the float64 gradients of a framework become the truth once they agree with it along random directions, in which every
tensor weighs alike. The noise of float32: how far those gradients move when weights and values are off by up to an ulp.
"""

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from ..arrays import Array
from ..checkpoint import Checkpoint
from ..dropouts import draw_dropout_masks
from ..inputs import Batch
from .budgets import NOISE_RUNS, UNIT_ROUNDOFF, budget, noise_in

# Loss and gradients of a checkpoint in float64, on a batch, where values are multiplied with masks.
Derive = Callable[[Checkpoint, Batch, Mapping[str, Array]], tuple[float, Mapping[str, Array]]]

DIRECTIONS = 8
LOSS = "loss"
GRADIENTS = "gradients."
ULP = 2.0**-23  # of float32, at 1

# Both ways to a derivative are sums of rounded products, and each term errs by some units of what flowed into it. They
# were seen to differ by 30 units of the sum of the terms.
_UNITS = 1024


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
    """What ``derive`` says, which has to agree with the reference (``disagreement``), and what a little noise does."""
    config = dataclasses.replace(checkpoint.config, **dict.fromkeys(_rates(checkpoint), 0.5))
    values = named(*derive(checkpoint, batch, {}))
    noise = dict.fromkeys(values, 0.0)
    for run in range(NOISE_RUNS):
        generator = np.random.default_rng([seed, run])
        moved = Checkpoint(config, {name: _moved(tensor, generator) for name, tensor in checkpoint.tensors.items()})
        # What could be dropped is multiplied with a mask: so it can be moved by one too, in every framework.
        shapes = draw_dropout_masks(config, batch, generator)
        masks = {name: _moved(np.ones(mask.shape), generator) for name, mask in shapes.items()}
        for name, value in named(*derive(moved, batch, masks)).items():
            noise[name] = max(noise[name], float(np.abs(value - values[name]).max(initial=0.0)))
    noise[LOSS] = max(noise[LOSS], _noise_of_mean(float(values[LOSS]), batch))
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
    generator = np.random.default_rng(seed)
    lengths = {name: float(np.linalg.norm(gradient)) for name, gradient in gradients.items()}
    # One that is zero in theory must not become as long as the others.
    shortest = max(lengths.values()) / 1000 or 1.0
    worst = abs(loss - exact) / (_UNITS * UNIT_ROUNDOFF["float64"] * abs(exact))
    for _ in range(DIRECTIONS):
        direction = {
            name: generator.choice([-1.0, 1.0], gradient.shape) / max(lengths[name], shortest)
            for name, gradient in gradients.items()
        }
        expected = derivative(direction)
        found = sum(float((gradient * direction[name]).sum()) for name, gradient in gradients.items())
        scale = sum(float(np.abs(gradient * direction[name]).sum()) for name, gradient in gradients.items())
        error = abs(found - expected) / (_UNITS * UNIT_ROUNDOFF["float64"] * (scale + abs(exact) / 1000))
        worst = float(np.maximum(worst, error))  # NaN if there is a NaN
    return worst


def _noise_of_mean(mean: float, batch: Batch) -> float:
    """What adding up the terms of a loss, one after the other, is off by in float32.

    The n-th partial sum of like terms, n/N of the whole, is rounded by u/sqrt(3) of itself in the quadratic mean; the N
    independent errors add up to sqrt(N)/3 u of the whole. The values of the terms are no part of that.
    """
    terms = batch.teacher[batch.valid].size if batch.teacher.size else int((batch.labels >= 0).sum())
    return mean * UNIT_ROUNDOFF["float32"] * terms**0.5 / 3


def named(loss: float, gradients: Mapping[str, Array]) -> dict[str, Array]:
    """Both under the names by which they are judged."""
    return {LOSS: np.asarray(loss), **{GRADIENTS + name: np.asarray(value) for name, value in gradients.items()}}


def _moved(array: Array, generator: np.random.Generator) -> Array:
    return array.astype(np.float64) * (1 + generator.uniform(-ULP, ULP, array.shape))


def _rates(checkpoint: Checkpoint) -> list[str]:
    """The fields of a configuration that say how much is dropped."""
    return [field.name for field in dataclasses.fields(checkpoint.config) if field.name.endswith("_dropout")]
