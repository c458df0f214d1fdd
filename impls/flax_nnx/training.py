"""Training: the loss, its gradients, and Adam with a learning rate that falls in steps.

Shapes: B batch, S source length, D hidden size, T target length, V target vocabulary.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple, cast

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
    """Return the mean of -log p(label) over the labels that count, which are those that are not -1.

    scores: (B, T, V), logits, or log-probabilities, which a log-softmax does not change. labels: (B, T).
    """
    counted = labels >= 0
    chosen = jnp.take_along_axis(log_softmax(scores), jnp.where(counted, labels, 0)[:, :, None], axis=-1)
    return -jnp.where(counted, chosen[:, :, 0], 0.0).sum() / counted.sum()


def distance(output: Array, teacher: Array, valid: Array) -> Array:
    """Return the mean squared difference over real tokens: the last layer's loss of TinyBERT (Jiao et al. 2020).

    output, teacher: (B, S, D). valid: bool (B, S).
    """
    difference = jnp.where(valid[:, :, None], output - teacher, 0.0)
    return jnp.square(difference).sum() / (valid.sum() * output.shape[-1])


def loss(
    transformer: Transformer, inputs: Mapping[str, Array], dropout_masks: Mapping[str, Array]
) -> tuple[Array, Array]:
    """Return the loss of a batch, and the number of labels with the highest score.

    inputs: the arrays of the batch by name. An encoder learns the vectors of a teacher, so its number is 0.
    """
    probe = Probe(dropout_masks=dropout_masks)
    source = inputs["source"], inputs["valid"], inputs.get("segment_ids"), inputs.get("task_ids")
    output, heads = transformer(*source, inputs.get("target"), inputs.get("target_valid"), probe)
    if transformer.config.kind == "encoder":
        return distance(output, inputs["teacher"], inputs["valid"]), jnp.zeros((), jnp.int32)
    (scores,) = heads.values()
    return cross_entropy(scores, inputs["labels"]), (scores.argmax(axis=-1) == inputs["labels"]).sum()


class Program(NamedTuple):
    """A function that JAX compiles, ``loss`` or one like it, and the structure of the transformer that it runs."""

    loss: Callable[..., tuple[Array, Array]]
    graph: nnx.GraphDef[Any]


class Loss:
    """Chooses the program that computes the loss of a batch. Here it is always ``loss``."""

    def __init__(self, transformer: Transformer) -> None:
        self.config = transformer.config
        self.graph, _ = nnx.split(transformer, nnx.Param)

    def program(
        self, inputs: Mapping[str, Array], dropout_masks: Mapping[str, Array]
    ) -> tuple[Program, Mapping[str, Any]]:
        """Return the program for a batch, and its inputs."""
        return Program(loss, self.graph), inputs


@partial(jax.jit, static_argnums=0)
def _derive(
    program: Program, parameters: nnx.State, inputs: Mapping[str, Any], dropout_masks: Mapping[str, Array]
) -> tuple[tuple[Array, Array], nnx.State]:
    def value_of(parameters: nnx.State) -> tuple[Array, Array]:
        return program.loss(nnx.merge(program.graph, parameters), inputs, dropout_masks)

    return jax.value_and_grad(value_of, has_aux=True)(parameters)


def gradients(
    transformer: Transformer, compute_loss: Loss, inputs: Mapping[str, Array], dropout_masks: Mapping[str, Array]
) -> tuple[Array, dict[str, Array]]:
    """Return the loss of a batch, and its gradients by parameter name."""
    _, parameters = nnx.split(transformer, nnx.Param)
    program, arrays = compute_loss.program(inputs, dropout_masks)
    (value, _), state = _derive(program, parameters, arrays, dropout_masks)
    return value, weights.by_name(transformer.config, state)


def _optimizer(rate: float | Array) -> optax.GradientTransformation:
    return optax.adam(rate, *BETAS, EPSILON)


@partial(jax.jit, static_argnums=0)
def _update(
    program: Program,
    parameters: nnx.State,
    state: optax.OptState,
    rate: Array,
    inputs: Mapping[str, Any],
    dropout_masks: Mapping[str, Array],
) -> tuple[Array, Array, nnx.State, optax.OptState]:
    (value, correct), gradients = _derive(program, parameters, inputs, dropout_masks)
    changes, state = _optimizer(rate).update(gradients, state, parameters)
    return value, correct, cast("nnx.State", optax.apply_updates(parameters, changes)), state


class Trainer:
    """Adam (Kingma and Ba 2015) on every parameter, with the learning rate that ``plan`` sets for each step.

    ``moments``: those of the training run to resume; None: start a new one.
    """

    def __init__(
        self, transformer: Transformer, compute_loss: Loss, plan: Plan, moments: Moments | None = None
    ) -> None:
        self.transformer = transformer
        self.compute_loss = compute_loss
        self.plan = plan
        _, self.parameters = nnx.split(transformer, nnx.Param)
        # On the device of the parameters, so that the second step is not compiled again.
        device = next(iter(jax.tree.leaves(self.parameters))).device
        self.state = jax.device_put(_optimizer(plan.rate).init(self.parameters), device)
        self.steps = 0
        if moments is not None:
            self._resume(plan, moments)

    def step(self, inputs: Mapping[str, Array], dropout_masks: Mapping[str, Array]) -> Outcome:
        """Take one step on a batch."""
        # The rate is an argument: optax's compiled exponential_decay rounds a quotient to just below a whole number, so
        # its rate falls one step late.
        rate = jnp.asarray(self.plan.rate_at(self.steps))
        # The whole step is compiled: operation by operation, JAX takes a hundred times as long.
        program, arrays = self.compute_loss.program(inputs, dropout_masks)
        value, correct, self.parameters, self.state = _update(
            program, self.parameters, self.state, rate, arrays, dropout_masks
        )
        nnx.update(self.transformer, self.parameters)
        self.steps += 1
        counted = (inputs["labels"] >= 0).sum() if "labels" in inputs else 0
        return Outcome(float(value), int(correct), int(counted))

    def moments(self) -> Moments:
        """Return the moments of Adam."""
        config = self.transformer.config
        moments = []
        for key in ("mu", "nu"):
            tensors = weights.by_name(config, optax.tree.get(self.state, key))
            moments.append(weights.to_canonical(config, tensors))
        return Moments(self.steps, *moments)

    def _resume(self, plan: Plan, moments: Moments) -> None:
        config, parameters = self.transformer.config, weights.by_name(self.transformer.config, self.parameters)
        any_parameter = next(iter(parameters.values()))
        placement = any_parameter.device, any_parameter.dtype
        first = weights.to_native(config, moments.first, *placement)
        second = weights.to_native(config, moments.second, *placement)
        states = {"mu": weights.as_state(self.parameters, config, first)}
        states["nu"] = weights.as_state(self.parameters, config, second)
        count = jax.device_put(jnp.asarray(moments.steps, jnp.int32), any_parameter.device)
        self.state = optax.tree.set(self.state, count=count, **states)
        self.steps = moments.steps
