"""Training: the loss, its gradients, and Adam with a rate that falls in steps.

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

# The loss of a transformer in one of the modes of ``execution.py``: of a batch by name, and dropout masks by name.
Loss = Callable[[Mapping[str, Tensor], Mapping[str, Tensor]], tuple[Tensor, Tensor]]


def cross_entropy(scores: Tensor, labels: Tensor) -> Tensor:
    """The mean of -log p(label) over the labels that count, those that are not -1.

    scores: (B, T, V), logits, or log-probabilities, which a log-softmax leaves as they are. labels: (B, T).
    """
    counted = labels >= 0
    places = paddle.where(counted, labels, paddle.zeros_like(labels))[:, :, None]
    chosen = paddle.take_along_axis(log_softmax(scores), places, axis=-1)
    chosen = paddle.where(counted, chosen[:, :, 0], paddle.zeros([], scores.dtype))
    return -chosen.sum() / counted.sum().astype(scores.dtype)


def distance(output: Tensor, teacher: Tensor, valid: Tensor) -> Tensor:
    """The mean squared difference over real tokens: the distillation of TinyBERT (Jiao et al. 2020), of the last layer.

    output, teacher: (B, S, D). valid: bool (B, S).
    """
    difference = (output - teacher).masked_fill(~valid[:, :, None], paddle.zeros([], output.dtype))
    return difference.square().sum() / (valid.sum() * output.shape[-1]).astype(output.dtype)


def loss(
    transformer: Transformer, given: Mapping[str, Tensor], dropout_masks: Mapping[str, Tensor]
) -> tuple[Tensor, Tensor]:
    """The loss of a batch, and how many of the labels that count have the highest score. given: the batch by name.

    An encoder learns what a teacher gives, and has no labels.
    """
    probe = Probe(dropout_masks=dropout_masks)
    source = given["source"], given["valid"], given.get("segment_ids"), given.get("task_ids")
    output, heads = transformer(*source, given.get("target"), given.get("target_valid"), probe)
    if transformer.config.kind == "encoder":
        return distance(output, given["teacher"], given["valid"]), paddle.zeros([], dtype="int64")
    (scores,) = heads.values()
    return cross_entropy(scores, given["labels"]), (scores.argmax(axis=-1, dtype="int32") == given["labels"]).sum()


def gradients(
    transformer: Transformer,
    compute_loss: Loss,
    given: Mapping[str, Tensor],
    dropout_masks: Mapping[str, Tensor],
) -> tuple[Tensor, dict[str, Tensor]]:
    """The loss of a batch, and its gradients by the name of the parameter."""
    parameters = dict(transformer.named_parameters())
    value, _ = compute_loss(given, dropout_masks)
    # A head that the loss does not read has none.
    found = paddle.grad(value, list(parameters.values()), allow_unused=True)
    named = zip(parameters.items(), found, strict=True)
    return value, {name: paddle.zeros_like(tensor) if one is None else one for (name, tensor), one in named}


class Trainer:
    """Adam (Kingma and Ba 2015) on every parameter, its rate multiplied by ``plan.decay`` every so many steps.

    Goes on where ``moments`` were left; None: begins.
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

    def step(self, given: Mapping[str, Tensor], dropout_masks: Mapping[str, Tensor]) -> Outcome:
        """One step down the gradient of the loss of a batch."""
        value, right = self.compute_loss(given, dropout_masks)
        self.optimizer.clear_grad()
        value.backward()
        # Paddle numbers what it keeps of a parameter by process: in a guard of its own, each name is the first.
        with paddle.utils.unique_name.guard():
            self.optimizer.step()
        self.schedule.step()
        self.steps += 1
        counted = (given["labels"] >= 0).sum() if "labels" in given else 0
        return Outcome(float(value), int(right), int(counted))

    def moments(self) -> Moments:
        """What Adam remembers."""
        config, named = self.transformer.config, dict(self.transformer.named_parameters())
        found = []
        for key in ("moment1", "moment2"):
            state = self.optimizer.state_dict() if self.steps else {}
            nothing = {f"{tensor.name}_{key}_0": paddle.zeros_like(tensor) for tensor in named.values()}
            kept = {name: (nothing | state)[f"{tensor.name}_{key}_0"] for name, tensor in named.items()}
            found.append(weights.to_canonical(config, kept))
        return Moments(self.steps, *found)

    def _resume(self, plan: Plan, moments: Moments) -> None:
        config, named = self.transformer.config, dict(self.transformer.named_parameters())
        dtype = next(iter(named.values())).dtype
        first = weights.to_native(config, moments.first, dtype)
        second = weights.to_native(config, moments.second, dtype)
        state: dict[str, Any] = {}
        for name, parameter in named.items():
            state |= {f"{parameter.name}_moment1_0": first[name], f"{parameter.name}_moment2_0": second[name]}
            for place, beta in enumerate(BETAS, start=1):
                # What Paddle multiplies up from step to step.
                powers = np.full(moments.steps + 1, beta, weights.paddle2np(parameter).dtype)
                power = np.multiply.accumulate(powers)[-1:]
                state[f"{parameter.name}_beta{place}_pow_acc_0"] = paddle.to_tensor(power)
        rate = {"last_epoch": moments.steps, "last_lr": plan.rate_at(moments.steps)}
        state["LR_Scheduler"] = rate
        self.optimizer.set_state_dict(state)
        self.steps = moments.steps
