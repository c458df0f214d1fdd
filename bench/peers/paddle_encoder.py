"""``paddle.nn.TransformerEncoder`` as an arm: as written, and in Paddle's inference engine."""

import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import paddle
from paddle import Tensor, inference, nn
from paddle.static import InputSpec

from triglot.bench.run.arms import PLAN
from triglot.bench.run.cases import Case
from triglot.parity.output_names import name_first_step, name_gradients
from triglot.shared.arrays import Array
from triglot.shared.checkpoint import Checkpoint
from triglot.shared.inputs import EncoderBatch
from triglot.shared.porting.dialects.stock_transformer import PADDLE_LAYER
from triglot.shared.training.plan import BETAS, EPSILON

from .tables import encoder_table

_TABLE = encoder_table("paddle.nn", "encoder.layers", PADDLE_LAYER, transposed=False)


class Encoder(nn.Layer):
    """Embeddings, a norm, and Paddle's own encoder."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        super().__init__()
        config, tensors = checkpoint.config, checkpoint.tensors
        self.offset = config.position_offset
        self.token = nn.Embedding(config.source_vocabulary, config.hidden_size)
        self.position = nn.Embedding(len(tensors["embeddings.position.weight"]), config.hidden_size)
        self.segment = nn.Embedding(config.segments, config.hidden_size) if config.segments else None
        self.norm = nn.LayerNorm(config.hidden_size, config.norm_eps)
        layer = nn.TransformerEncoderLayer(
            config.hidden_size,
            config.heads,
            config.feed_forward_size,
            dropout=0.0,
            activation="gelu",
            layer_norm_eps=config.norm_eps,
        )
        self.encoder = nn.TransformerEncoder(layer, config.layers)
        pooler = "pooler" in config.heads_on_top
        self.pooler = nn.Linear(config.hidden_size, config.hidden_size) if pooler else None
        # Paddle accepts arrays, although its stubs do not say so.
        state: Any = {name: array.astype(np.float32) for name, array in _TABLE.from_canonical(checkpoint).items()}
        missing, unknown = self.set_state_dict(state)
        assert not missing, missing
        assert not unknown, unknown

    def forward(self, ids: Tensor, segments: Tensor | None, hidden: Tensor) -> dict[str, Tensor]:
        """ids, segments: (B, S). hidden: (B, 1, 1, S), added to the scores. Returns "output", and "pooler" if any."""
        x = self.token(ids) + self.position(paddle.arange(ids.shape[1]) + self.offset)
        if self.segment is not None:
            x = x + self.segment(segments)
        x = self.encoder(self.norm(x), hidden)
        outputs = {"output": x}
        if self.pooler is not None:
            outputs["pooler"] = paddle.tanh(self.pooler(x[:, 0]))
        return outputs


class PaddleArm:
    """The encoder and its batches."""

    def __init__(self, checkpoint: Checkpoint, case: Case, batches: Sequence[EncoderBatch]) -> None:
        paddle.set_device("gpu" if case.cell.device == "cuda" else "cpu")
        self.on_cpu = case.cell.device == "cpu"
        self.config, self.workload = checkpoint.config, case.cell.workload
        self.compute = {
            "forward": self._forward,
            "forward+backward": self._gradients,
            "training": self._step,
        }[self.workload]
        self.model = Encoder(checkpoint)
        self.model.eval()
        self.optimizer = paddle.optimizer.Adam(PLAN.rate, *BETAS, EPSILON, parameters=self.model.parameters())
        self.use(batches)

    def use(self, batches: Sequence[EncoderBatch]) -> None:
        """Compute these batches from now on."""
        self.targets = [
            tuple(map(paddle.to_tensor, (batch.valid, batch.teacher))) for batch in batches if batch.teacher is not None
        ]
        self.inputs = [
            (
                paddle.to_tensor(batch.source),
                None if batch.segment_ids is None else paddle.to_tensor(batch.segment_ids),
                # This is added to the scores, as in Paddle's documentation.
                paddle.to_tensor(np.where(batch.valid, np.float32(0), np.float32(-1e9))[:, None, None, :]),
            )
            for batch in batches
        ]

    def call(self) -> list[Any]:
        """Compute every batch."""
        with paddle.set_grad_enabled(self.workload != "forward"):
            return [self.compute(number) for number in range(len(self.inputs))]

    def wait(self, results: list[Any]) -> None:
        """Wait until the results are finished."""
        if not self.on_cpu:
            paddle.device.synchronize()

    def outputs(self, results: list[Any]) -> Mapping[str, Array]:
        """Return what the first call returned for the first batch."""
        if self.workload == "forward":
            return {name: value.numpy() for name, value in results[0].items()}
        if self.workload == "forward+backward":
            loss, gradients = results[0]
            return name_gradients(float(loss), self._canonical(gradients))
        state, parameters = self.optimizer.state_dict(), self.model.state_dict()
        first = {name: state.get(f"{tensor.name}_moment1_0") for name, tensor in parameters.items()}
        return name_first_step(results[0], self._canonical(first), self._canonical(parameters))

    def _forward(self, number: int) -> dict[str, Tensor]:
        return self.model(*self.inputs[number])

    def _loss(self, number: int) -> Tensor:
        valid, teacher = self.targets[number]
        difference = self._forward(number)["output"] - teacher
        difference = paddle.where(valid[:, :, None], difference, paddle.zeros_like(difference))
        return difference.square().sum() / (valid.sum() * teacher.shape[-1]).astype(difference.dtype)

    def _gradients(self, number: int) -> tuple[Tensor, dict[str, Tensor | None]]:
        value, parameters = self._loss(number), self.model.state_dict()
        gradients = paddle.grad(value, list(parameters.values()), allow_unused=True)
        return value, dict(zip(parameters, gradients, strict=True))

    def _step(self, number: int) -> float:
        value = self._loss(number)
        self.optimizer.clear_grad()
        value.backward()
        self.optimizer.step()
        return float(value)

    def _canonical(self, tensors: Mapping[str, Tensor | None]) -> dict[str, Array]:
        """Return arrays under the canonical names, with zeros for parameters that the loss does not read."""
        parameters = self.model.state_dict()
        arrays = {
            name: np.zeros(parameters[name].shape, np.float32) if tensor is None else tensor.numpy()
            for name, tensor in tensors.items()
        }
        return _TABLE.to_canonical(self.config, arrays)


class DeployedArm(PaddleArm):
    """The encoder in the inference engine with oneDNN, as Paddle's documentation deploys a model on a CPU."""

    def __init__(self, checkpoint: Checkpoint, case: Case, batches: Sequence[EncoderBatch]) -> None:
        super().__init__(checkpoint, case, batches)
        specs = [
            tensor if tensor is None else InputSpec([None] * tensor.ndim, tensor.dtype) for tensor in self.inputs[0]
        ]
        with tempfile.TemporaryDirectory(prefix="triglot-") as folder:
            paddle.jit.save(self.model, f"{folder}/encoder", input_spec=specs)
            config = inference.Config(f"{folder}/encoder.json", f"{folder}/encoder.pdiparams")
            config.disable_glog_info()
            config.enable_mkldnn()
            config.set_cpu_math_library_num_threads(case.cell.threads)
            self.predictor = inference.create_predictor(config)
        # Looked up once, because looking them up takes longer than using them.
        self.input_handles = [self.predictor.get_input_handle(name) for name in self.predictor.get_input_names()]
        self.output_handles = [self.predictor.get_output_handle(name) for name in self.predictor.get_output_names()]

    def outputs(self, results: list[Any]) -> Mapping[str, Array]:
        """Return what the first call returned for the first batch."""
        return results[0]

    def _forward(self, number: int) -> dict[str, Any]:
        given = [tensor for tensor in self.inputs[number] if tensor is not None]
        for handle, tensor in zip(self.input_handles, given, strict=True):
            handle.share_external_data(tensor)
        self.predictor.run()
        # The engine orders outputs by the names that ``Encoder.forward`` gives them. Not every model has a pooler.
        outputs = (handle.copy_to_cpu() for handle in self.output_handles)
        return dict(zip(("output", "pooler"), outputs, strict=False))
