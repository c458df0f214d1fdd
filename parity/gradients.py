"""The truth of gradients, and how far a correct implementation may be from it.

The reference has no backward pass. But its derivative along a direction, by the complex step, is exact to rounding. So
a framework's float64 gradients become the truth once they agree with that derivative along random directions in which
every tensor has the same weight. The noise is how far the framework's float32 gradients are from this truth when each
weight moves by up to one unit in the last place. They count as noise only if rounding explains them: if float64
gradients move about as far when weights and values move by that much.
"""

import dataclasses
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass

import numpy as np

from triglot.impls.numpy_reference import training
from triglot.shared.arrays import Array
from triglot.shared.checkpoint import Checkpoint
from triglot.shared.inputs import Batch, EncoderBatch, PairBatch
from triglot.shared.model.config import DROPOUT_RATES
from triglot.shared.training.dropout_masks import draw_dropout_masks

from .budgets import DERIVATIVE_UNITS, EXPLAINED, LEAST_GRADIENT, UNIT_ROUNDOFF, budget, noise_in, noise_of_mean
from .output_names import LOSS, name_gradients
from .truth import Reference, distance, measure_noise

# Returns loss and gradients: of a checkpoint, on a batch, with these dropout masks, in a dtype.
Derive = Callable[[Checkpoint, Batch, Mapping[str, Array], str], tuple[float, Mapping[str, Array]]]

DIRECTIONS = 8
ULP = 2.0**-23  # the unit in the last place of float32, at 1


class NoiseError(Exception):
    """Float32 gradients are further from the truth than rounding explains, so they do not measure noise."""


@dataclass(frozen=True)
class GradientTruth:
    """The loss and, as ``gradients.NAME``, the gradients in float64, and the float32 noise of each."""

    values: Mapping[str, Array]
    noise: Mapping[str, float]

    def budget(self, name: str, dtype: str) -> float:
        """Return the largest accepted error of a value in ``dtype``."""
        neighbour = _of_same_size(name, self.values)
        noise = max(self.noise[name], self.noise[neighbour])
        return budget(noise_in(dtype, noise), float(np.abs(self.values[neighbour]).max()), dtype)


@dataclass(frozen=True)
class Measurement:
    """The float64 loss and gradients, the distance of the float32 ones, and the distance that rounding explains.

    ``noise_of_loss``: the least noise of the loss.
    """

    values: Mapping[str, Array]
    noise: Mapping[str, float]
    explained: Mapping[str, float]
    noise_of_loss: float

    def unexplained(self) -> list[str]:
        """Return the names of the values whose noise is larger than rounding explains."""
        truth = GradientTruth(self.values, self.explained)
        return [name for name, error in self.noise.items() if not error <= EXPLAINED * truth.budget(name, "float32")]

    def truth(self) -> GradientTruth:
        """Return the truth. Where the noise is larger than rounding explains, it is what rounding explains."""
        noise = {**self.noise, **{name: self.explained[name] for name in self.unexplained()}}
        return GradientTruth(self.values, {**noise, LOSS: max(noise[LOSS], self.noise_of_loss)})


def gradient_truth(checkpoint: Checkpoint, batch: Batch, derive: Derive) -> GradientTruth:
    """Return the float64 gradients of ``derive``, which the reference has to confirm, and their noise.

    Raises:
        NoiseError: the float32 gradients are further off than rounding explains.
    """
    measured = measure(checkpoint, batch, derive, {})
    for name in measured.unexplained():
        raise NoiseError(f"in float32, {name} is off by {measured.noise[name]:.3g}, more than rounding explains")
    return measured.truth()


def measure(
    checkpoint: Checkpoint, batch: Batch, derive: Derive, dropout_masks: Mapping[str, Array], seed: int = 0
) -> Measurement:
    """Return the float64 gradients of ``derive`` and their noise."""
    values = name_gradients(*derive(checkpoint, batch, dropout_masks, "float64"))

    def errors(weights: Checkpoint, masks: Mapping[str, Array], dtype: str) -> dict[str, float]:
        gradients = name_gradients(*derive(weights, batch, masks, dtype))
        return {name: distance(value, values[name]) for name, value in gradients.items()}

    # Every value with a dropout is multiplied by a mask, forward and backward. Masks around 1 therefore move the values
    # in every framework. This does not show the rounding error of a backward sum that is zero in theory, such as the
    # sum over a softmax: there float32 measured 9 times this noise, and at most twice this noise elsewhere.
    config = dataclasses.replace(checkpoint.config, **dict.fromkeys(DROPOUT_RATES, 0.5))
    generator = np.random.default_rng(seed)
    drawn = draw_dropout_masks(config, batch, generator).items()
    masks = {name: _moved(dropout_masks.get(name, np.ones(mask.shape)), generator) for name, mask in drawn}
    moved = {name: _moved(tensor, generator) for name, tensor in checkpoint.tensors.items()}
    explained = errors(Checkpoint(config, moved), masks, "float64")

    def rounded_errors(_: int) -> dict[str, float]:
        moved = {name: _moved(tensor, generator).astype(np.float32) for name, tensor in checkpoint.tensors.items()}
        return errors(Checkpoint(checkpoint.config, moved), dropout_masks, "float32")

    noise_of_loss = noise_of_mean(float(values[LOSS]), _terms(batch))
    return Measurement(values, measure_noise(values, rounded_errors), explained, noise_of_loss)


def reference_loss(
    checkpoint: Checkpoint, batch: Batch, masks: Mapping[str, Array]
) -> tuple[float, Callable[[Mapping[str, Array]], float]]:
    """Return the float64 loss of the reference, and the function that returns its derivative along a direction."""
    transformer = Reference(checkpoint).model.backend.transformer
    arrays, masks = _in_float64(batch.arrays()), _in_float64(masks)
    loss, _ = training.loss(transformer, arrays, masks)
    return float(loss), lambda direction: training.derivative(transformer, arrays, masks, direction)


def _in_float64(arrays: Mapping[str, Array]) -> dict[str, Array]:
    """Return the arrays with their floats in float64."""
    return {name: array.astype(np.float64) if array.dtype.kind == "f" else array for name, array in arrays.items()}


def disagreement(
    loss: float,
    gradients: Mapping[str, Array],
    true_loss: float,
    derivative: Callable[[Mapping[str, Array]], float],
    only: str | None = None,
    seed: int = 0,
) -> float:
    """Return how far a float64 loss and its gradients are from the reference's, in units of the rounding of both.

    ``true_loss`` is the loss of the reference, and ``derivative`` its derivative along a direction. ``only``: move no
    other parameter. Up to 1 they agree; with NaN they never do.
    """
    if not all(np.isfinite(gradient).all() for gradient in gradients.values()):
        return float("inf")
    generator = np.random.default_rng(seed)
    norms = {name: float(np.linalg.norm(gradient)) for name, gradient in gradients.items()}
    lengths = {name: max(norms[name], norms[_of_same_size(name, norms)]) for name in norms}
    # A gradient that is zero in theory must not be scaled up to the length of the others.
    shortest = max(lengths.values()) * LEAST_GRADIENT or 1.0
    unit = DERIVATIVE_UNITS * UNIT_ROUNDOFF["float64"]
    largest = abs(loss - true_loss) / (unit * abs(true_loss))
    for _ in range(DIRECTIONS):
        direction = {
            name: generator.choice([-1.0, 1.0], gradient.shape) / max(lengths[name], shortest)
            for name, gradient in gradients.items()
            if only in (None, name)
        }
        sizes = (np.abs(gradients[_of_same_size(name, gradients)] * along) for name, along in direction.items())
        scale = sum(float(size.sum()) for size in sizes)
        along_direction = sum(float((gradients[name] * along).sum()) for name, along in direction.items())
        error = abs(along_direction - derivative(direction))
        allowed = unit * (scale + abs(true_loss) * LEAST_GRADIENT)
        largest = float(np.maximum(largest, error / allowed))  # NaN if one is NaN
    return largest


def _of_same_size(name: str, names: Container[str]) -> str:
    """Return the name of the gradient that sets the scale of the rounding error: its own name, except for a key bias.

    A key bias moves all scores of a query alike, so its gradient is zero in theory. Its rounding error is that of the
    gradients that flow through the query bias.
    """
    neighbour = name.replace(".key.bias", ".query.bias")
    return neighbour if neighbour in names else name


def _terms(batch: Batch) -> int:
    """Return the number of terms whose mean the loss is."""
    if isinstance(batch, EncoderBatch) and batch.teacher is not None:
        return batch.teacher[batch.valid].size
    assert isinstance(batch, PairBatch)
    assert batch.labels is not None
    return int((batch.labels >= 0).sum())


def _moved(array: Array, generator: np.random.Generator) -> Array:
    """Return the array in float64 with each entry moved by up to one unit in the last place of float32."""
    return array.astype(np.float64) * (1 + generator.uniform(-ULP, ULP, array.shape))
