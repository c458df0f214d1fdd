"""Training: the loss and its derivative. The reference has no backward pass; it checks the gradients of others.

Shapes: B batch, S source length, D hidden size, T target length, V target vocabulary.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import numpy as np
from numpy import ndarray

from triglot.shared.model import schema
from triglot.shared.model.probe import Probe

from . import weights
from .masks import log_softmax
from .transformer import Transformer

# Its square vanishes beside 1. Only the imaginary part is read, so nothing cancels.
STEP = 1e-30


def cross_entropy(scores: ndarray, labels: ndarray) -> ndarray:
    """Return the mean of -log p(label) over the labels that count, which are those that are not -1.

    scores: (B, T, V), logits, or log-probabilities, which a log-softmax does not change. labels: (B, T).
    """
    counted = labels >= 0
    chosen = np.take_along_axis(log_softmax(scores), np.where(counted, labels, 0)[:, :, None], axis=-1)
    return -np.where(counted, chosen[:, :, 0], 0.0).sum() / counted.sum()


def distance(output: ndarray, teacher: ndarray, valid: ndarray) -> ndarray:
    """Return the mean squared difference over real tokens: the last layer's loss of TinyBERT (Jiao et al. 2020).

    output, teacher: (B, S, D). valid: bool (B, S).
    """
    difference = np.where(valid[:, :, None], output - teacher, 0.0)
    return np.square(difference).sum() / (valid.sum() * output.shape[-1])


def loss(
    transformer: Transformer, inputs: Mapping[str, ndarray], dropout_masks: Mapping[str, ndarray]
) -> tuple[ndarray, ndarray]:
    """Return the loss of a batch, and the number of labels with the highest score.

    inputs: the arrays of the batch by name. An encoder learns the vectors of a teacher, so its number is 0.
    """
    probe = Probe(dropout_masks=dropout_masks)
    source = inputs["source"], inputs["valid"], inputs.get("segment_ids"), inputs.get("task_ids")
    output, heads = transformer(*source, inputs.get("target"), inputs.get("target_valid"), probe)
    if transformer.config.kind == "encoder":
        return distance(output, inputs["teacher"], inputs["valid"]), np.zeros((), np.int64)
    (scores,) = heads.values()
    return cross_entropy(scores, inputs["labels"]), (np.real(scores).argmax(axis=-1) == inputs["labels"]).sum()


def derivative(
    transformer: Transformer,
    inputs: Mapping[str, ndarray],
    dropout_masks: Mapping[str, ndarray],
    direction: Mapping[str, ndarray],
) -> float:
    """Return the derivative of the loss when the parameters move along ``direction``, exact to rounding.

    This is the complex step (Squire and Trapp 1998): the imaginary part of the loss at parameters + i * STEP *
    direction, divided by STEP. Parameters that ``direction`` does not name do not move.
    """
    with _moved(transformer, direction):
        value, _ = loss(transformer, inputs, dropout_masks)
    return float(np.imag(value) / STEP)


def gradients(
    transformer: Transformer, inputs: Mapping[str, ndarray], dropout_masks: Mapping[str, ndarray]
) -> tuple[ndarray, dict[str, ndarray]]:
    """Return the loss of a batch, and its gradients by parameter name: one forward pass for every weight."""
    value, _ = loss(transformer, inputs, dropout_masks)
    gradients: dict[str, ndarray] = {}
    for name, parameter in schema.parameters(transformer.config).items():
        gradients[name] = np.zeros(parameter.shape)
        for index in np.ndindex(parameter.shape):
            direction = np.zeros(parameter.shape)
            direction[index] = 1.0
            gradients[name][index] = derivative(transformer, inputs, dropout_masks, {name: direction})
    return value, gradients


@contextmanager
def _moved(transformer: Transformer, direction: Mapping[str, ndarray]) -> Iterator[None]:
    parameters = {name: getattr(*weights.place(transformer, name)) for name in direction}
    for name, parameter in parameters.items():
        setattr(*weights.place(transformer, name), parameter + 1j * STEP * direction[name])
    try:
        yield
    finally:
        for name, parameter in parameters.items():
            setattr(*weights.place(transformer, name), parameter)
