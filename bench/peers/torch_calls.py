"""What the peers in PyTorch share: how a stock module is run forward, derived, and trained."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from triglot.bench.run.arms import PLAN
from triglot.bench.run.cases import Case
from triglot.impls import pytorch as _woken  # noqa: F401 (what it does for PyTorch's first calls is for every arm)
from triglot.parity.output_names import name_first_step, name_gradients
from triglot.shared.arrays import Array
from triglot.shared.inputs import EncoderBatch
from triglot.shared.training.plan import BETAS, EPSILON

Canonical = Callable[[Mapping[str, Array]], dict[str, Array]]


class Calls:
    """The calls of a module on several batches, as one.

    ``run``: from the inputs of a batch to {"output": (B, S, D)}, and "pooler" (B, D) if there is one. ``canonical``:
    one array for each parameter under its name in the module, by the canonical names.
    """

    def __init__(
        self,
        module: nn.Module,
        run: Callable[[Any], dict[str, Tensor]],
        inputs: Sequence[Any],
        case: Case,
        batches: Sequence[EncoderBatch],
        canonical: Canonical,
    ) -> None:
        self.module, self.run, self.inputs, self.canonical = module, run, inputs, canonical
        self.device, self.workload = case.cell.device, case.cell.workload
        self.compute = {
            "forward": self._forward,
            "forward+backward": self._gradients,
            "training": self._step,
        }[self.workload]
        self.taught = [
            tuple(torch.from_numpy(array.copy()).to(self.device) for array in (batch.valid, batch.teacher))
            for batch in batches
            if batch.teacher is not None
        ]
        self.parameters = dict(module.named_parameters())
        if self.workload == "training":  # it imports PyTorch's compiler, 1.5 s that others do without
            self.optimizer = torch.optim.Adam(module.parameters(), lr=PLAN.rate, betas=BETAS, eps=EPSILON)

    def call(self) -> list[Any]:
        """Compute every batch."""
        with torch.inference_mode(self.workload == "forward"):
            return [self.compute(number) for number in range(len(self.inputs))]

    def wait(self, results: list[Any]) -> None:
        """Wait until they are there."""
        if self.device == "cuda":
            torch.cuda.synchronize()

    def outputs(self, results: list[Any]) -> Mapping[str, Array]:
        """What a call returned, of the first batch."""
        if self.workload == "forward":
            return {name: _array(value.float()) for name, value in results[0].items()}
        if self.workload == "forward+backward":
            loss, gradients = results[0]
            return name_gradients(float(loss), self.canonical(self._arrays(gradients)))
        state = self.optimizer.state
        first = {name: state[tensor].get("exp_avg") for name, tensor in self.parameters.items()}
        found = self.canonical(self._arrays(first)), self.canonical(self._arrays(self.parameters))
        return name_first_step(results[0], *found)

    def _forward(self, number: int) -> dict[str, Tensor]:
        return self.run(self.inputs[number])

    def _loss(self, number: int) -> Tensor:
        valid, teacher = self.taught[number]
        difference = torch.where(valid[:, :, None], self.run(self.inputs[number])["output"] - teacher, 0.0)
        return difference.square().sum() / (valid.sum() * teacher.shape[-1])

    def _gradients(self, number: int) -> tuple[Tensor, dict[str, Tensor]]:
        value = self._loss(number)
        found = torch.autograd.grad(value, list(self.parameters.values()), materialize_grads=True)
        return value, dict(zip(self.parameters, found, strict=True))

    def _step(self, number: int) -> float:
        value = self._loss(number)
        self.optimizer.zero_grad()
        value.backward()
        self.optimizer.step()
        return value.item()

    def _arrays(self, tensors: Mapping[str, Tensor | None]) -> dict[str, Array]:
        """The tensors as arrays; zeros for what the loss does not read."""
        return {
            name: np.zeros(tuple(self.parameters[name].shape), np.float32) if tensor is None else _array(tensor)
            for name, tensor in tensors.items()
        }


def _array(tensor: Tensor) -> Array:
    return tensor.detach().cpu().numpy()
