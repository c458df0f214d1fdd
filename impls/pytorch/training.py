"""Training: the loss, its gradients, and Adam with a rate that falls in steps.

Shapes: B batch, S source length, D hidden size, T target length, V target vocabulary.
"""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

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
    chosen = torch.take_along_dim(log_softmax(scores), torch.where(counted, labels, 0).long()[:, :, None], dim=-1)
    return -torch.where(counted, chosen[:, :, 0], 0.0).sum() / counted.sum()


def distance(output: Tensor, teacher: Tensor, valid: Tensor) -> Tensor:
    """The mean squared difference over real tokens: the distillation of TinyBERT (Jiao et al. 2020), of the last layer.

    output, teacher: (B, S, D). valid: bool (B, S).
    """
    difference = torch.where(valid[:, :, None], output - teacher, 0.0)
    return difference.square().sum() / (valid.sum() * output.shape[-1])


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
        return distance(output, given["teacher"], given["valid"]), torch.zeros((), dtype=torch.int64)
    (scores,) = heads.values()
    return cross_entropy(scores, given["labels"]), (scores.argmax(dim=-1) == given["labels"]).sum()


def gradients(
    transformer: Transformer,
    compute_loss: Loss,
    given: Mapping[str, Tensor],
    dropout_masks: Mapping[str, Tensor],
) -> tuple[Tensor, dict[str, Tensor]]:
    """The loss of a batch, and its gradients by the name of the parameter."""
    parameters = dict(transformer.named_parameters())
    for parameter in parameters.values():
        parameter.requires_grad_(True)
    value, _ = compute_loss(given, dropout_masks)
    found = torch.autograd.grad(value, list(parameters.values()), materialize_grads=True)
    return value, dict(zip(parameters, found, strict=True))


class Trainer:
    """Adam (Kingma and Ba 2015) on every parameter, its rate multiplied by ``plan.decay`` every so many steps.

    Goes on where ``moments`` were left; None: begins.
    """

    def __init__(
        self, transformer: Transformer, compute_loss: Loss, plan: Plan, moments: Moments | None = None
    ) -> None:
        self.transformer = transformer
        self.compute_loss = compute_loss
        for parameter in transformer.parameters():
            parameter.data = parameter.data.clone(memory_format=torch.contiguous_format)  # it shared the checkpoint's
            parameter.requires_grad_(True)
        self.optimizer = torch.optim.Adam(transformer.parameters(), lr=plan.rate, betas=BETAS, eps=EPSILON)
        # StepLR would multiply the rate up, and after a resumption be another number in its last digit.
        self.schedule = torch.optim.lr_scheduler.LambdaLR(self.optimizer, plan.share_at)
        self.steps = 0
        if moments is not None:
            self._resume(plan, moments)

    def step(self, given: Mapping[str, Tensor], dropout_masks: Mapping[str, Tensor]) -> Outcome:
        """One step down the gradient of the loss of a batch."""
        value, right = self.compute_loss(given, dropout_masks)
        self.optimizer.zero_grad()
        value.backward()
        self.optimizer.step()
        self.schedule.step()
        self.steps += 1
        counted = (given["labels"] >= 0).sum() if "labels" in given else 0
        return Outcome(value.item(), int(right), int(counted))

    def moments(self) -> Moments:
        """What Adam remembers."""
        config, named = self.transformer.config, dict(self.transformer.named_parameters())
        found = []
        for key in ("exp_avg", "exp_avg_sq"):
            state = self.optimizer.state
            kept = {name: state[tensor].get(key, torch.zeros_like(tensor)) for name, tensor in named.items()}
            found.append(weights.to_canonical(config, kept))
        return Moments(self.steps, *found)

    def _resume(self, plan: Plan, moments: Moments) -> None:
        config, named = self.transformer.config, dict(self.transformer.named_parameters())
        any_parameter = next(iter(named.values()))
        placement = str(any_parameter.device), any_parameter.dtype
        first = weights.to_native(config, moments.first, *placement)
        second = weights.to_native(config, moments.second, *placement)
        for name, parameter in named.items():
            kept = {"exp_avg": first[name].clone(), "exp_avg_sq": second[name].clone()}
            self.optimizer.state[parameter] = {"step": torch.tensor(float(moments.steps)), **kept}
        self.steps = moments.steps
        self.schedule.last_epoch = moments.steps
        self.optimizer.param_groups[0]["lr"] = plan.rate_at(moments.steps)
