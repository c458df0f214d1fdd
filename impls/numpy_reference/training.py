"""Training: the loss and its derivative. The reference has no gradients, so it does not train; it checks who does.

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

# So small that its square is nothing beside 1; only the imaginary part is read, so nothing cancels.
STEP = 1e-30


def cross_entropy(scores: ndarray, labels: ndarray) -> ndarray:
    """The mean of -log p(label) over the labels that count, those that are not -1.

    scores: (B, T, V), logits, or log-probabilities, which a log-softmax leaves as they are. labels: (B, T).
    """
    counted = labels >= 0
    chosen = np.take_along_axis(log_softmax(scores), np.where(counted, labels, 0)[:, :, None], axis=-1)
    return -np.where(counted, chosen[:, :, 0], 0.0).sum() / counted.sum()


def distance(output: ndarray, teacher: ndarray, valid: ndarray) -> ndarray:
    """The mean squared difference over real tokens: the distillation of TinyBERT (Jiao et al. 2020), of the last layer.

    output, teacher: (B, S, D). valid: bool (B, S).
    """
    difference = np.where(valid[:, :, None], output - teacher, 0.0)
    return np.square(difference).sum() / (valid.sum() * output.shape[-1])


def loss(
    transformer: Transformer, given: Mapping[str, ndarray], dropout_masks: Mapping[str, ndarray]
) -> tuple[ndarray, ndarray]:
    """The loss of a batch, and how many of the labels that count have the highest score. given: the batch by name.

    An encoder learns what a teacher gives, and has no labels.
    """
    probe = Probe(dropout_masks=dropout_masks)
    source = given["source"], given["valid"], given.get("segment_ids"), given.get("task_ids")
    output, heads = transformer(*source, given.get("target"), given.get("target_valid"), probe)
    if transformer.config.kind == "encoder":
        return distance(output, given["teacher"], given["valid"]), np.zeros((), np.int64)
    (scores,) = heads.values()
    return cross_entropy(scores, given["labels"]), (np.real(scores).argmax(axis=-1) == given["labels"]).sum()


def derivative(
    transformer: Transformer,
    given: Mapping[str, ndarray],
    dropout_masks: Mapping[str, ndarray],
    direction: Mapping[str, ndarray],
) -> float:
    """How fast the loss of a batch grows when the parameters move along ``direction``, exact to rounding.

    By the complex step (Squire and Trapp 1998): the imaginary part of the loss at parameters + i * STEP * direction,
    over STEP. The parameters that ``direction`` does not name stay.
    """
    with _moved(transformer, direction):
        value, _ = loss(transformer, given, dropout_masks)
    return float(np.imag(value) / STEP)


def gradients(
    transformer: Transformer, given: Mapping[str, ndarray], dropout_masks: Mapping[str, ndarray]
) -> tuple[ndarray, dict[str, ndarray]]:
    """The loss of a batch, and its gradients by the name of the parameter: a forward pass for every single weight."""
    value, _ = loss(transformer, given, dropout_masks)
    found: dict[str, ndarray] = {}
    for name, parameter in schema.parameters(transformer.config).items():
        found[name] = np.zeros(parameter.shape)
        for index in np.ndindex(parameter.shape):
            direction = np.zeros(parameter.shape)
            direction[index] = 1.0
            found[name][index] = derivative(transformer, given, dropout_masks, {name: direction})
    return value, found


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
