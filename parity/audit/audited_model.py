"""The models that bugs are tried on. Many bugs share the same weights and truths, which are computed once."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from triglot.parity.budgets import NOISE_RUNS
from triglot.parity.revealing import Weights
from triglot.parity.run import weights_for
from triglot.parity.truth import Reference, Truth, Values
from triglot.shared.checkpoint import Checkpoint
from triglot.shared.inputs import Batch
from triglot.shared.model.config import ModelConfig
from triglot.shared.model.initializers import initialize, perturb

from .catalogue import BUGS

KEPT = 20  # seeds of a recipe, about 50 MB each for a tiny one


@dataclass(frozen=True)
class AuditedModel:
    """A model that bugs are tried on: each set of its weights, and the reference on it."""

    checkpoint: Checkpoint
    weights: Mapping[Weights, Checkpoint]
    references: Mapping[Weights, Reference]


def audited_model(bug: str, seed: int, dtype: str) -> AuditedModel:
    """Return the model that a bug is tried on, with the weights of a seed. Bugs of the same model share it."""
    return _audited_model(BUGS[bug].config, bug if BUGS[bug].weights else "", seed, dtype)


def audited_model_of(
    checkpoint: Checkpoint, seed: int, dtype: str, reference: type[Reference] = Reference
) -> AuditedModel:
    """Return the model of given weights. ``reference``: a class that remembers truths, if they are needed again."""
    weights = weights_for(checkpoint, dtype, seed)
    references = {id(each): reference(each, dtype) for each in weights.values()}
    return AuditedModel(checkpoint, weights, {name: references[id(each)] for name, each in weights.items()})


@lru_cache(maxsize=KEPT)
def _audited_model(config: ModelConfig, bug_with_weights: str, seed: int, dtype: str) -> AuditedModel:
    tensors = random_tensors(config, seed)
    if bug_with_weights:
        tensors |= {name: tensor.astype(np.float32) for name, tensor in BUGS[bug_with_weights].weights.items()}
    return audited_model_of(Checkpoint(config, tensors), seed, dtype, RememberingReference)


def random_tensors(config: ModelConfig, seed: int) -> dict[str, np.ndarray]:
    """Return random weights in which no norm or bias is the identity."""
    return perturb(initialize(config, seed), seed)


class RememberingReference(Reference):
    """A reference that computes each truth once."""

    def __init__(self, checkpoint: Checkpoint, dtype: str) -> None:
        super().__init__(checkpoint, dtype)
        self._truths: dict[bytes, Truth] = {}

    def truth_of_values(self, batch: Batch, replaced: Values, runs: int = NOISE_RUNS) -> Truth:
        """See ``Reference.truth_of_values``."""
        digest = hashlib.blake2b(bytes([runs]))
        for arrays in (batch.arrays(), replaced):
            for name, array in arrays.items():
                digest.update(f"{name} {array.dtype} {array.shape} ".encode())
                digest.update(np.ascontiguousarray(array).data)
        if digest.digest() not in self._truths:
            self._truths[digest.digest()] = super().truth_of_values(batch, replaced, runs)
        return self._truths[digest.digest()]
