"""Training: the loss, its gradients, and Adam with a learning rate that falls in steps.

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

# ``loss`` bound to a transformer, in one of the modes of ``execution.py``.
Loss = Callable[[Mapping[str, Tensor], Mapping[str, Tensor]], tuple[Tensor, Tensor]]


def cross_entropy(scores: Tensor, labels: Tensor) -> Tensor:
    """Return the mean of -log p(label) over the labels that count, which are those that are not -1.

    scores: (B, T, V), logits, or log-probabilities, which a log-softmax does not change. labels: (B, T).
    """
    counted = labels >= 0
    chosen = torch.take_along_dim(log_softmax(scores), torch.where(counted, labels, 0).long()[:, :, None], dim=-1)
    return -torch.where(counted, chosen[:, :, 0], 0.0).sum() / counted.sum()


def distance(output: Tensor, teacher: Tensor, valid: Tensor) -> Tensor:
    """Return the mean squared difference over real tokens: the last layer's loss of TinyBERT (Jiao et al. 2020).

    output, teacher: (B, S, D). valid: bool (B, S).
    """
    difference = torch.where(valid[:, :, None], output - teacher, 0.0)
    return difference.square().sum() / (valid.sum() * output.shape[-1])


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
        return distance(output, inputs["teacher"], inputs["valid"]), torch.zeros((), dtype=torch.int64)
    (scores,) = heads.values()
    return cross_entropy(scores, inputs["labels"]), (scores.argmax(dim=-1) == inputs["labels"]).sum()


def gradients(
    transformer: Transformer,
    compute_loss: Loss,
    inputs: Mapping[str, Tensor],
    dropout_masks: Mapping[str, Tensor],
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the loss of a batch, and its gradients by parameter name."""
    parameters = dict(transformer.named_parameters())
    for parameter in parameters.values():
        parameter.requires_grad_(True)
    value, _ = compute_loss(inputs, dropout_masks)
    gradients = torch.autograd.grad(value, list(parameters.values()), materialize_grads=True)
    return value, dict(zip(parameters, gradients, strict=True))


def contiguous(tensor: Tensor) -> Tensor:
    """Return a contiguous copy. On a CPU, PyTorch's fused Adam misreads weights and moments that are not contiguous."""
    return tensor.clone(memory_format=torch.contiguous_format)


class Trainer:
    """Adam (Kingma and Ba 2015) on every parameter, with the learning rate that ``plan`` sets for each step.

    ``moments``: those of the training run to resume; None: start a new one.
    """

    def __init__(
        self, transformer: Transformer, compute_loss: Loss, plan: Plan, moments: Moments | None = None
    ) -> None:
        self.transformer = transformer
        self.compute_loss = compute_loss
        for parameter in transformer.parameters():
            parameter.data = contiguous(parameter.data)  # not the checkpoint's memory
            parameter.requires_grad_(True)
        self.optimizer = torch.optim.Adam(transformer.parameters(), lr=plan.rate, betas=BETAS, eps=EPSILON, fused=True)
        # StepLR accumulates products, so a resumed training run would have another rate in the last digit.
        self.schedule = torch.optim.lr_scheduler.LambdaLR(self.optimizer, plan.share_at)
        self.steps = 0
        if moments is not None:
            self._resume(plan, moments)

    def step(self, inputs: Mapping[str, Tensor], dropout_masks: Mapping[str, Tensor]) -> Outcome:
        """Take one step on a batch."""
        value, correct = self.compute_loss(inputs, dropout_masks)
        self.optimizer.zero_grad()
        value.backward()
        for parameter in self.transformer.parameters():
            if parameter.grad is None:  # of a head without a loss: Adam would skip it, but its moments decay
                parameter.grad = torch.zeros_like(parameter)
        self.optimizer.step()
        self.schedule.step()
        self.steps += 1
        counted = (inputs["labels"] >= 0).sum() if "labels" in inputs else 0
        return Outcome(value.item(), int(correct), int(counted))

    def moments(self) -> Moments:
        """Return the moments of Adam."""
        config, parameters = self.transformer.config, dict(self.transformer.named_parameters())
        moments = []
        for key in ("exp_avg", "exp_avg_sq"):
            state = self.optimizer.state
            tensors = {name: state[tensor].get(key, torch.zeros_like(tensor)) for name, tensor in parameters.items()}
            moments.append(weights.to_canonical(config, tensors))
        return Moments(self.steps, *moments)

    def _resume(self, plan: Plan, moments: Moments) -> None:
        config, parameters = self.transformer.config, dict(self.transformer.named_parameters())
        any_parameter = next(iter(parameters.values()))
        placement = str(any_parameter.device), any_parameter.dtype
        first = weights.to_native(config, moments.first, *placement)
        second = weights.to_native(config, moments.second, *placement)
        for name, parameter in parameters.items():
            steps = torch.tensor(float(moments.steps), device=parameter.device)
            state = {"exp_avg": contiguous(first[name]), "exp_avg_sq": contiguous(second[name])}
            self.optimizer.state[parameter] = {"step": steps, **state}
        self.steps = moments.steps
        self.schedule.last_epoch = moments.steps
        self.optimizer.param_groups[0]["lr"] = plan.rate_at(moments.steps)
