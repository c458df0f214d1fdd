"""PyTorch modules as arms, and ``torch.nn.TransformerEncoder`` as one, with its fast path for inference."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from triglot.bench.run.arms import PLAN
from triglot.bench.run.cases import Case
from triglot.impls import pytorch as _initialized  # noqa: F401 (it makes the first calls of PyTorch safe, for every arm)
from triglot.parity.output_names import name_first_step, name_gradients
from triglot.shared.arrays import Array
from triglot.shared.checkpoint import Checkpoint
from triglot.shared.inputs import EncoderBatch
from triglot.shared.porting.dialects.stock_transformer import TORCH_LAYER
from triglot.shared.training.plan import BETAS, EPSILON

from .tables import encoder_table

_TABLE = encoder_table("torch.nn", "encoder.layers", TORCH_LAYER, transposed=True)


ToCanonical = Callable[[Mapping[str, Array]], dict[str, Array]]


class TorchArm:
    """A module and its batches.

    ``run`` takes what ``inputs_of`` makes of a batch, and returns "output" (B, S, D), and "pooler" (B, D) if the model
    has one.
    ``to_canonical`` takes an array for each parameter of the module, and returns them under the canonical names.
    """

    def __init__(
        self,
        module: nn.Module,
        run: Callable[[Any], dict[str, Tensor]],
        inputs_of: Callable[[EncoderBatch], Any],
        case: Case,
        batches: Sequence[EncoderBatch],
        to_canonical: ToCanonical,
    ) -> None:
        self.run, self.inputs_of, self.to_canonical = run, inputs_of, to_canonical
        self.device, self.workload = case.cell.device, case.cell.workload
        self.compute = {
            "forward": self._forward,
            "forward+backward": self._gradients,
            "training": self._step,
        }[self.workload]
        self.use(batches)
        self.parameters = dict(module.named_parameters())
        if self.workload == "training":  # an optimizer imports PyTorch's compiler, which takes 1.5 s
            # Fused, as in Triglot's own training, so that the encoders are compared and not two kinds of Adam.
            self.optimizer = torch.optim.Adam(module.parameters(), lr=PLAN.rate, betas=BETAS, eps=EPSILON, fused=True)

    def use(self, batches: Sequence[EncoderBatch]) -> None:
        """Compute these batches from now on."""
        self.inputs = [self.inputs_of(batch) for batch in batches]
        self.targets = [
            tuple(torch.from_numpy(array.copy()).to(self.device) for array in (batch.valid, batch.teacher))
            for batch in batches
            if batch.teacher is not None
        ]

    def call(self) -> list[Any]:
        """Compute every batch."""
        with torch.inference_mode(self.workload == "forward"):
            return [self.compute(number) for number in range(len(self.inputs))]

    def wait(self, results: list[Any]) -> None:
        """Wait until the results are finished."""
        if self.device == "cuda":
            torch.cuda.synchronize()

    def outputs(self, results: list[Any]) -> Mapping[str, Array]:
        """Return what the first call returned for the first batch."""
        if self.workload == "forward":
            return {name: _array(value.float()) for name, value in results[0].items()}
        if self.workload == "forward+backward":
            loss, gradients = results[0]
            return name_gradients(float(loss), self.to_canonical(self._arrays(gradients)))
        state = self.optimizer.state
        first = {name: state[tensor].get("exp_avg") for name, tensor in self.parameters.items()}
        moments, weights = (self.to_canonical(self._arrays(tensors)) for tensors in (first, self.parameters))
        return name_first_step(results[0], moments, weights)

    def _forward(self, number: int) -> dict[str, Tensor]:
        return self.run(self.inputs[number])

    def _loss(self, number: int) -> Tensor:
        valid, teacher = self.targets[number]
        difference = torch.where(valid[:, :, None], self.run(self.inputs[number])["output"] - teacher, 0.0)
        return difference.square().sum() / (valid.sum() * teacher.shape[-1])

    def _gradients(self, number: int) -> tuple[Tensor, dict[str, Tensor]]:
        value = self._loss(number)
        gradients = torch.autograd.grad(value, list(self.parameters.values()), materialize_grads=True)
        return value, dict(zip(self.parameters, gradients, strict=True))

    def _step(self, number: int) -> float:
        value = self._loss(number)
        self.optimizer.zero_grad()
        value.backward()
        self.optimizer.step()
        return value.item()

    def _arrays(self, tensors: Mapping[str, Tensor | None]) -> dict[str, Array]:
        """Return the tensors as arrays, with zeros for parameters that the loss does not read."""
        return {
            name: np.zeros(tuple(self.parameters[name].shape), np.float32) if tensor is None else _array(tensor)
            for name, tensor in tensors.items()
        }


def _array(tensor: Tensor) -> Array:
    return tensor.detach().cpu().numpy()


class Encoder(nn.Module):
    """Embeddings, a norm, and PyTorch's own encoder."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        super().__init__()
        config, tensors = checkpoint.config, checkpoint.tensors
        size = config.hidden_size
        self.offset = config.position_offset
        self.token = nn.Embedding(config.source_vocabulary, size)
        self.position = nn.Embedding(len(tensors["embeddings.position.weight"]), size)
        self.segment = nn.Embedding(config.segments, size) if config.segments else None
        self.norm = nn.LayerNorm(size, config.norm_eps)
        layer = nn.TransformerEncoderLayer(
            size,
            config.heads,
            config.feed_forward_size,
            dropout=0.0,
            activation="gelu",
            layer_norm_eps=config.norm_eps,
            batch_first=True,
        )
        self.encoder = nn.TransformerEncoder(layer, config.layers)
        self.pooler = nn.Linear(size, size) if "pooler" in config.heads_on_top else None
        arrays = _TABLE.from_canonical(checkpoint)
        self.load_state_dict({name: torch.from_numpy(array.astype(np.float32)) for name, array in arrays.items()})

    def forward(self, ids: Tensor, segments: Tensor | None, padding: Tensor) -> dict[str, Tensor]:
        """ids, segments: (B, S). padding: bool (B, S), True = hidden. Returns "output", and "pooler" if any."""
        x = self.token(ids) + self.position(torch.arange(ids.shape[1], device=ids.device) + self.offset)
        if self.segment is not None:
            x = x + self.segment(segments)
        x = self.encoder(self.norm(x), src_key_padding_mask=padding)
        outputs = {"output": x}
        if self.pooler is not None:
            outputs["pooler"] = torch.tanh(self.pooler(x[:, 0]))
        return outputs


def prepare(checkpoint: Checkpoint, case: Case, batches: Sequence[EncoderBatch]) -> TorchArm:
    """Build ``Encoder`` and its inputs."""
    device, config = case.cell.device, checkpoint.config
    model = Encoder(checkpoint).to(device, getattr(torch, case.cell.dtype)).eval()

    def inputs_of(batch: EncoderBatch) -> tuple[Tensor | None, ...]:
        arrays = batch.source, batch.segment_ids, ~batch.valid
        return tuple(None if array is None else torch.from_numpy(array).to(device) for array in arrays)

    def to_canonical(state: Mapping[str, Array]) -> dict[str, Array]:
        return _TABLE.to_canonical(config, state)

    return TorchArm(model, lambda tensors: model(*tensors), inputs_of, case, batches, to_canonical)
