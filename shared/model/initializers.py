"""Seeded random weights for any configuration, drawn in NumPy, so that every framework gets the same."""

from collections.abc import Callable, Mapping

import numpy as np

from triglot.shared.arrays import Array, Float32s

from .config import Initializer, ModelConfig
from .schema import Parameter, Role, parameters

STANDARD_DEVIATION = 0.02  # BERT (Devlin et al. 2018), ERNIE and article 002

Draw = Callable[[np.random.Generator, Parameter], Float32s]


def initialize(config: ModelConfig, seed: int = 0) -> dict[str, Float32s]:
    """Draw weights by the rules of ``config.initializer``. The scale of a norm is 1 and its bias 0.

    Each tensor has its own random stream, derived from ``seed`` and its name, so a tensor added to the schema does not
    change the others.
    """
    rules = RULES[config.initializer]
    return {name: _draw(parameter, rules, seed) for name, parameter in parameters(config).items()}


def perturb(tensors: Mapping[str, Array], seed: int = 0) -> dict[str, Array]:
    """Return the tensors with noise from N(0, 0.2) added to each constant one. The others are the same objects.

    A bias of zeros or a scale of ones hides every bug in its use, so a parity check needs other values.
    """
    perturbed: dict[str, Array] = {}
    for name, tensor in tensors.items():
        perturbed[name] = tensor
        if np.ptp(tensor) == 0:
            noise = _generator(seed, name).normal(0, 0.2, tensor.shape)
            perturbed[name] = (tensor.astype(np.float64) + noise).astype(tensor.dtype)
    return perturbed


def _zeros(_: np.random.Generator, parameter: Parameter) -> Float32s:
    return np.zeros(parameter.shape, np.float32)


def _normal(deviation: float) -> Draw:
    def draw(generator: np.random.Generator, parameter: Parameter) -> Float32s:
        return generator.standard_normal(parameter.shape, np.float32) * np.float32(deviation)

    return draw


def _truncated_normal(generator: np.random.Generator, parameter: Parameter) -> Float32s:
    """Draw from N(0, 0.02), and redraw whatever is further than two standard deviations from 0."""
    values = generator.standard_normal(parameter.shape, np.float32)
    while (outside := np.abs(values) > 2).any():
        values[outside] = generator.standard_normal(int(outside.sum()), np.float32)
    return values * np.float32(STANDARD_DEVIATION)


def _torch_linear(generator: np.random.Generator, parameter: Parameter) -> Float32s:
    """Draw as torch.nn.Linear does: weight and bias uniform within 1 / sqrt(inputs)."""
    return _uniform(generator, parameter, 1 / np.sqrt(parameter.fan_in))


def _xavier_uniform(generator: np.random.Generator, parameter: Parameter) -> Float32s:
    """Draw uniformly within sqrt(6 / (inputs + outputs)) (Glorot and Bengio 2010)."""
    return _uniform(generator, parameter, np.sqrt(6 / sum(parameter.shape)))


def _xavier_projections(generator: np.random.Generator, parameter: Parameter) -> Float32s:
    """Draw query, key and value, which are bare parameters in article 004, by Xavier, and the rest as nn.Linear."""
    is_bare = parameter.name.split(".")[-2] in ("query", "key", "value")
    return (_xavier_uniform if is_bare else _torch_linear)(generator, parameter)


def _uniform(generator: np.random.Generator, parameter: Parameter, bound: float) -> Float32s:
    return (2 * generator.random(parameter.shape, np.float32) - 1) * np.float32(bound)


# How each initializer draws tables, the weights of linear layers, and their biases.
RULES: dict[Initializer, dict[Role, Draw]] = {
    "bert": {"embedding": _truncated_normal, "linear_weight": _truncated_normal, "bias": _zeros},
    # Article 000 draws its tables itself and leaves the rest to torch.nn.Linear.
    "translation": {"embedding": _normal(0.1), "linear_weight": _torch_linear, "bias": _torch_linear},
    # Article 002, not truncated.
    "prenorm": {
        "embedding": _normal(STANDARD_DEVIATION),
        "linear_weight": _normal(STANDARD_DEVIATION),
        "bias": _zeros,
    },
    # Article 003 draws every matrix, tables included, and leaves the biases to torch.nn.Linear.
    "annotated": {"embedding": _xavier_uniform, "linear_weight": _xavier_uniform, "bias": _torch_linear},
    # Article 004 has no embeddings; a table would be drawn as by torch.nn.Embedding.
    "multihead": {"embedding": _normal(1.0), "linear_weight": _xavier_projections, "bias": _torch_linear},
}


def _generator(seed: int, name: str) -> np.random.Generator:
    return np.random.default_rng([seed, *name.encode()])


def _draw(parameter: Parameter, rules: dict[Role, Draw], seed: int) -> Float32s:
    if parameter.role == "scale":
        return np.ones(parameter.shape, np.float32)
    if parameter.role == "bias" and not parameter.fan_in:  # of a norm
        return np.zeros(parameter.shape, np.float32)
    return rules[parameter.role](_generator(seed, parameter.name), parameter)
