"""Training: the loss, its gradients, and Adam with a rate that falls in steps.

Shapes: B batch, S source length, D hidden size, T target length, V target vocabulary.
"""

from collections.abc import Mapping
from functools import partial
from typing import cast

import jax
import optax
from flax import nnx
from jax import Array
from jax import numpy as jnp

from triglot.shared.model.probe import Probe
from triglot.shared.training.plan import BETAS, EPSILON, Moments, Outcome, Plan

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


def distance(output: Array, teacher: Array, valid: Array) -> Array:
    """The mean squared difference over real tokens: the distillation of TinyBERT (Jiao et al. 2020), of the last layer.

    output, teacher: (B, S, D). valid: bool (B, S).
    """
    difference = jnp.where(valid[:, :, None], output - teacher, 0.0)
    return jnp.square(difference).sum() / (valid.sum() * output.shape[-1])


def loss(
    transformer: Transformer, given: Mapping[str, Array], dropout_masks: Mapping[str, Array]
) -> tuple[Array, Array]:
    """The loss of a batch, and how many of the labels that count have the highest score. given: the batch by name.

    An encoder learns what a teacher gives, and has no labels.
    """
    probe = Probe(dropout_masks=dropout_masks)
    source = given["source"], given["valid"], given.get("segment_ids"), given.get("task_ids")
    output, heads = transformer(*source, given.get("target"), given.get("target_valid"), probe)
    if transformer.config.kind == "encoder":
        return distance(output, given["teacher"], given["valid"]), jnp.zeros((), jnp.int32)
    (scores,) = heads.values()
    return cross_entropy(scores, given["labels"]), (scores.argmax(axis=-1) == given["labels"]).sum()


@partial(jax.jit, static_argnums=0)
def _derive(
    graph: nnx.GraphDef[Transformer],
    parameters: nnx.State,
    given: Mapping[str, Array],
    dropout_masks: Mapping[str, Array],
) -> tuple[tuple[Array, Array], nnx.State]:
    def value_of(parameters: nnx.State) -> tuple[Array, Array]:
        return loss(nnx.merge(graph, parameters), given, dropout_masks)

    return jax.value_and_grad(value_of, has_aux=True)(parameters)


def gradients(
    transformer: Transformer, given: Mapping[str, Array], dropout_masks: Mapping[str, Array]
) -> tuple[Array, dict[str, Array]]:
    """The loss of a batch, and its gradients by the name of the parameter."""
    graph, parameters = nnx.split(transformer, nnx.Param)
    (value, _), found = _derive(graph, parameters, given, dropout_masks)
    return value, weights.by_name(transformer.config, found)


def _optimizer(rate: float | Array) -> optax.GradientTransformation:
    return optax.adam(rate, *BETAS, EPSILON)


@partial(jax.jit, static_argnums=0)
def _update(
    graph: nnx.GraphDef[Transformer],
    parameters: nnx.State,
    state: optax.OptState,
    rate: Array,
    given: Mapping[str, Array],
    dropout_masks: Mapping[str, Array],
) -> tuple[Array, Array, nnx.State, optax.OptState]:
    (value, right), found = _derive(graph, parameters, given, dropout_masks)
    changes, state = _optimizer(rate).update(found, state, parameters)
    return value, right, cast("nnx.State", optax.apply_updates(parameters, changes)), state


class Trainer:
    """Adam (Kingma and Ba 2015) on every parameter, its rate multiplied by ``plan.decay`` every so many steps.

    Goes on where ``moments`` were left; None: begins.
    """

    def __init__(self, transformer: Transformer, plan: Plan, moments: Moments | None = None) -> None:
        self.transformer = transformer
        self.plan = plan
        self.graph, self.parameters = nnx.split(transformer, nnx.Param)
        # Placed where the parameters are, or the second step would be compiled again.
        device = next(iter(jax.tree.leaves(self.parameters))).device
        self.state = jax.device_put(_optimizer(plan.rate).init(self.parameters), device)
        self.steps = 0
        if moments is not None:
            self._resume(plan, moments)

    def step(self, given: Mapping[str, Array], dropout_masks: Mapping[str, Array]) -> Outcome:
        """One step down the gradient of the loss of a batch."""
        # The rate comes from outside: in a compiled exponential_decay of optax, a quotient lands below a whole number,
        # and the rate falls a step late.
        rate = jnp.asarray(self.plan.rate_at(self.steps))
        # The whole step is compiled: operation by operation, JAX would take a hundred times as long.
        value, right, self.parameters, self.state = _update(
            self.graph, self.parameters, self.state, rate, given, dropout_masks
        )
        nnx.update(self.transformer, self.parameters)
        self.steps += 1
        counted = (given["labels"] >= 0).sum() if "labels" in given else 0
        return Outcome(float(value), int(right), int(counted))

    def moments(self) -> Moments:
        """What Adam remembers."""
        config = self.transformer.config
        found = []
        for key in ("mu", "nu"):
            kept = weights.by_name(config, optax.tree.get(self.state, key))
            found.append(weights.to_canonical(config, kept))
        return Moments(self.steps, *found)

    def _resume(self, plan: Plan, moments: Moments) -> None:
        config, named = self.transformer.config, weights.by_name(self.transformer.config, self.parameters)
        any_parameter = next(iter(named.values()))
        placement = any_parameter.device, any_parameter.dtype
        first = weights.to_native(config, moments.first, *placement)
        second = weights.to_native(config, moments.second, *placement)
        kept = {"mu": weights.as_state(self.parameters, config, first)}
        kept["nu"] = weights.as_state(self.parameters, config, second)
        count = jax.device_put(jnp.asarray(moments.steps, jnp.int32), any_parameter.device)
        self.state = optax.tree.set(self.state, count=count, **kept)
        self.steps = moments.steps
