"""Training: the loss, its gradients, and Adam with a rate that falls in steps.

Shapes: B batch, T target length, V target vocabulary.
"""

from collections.abc import Mapping
from typing import cast

import jax
import optax
from flax import nnx
from jax import Array
from jax import numpy as jnp

from ...shared.probe import Probe
from ...shared.training import BETAS, EPSILON, Moments, Outcome, Plan
from . import weights
from .masks import log_softmax
from .transformer import Transformer


def cross_entropy(scores: Array, labels: Array) -> Array:
    """The mean of -log p(label) over the labels that count, those that are not -1.

    scores: (B, T, V), logits, or log-probabilities, which a log-softmax leaves as they are. labels: (B, T).
    """
    counted = labels >= 0
    chosen = jnp.take_along_axis(log_softmax(scores), jnp.where(counted, labels, 0)[:, :, None], axis=-1)
    return -jnp.where(counted, chosen[:, :, 0], 0.0).sum() / counted.sum()


def loss(
    transformer: Transformer, given: Mapping[str, Array], dropout_masks: Mapping[str, Array]
) -> tuple[Array, Array]:
    """The loss of a batch, and how many of the labels that count have the highest score. given: the batch by name."""
    probe = Probe(dropout_masks=dropout_masks)
    source = given["source"], given["valid"], given["segment_ids"], given["task_ids"]
    _, heads = transformer(*source, given["target"], given["target_valid"], probe)
    (scores,) = heads.values()
    return cross_entropy(scores, given["labels"]), (scores.argmax(axis=-1) == given["labels"]).sum()


def gradients(
    transformer: Transformer, given: Mapping[str, Array], dropout_masks: Mapping[str, Array]
) -> tuple[Array, dict[str, Array]]:
    """The loss of a batch, and its gradients by the name of the parameter."""
    graph, parameters, rest = nnx.split(transformer, nnx.Param, ...)

    @jax.jit
    def derive(parameters: nnx.State) -> tuple[Array, nnx.State]:
        def value_of(parameters: nnx.State) -> tuple[Array, Array]:
            return loss(nnx.merge(graph, parameters, rest), given, dropout_masks)

        (value, _), found = jax.value_and_grad(value_of, has_aux=True)(parameters)
        return value, found

    value, found = derive(parameters)
    return value, weights.by_name(transformer.config, found)


class Trainer:
    """Adam (Kingma and Ba 2015) on every parameter, its rate multiplied by ``plan.decay`` every so many steps.

    Goes on where ``moments`` were left; None: begins.
    """

    def __init__(self, transformer: Transformer, plan: Plan, moments: Moments | None = None) -> None:
        self.transformer = transformer
        self.graph, self.parameters, self.rest = nnx.split(transformer, nnx.Param, ...)
        self.schedule = optax.exponential_decay(plan.rate, plan.decay_steps, plan.decay, staircase=True)
        self.optimizer = optax.adam(self.schedule, *BETAS, EPSILON)
        self.state = self.optimizer.init(self.parameters)
        self.steps = 0
        self.update = jax.jit(self._update)
        if moments is not None:
            self._resume(plan, moments)

    def step(self, given: Mapping[str, Array], dropout_masks: Mapping[str, Array]) -> Outcome:
        """One step down the gradient of the loss of a batch."""
        value, right, self.parameters, self.state = self.update(self.parameters, self.state, given, dropout_masks)
        nnx.update(self.transformer, self.parameters)
        self.steps += 1
        return Outcome(float(value), int(right), int((given["labels"] >= 0).sum()))

    def moments(self) -> Moments:
        """What Adam remembers."""
        config = self.transformer.config
        found = []
        for key in ("mu", "nu"):
            kept = weights.by_name(config, optax.tree.get(self.state, key))
            found.append(weights.to_canonical(config, kept))
        return Moments(self.steps, *found)

    def _update(
        self,
        parameters: nnx.State,
        state: optax.OptState,
        given: Mapping[str, Array],
        dropout_masks: Mapping[str, Array],
    ) -> tuple[Array, Array, nnx.State, optax.OptState]:
        def value_of(parameters: nnx.State) -> tuple[Array, Array]:
            return loss(nnx.merge(self.graph, parameters, self.rest), given, dropout_masks)

        (value, right), found = jax.value_and_grad(value_of, has_aux=True)(parameters)
        changes, state = self.optimizer.update(found, state, parameters)
        return value, right, cast("nnx.State", optax.apply_updates(parameters, changes)), state

    def _resume(self, plan: Plan, moments: Moments) -> None:
        config, named = self.transformer.config, weights.by_name(self.transformer.config, self.parameters)
        any_parameter = next(iter(named.values()))
        placement = any_parameter.device, any_parameter.dtype
        first = weights.to_native(config, moments.first, *placement)
        second = weights.to_native(config, moments.second, *placement)
        kept = {"mu": weights.as_state(self.parameters, config, first)}
        kept["nu"] = weights.as_state(self.parameters, config, second)
        self.state = optax.tree.set(self.state, count=jnp.asarray(moments.steps, jnp.int32), **kept)
        self.steps = moments.steps
