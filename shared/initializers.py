"""Seeded NumPy weights for any schema: the same for every framework, because no framework draws them."""

from collections.abc import Mapping

import numpy as np

from . import schema
from .arrays import Array, Float32s
from .config import ModelConfig
from .schema import Parameter

STANDARD_DEVIATION = 0.02  # BERT (Devlin et al. 2018), and ERNIE after it


def initialize(config: ModelConfig, seed: int = 0) -> dict[str, Float32s]:
    """BERT's initialisation: matrices from N(0, 0.02) cut at two deviations, biases 0, scales 1.

    Each tensor has a random stream of its own, derived from ``seed`` and its name: a tensor added to the schema
    changes no other.
    """
    return {name: _draw(parameter, seed) for name, parameter in schema.parameters(config).items()}


def perturb(tensors: Mapping[str, Array], seed: int = 0) -> dict[str, Array]:
    """The same tensors, with noise from N(0, 0.2) in each that is constant. The others are passed on as they are.

    A bias of zeros or a scale of ones hides every bug in its use: a parity check needs weights that do something.
    """
    return {name: _perturbed(name, tensor, seed) if np.ptp(tensor) == 0 else tensor for name, tensor in tensors.items()}


def _generator(seed: int, name: str) -> np.random.Generator:
    return np.random.default_rng([seed, *name.encode()])


def _draw(parameter: Parameter, seed: int) -> Float32s:
    if parameter.role == "scale":
        return np.ones(parameter.shape, np.float32)
    if parameter.role == "bias":
        return np.zeros(parameter.shape, np.float32)
    generator = _generator(seed, parameter.name)
    values = generator.standard_normal(parameter.shape, np.float32)
    while (outside := np.abs(values) > 2).any():
        values[outside] = generator.standard_normal(int(outside.sum()), np.float32)
    return values * np.float32(STANDARD_DEVIATION)


def _perturbed(name: str, tensor: Array, seed: int) -> Array:
    noise = _generator(seed, name).normal(0, 0.2, tensor.shape)
    return (tensor.astype(np.float64) + noise).astype(tensor.dtype)
