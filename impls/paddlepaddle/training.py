"""Training: the loss, its gradients, and Adam with a learning rate that falls in steps.

Shapes: B batch, S source length, D hidden size, T target length, V target vocabulary.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import paddle
from paddle import Tensor

from triglot.shared.model.probe import Probe
from triglot.shared.training.plan import BETAS, EPSILON, Moments, Outcome, Plan

from . import weights
from .masks import log_softmax
from .transformer import Transformer

# ``loss`` bound to a transformer, in one of the modes of ``execution.py``.
Loss = Callable[[Mapping[str, Tensor], Mapping[str, Tensor]], tuple[Tensor, Tensor]]


def cross_entropy(scores: Tensor, labels: Tensor) -> Tensor:
    """Return the mean of -log p(label) over the labels that count, which are those that are not -1.

    scores: (B, T, V), logits, or log-probabilities, which a log-softmax does not change. labels: (B, T).
    """
    counted = labels >= 0
    places = paddle.where(counted, labels, paddle.zeros_like(labels))[:, :, None]
    chosen = paddle.take_along_axis(log_softmax(scores), places, axis=-1)
    chosen = paddle.where(counted, chosen[:, :, 0], paddle.zeros([], scores.dtype))
    return -chosen.sum() / counted.sum().astype(scores.dtype)


def distance(output: Tensor, teacher: Tensor, valid: Tensor) -> Tensor:
    """Return the mean squared difference over real tokens: the last layer's loss of TinyBERT (Jiao et al. 2020).

    output, teacher: (B, S, D). valid: bool (B, S).
    """
    difference = (output - teacher).masked_fill(~valid[:, :, None], paddle.zeros([], output.dtype))
    return difference.square().sum() / (valid.sum() * output.shape[-1]).astype(output.dtype)


def loss(
    transformer: Transformer, inputs: Mapping[str, Tensor], dropout_masks: Mapping[str, Tensor]
) -> tuple[Tensor, Tensor]:
    """Return the loss of a batch, and the number of labels with the highest score.

    inputs: the arrays of the batch by name. An encoder learns the vectors of a teacher, so its number is 0.
    """
    probe = Probe(dropout_masks=dropout_masks)
    source = inputs["source"], inputs["valid"], inputs.get("segment_ids"), inputs.get("task_ids")
    output, heads = transformer(*source, inputs.get("target"), inputs.get("target_valid"), probe)
    if transformer.config.kind == "encoder":
        return distance(output, inputs["teacher"], inputs["valid"]), paddle.zeros([], dtype="int64")
    (scores,) = heads.values()
    return cross_entropy(scores, inputs["labels"]), (scores.argmax(axis=-1, dtype="int32") == inputs["labels"]).sum()


def gradients(
    transformer: Transformer,
    compute_loss: Loss,
    inputs: Mapping[str, Tensor],
    dropout_masks: Mapping[str, Tensor],
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the loss of a batch, and its gradients by parameter name."""
    parameters = dict(transformer.named_parameters())
    value, _ = compute_loss(inputs, dropout_masks)
    # Paddle returns None for a head that the loss does not read.
    gradients = paddle.grad(value, list(parameters.values()), allow_unused=True)
    pairs = zip(parameters.items(), gradients, strict=True)
    return value, {
        name: paddle.zeros_like(tensor) if gradient is None else gradient for (name, tensor), gradient in pairs
    }


class Trainer:
    """Adam (Kingma and Ba 2015) on every parameter, with the learning rate that ``plan`` sets for each step.

    ``moments``: those of the training run to resume; None: start a new one.
    """

    def __init__(
        self, transformer: Transformer, compute_loss: Loss, plan: Plan, moments: Moments | None = None
    ) -> None:
        self.transformer = transformer
        self.compute_loss = compute_loss
        self.schedule = paddle.optimizer.lr.LambdaDecay(plan.rate, plan.share_at)
        self.optimizer = paddle.optimizer.Adam(self.schedule, *BETAS, EPSILON, parameters=transformer.parameters())
        self.steps = 0
        if moments is not None:
            self._resume(plan, moments)

    def step(self, inputs: Mapping[str, Tensor], dropout_masks: Mapping[str, Tensor]) -> Outcome:
        """Take one step on a batch."""
        value, correct = self.compute_loss(inputs, dropout_masks)
        self.optimizer.clear_grad()
        value.backward()
        for parameter in self.transformer.parameters():
            if parameter.grad is None:  # of a head without a loss: Adam would skip it, but its moments decay
                parameter.grad = paddle.zeros_like(parameter)
        # Paddle numbers its names per process. Inside a guard, numbering starts again, so the names are known.
        with paddle.utils.unique_name.guard():
            self.optimizer.step()
        self.schedule.step()
        self.steps += 1
        counted = (inputs["labels"] >= 0).sum() if "labels" in inputs else 0
        return Outcome(float(value), int(correct), int(counted))

    def moments(self) -> Moments:
        """Return the moments of Adam."""
        config, parameters = self.transformer.config, dict(self.transformer.named_parameters())
        moments = []
        for key in ("moment1", "moment2"):
            state = self.optimizer.state_dict() if self.steps else {}
            zeros = {f"{tensor.name}_{key}_0": paddle.zeros_like(tensor) for tensor in parameters.values()}
            tensors = {name: (zeros | state)[f"{tensor.name}_{key}_0"] for name, tensor in parameters.items()}
            moments.append(weights.to_canonical(config, tensors))
        return Moments(self.steps, *moments)

    def _resume(self, plan: Plan, moments: Moments) -> None:
        config, parameters = self.transformer.config, dict(self.transformer.named_parameters())
        dtype = next(iter(parameters.values())).dtype
        first = weights.to_native(config, moments.first, dtype)
        second = weights.to_native(config, moments.second, dtype)
        state: dict[str, Any] = {}
        for name, parameter in parameters.items():
            state |= {f"{parameter.name}_moment1_0": first[name], f"{parameter.name}_moment2_0": second[name]}
            for place, beta in enumerate(BETAS, start=1):
                # Paddle accumulates these powers step by step.
                powers = np.full(moments.steps + 1, beta, weights.paddle2np(parameter).dtype)
                power = np.multiply.accumulate(powers)[-1:]
                state[f"{parameter.name}_beta{place}_pow_acc_0"] = paddle.to_tensor(power)
        rate = {"last_epoch": moments.steps, "last_lr": plan.rate_at(moments.steps)}
        state["LR_Scheduler"] = rate
        self.optimizer.set_state_dict(state)
        self.steps = moments.steps
