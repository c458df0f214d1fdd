"""How a model is run: as it is written, or compiled.

"eager": operation by operation. "jit": compiled by the framework when it is first called; weights may change, and
gradients flow. "compiled": compiled to be deployed, the fastest there is; the weights are part of it.

Shapes: B batch, S source length, T target length, D hidden size.
"""

import copy
import tempfile
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import paddle
from paddle import Tensor, inference, nn
from paddle.static import InputSpec
from paddle.utils import flatten, pack_sequence_as

from triglot.shared.environment import threads
from triglot.shared.errors import FrameworkError
from triglot.shared.model.probe import Probe

from . import masks
from .transformer import Transformer


def encode(transformer: Transformer, given: Mapping[str, Tensor]) -> Tensor:
    """The output of the encoder, (B, S, D). given: a batch by name."""
    return transformer.encode(given["source"], given["valid"], given.get("segment_ids"), given.get("task_ids"))


def run(transformer: Transformer, given: Mapping[str, Tensor], probe: Probe | None = None) -> tuple[Tensor, Any]:
    """Output and heads, or, of a model that is attention alone, output and averaged weights."""
    if transformer.config.kind == "attention":
        allowed = masks.combine(masks.padding(given["valid"]), given["allowed"])
        vectors = given["query"], given["key"], given["value"]
        return transformer.attend(*vectors, allowed, given["bias"], probe)
    source = given["source"], given["valid"], given.get("segment_ids"), given.get("task_ids")
    return transformer(*source, given.get("target"), given.get("target_valid"), probe)


def trace(
    transformer: Transformer, given: Mapping[str, Tensor], replacements: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """Every named value; the model goes on with what replaces it."""
    probe = Probe(replacements)
    run(transformer, given, probe)
    return probe.record


def in_mode(mode: str, program: Callable[..., Any], transformer: Transformer) -> Callable[..., Any]:
    """``program`` with its first argument given: ``transformer``.

    Raises:
        FrameworkError: there is no compiler, or no such mode.
    """
    if mode == "eager":
        return partial(program, transformer)
    # A predictor has the outputs that it was saved with, so what records every value is compiled otherwise.
    if mode == "compiled" and program is not trace:
        return _Deployed(program, transformer).run
    layer = _Program(program, transformer)
    layer.forward = paddle.jit.to_static(layer.forward, full_graph=True)  # the layer has to outlive what it compiled
    return layer


class _Program(nn.Layer):
    """A function of a transformer as a layer: ``to_static`` compiles only methods of those."""

    def __init__(self, program: Callable[..., Any], transformer: Transformer) -> None:
        super().__init__()
        self.program = program
        self.transformer = transformer

    def forward(self, given: dict[str, Tensor], more: dict[str, Tensor] | None = None) -> Any:
        return self.program(self.transformer, given) if more is None else self.program(self.transformer, given, more)


class _Deployed(nn.Layer):
    """Paddle's inference engine, with oneDNN on the CPU: how its documentation says to deploy. Built when first called.

    One engine serves every shape. On the CPU, what is given to it is float32, also of a model in bfloat16: it converts
    to bfloat16 where it has such kernels, the matrix products first of all.

    Raises:
        FrameworkError: the processor has no such kernels; the engine would go on in float32 without a word.
    """

    def __init__(self, program: Callable[..., Any], transformer: Transformer) -> None:
        super().__init__()
        self.program = program
        self.dtype = transformer.parameters()[0].dtype
        self.converts = self.dtype == paddle.bfloat16 and paddle.get_device() == "cpu"
        if self.converts and not paddle.base.core.supports_bfloat16():
            raise FrameworkError("PaddlePaddle: its bfloat16 takes a processor with AVX-512; choose dtype 'float32'")
        self.transformer = transformer
        self.names: list[str] = []
        self.predictor: inference.Predictor | None = None
        self.outputs: Any = None

    def forward(self, given: dict[str, Tensor]) -> Any:
        return flatten(self.program(self.transformer, given))

    def run(self, given: Mapping[str, Tensor]) -> Any:
        """What ``program`` returns."""
        if self.converts:
            given = {name: _cast(tensor, paddle.float32) for name, tensor in given.items()}
        if self.predictor is None:
            written = self.transformer
            if self.converts:
                self.transformer = copy.deepcopy(written).to(dtype=paddle.float32)
            self.predictor = self._build(given)
            self.outputs = self.program(self.transformer, given)  # the engine has but a list of them
            self.transformer = written
        for name in self.names:
            self.predictor.get_input_handle(name).share_external_data(given[name])
        self.predictor.run()
        handles = map(self.predictor.get_output_handle, self.predictor.get_output_names())
        outputs = [_cast(paddle.to_tensor(handle.copy_to_cpu()), self.dtype) for handle in handles]
        return pack_sequence_as(self.outputs, outputs)

    def _build(self, given: Mapping[str, Tensor]) -> inference.Predictor:
        # The engine refuses an input that nothing reads.
        self.names = [name for name in given if name not in ("labels", "teacher")]
        specs = {name: InputSpec([None] * given[name].ndim, given[name].dtype, name) for name in self.names}
        to_static: Any = paddle.jit.to_static  # its stubs know no dictionary of inputs
        self.forward = to_static(self.forward, input_spec=[specs], full_graph=True)
        with tempfile.TemporaryDirectory(prefix="triglot-") as folder:
            paddle.jit.save(self, f"{folder}/program")
            config = inference.Config(f"{folder}/program.json", f"{folder}/program.pdiparams")
            config.disable_glog_info()
            if paddle.get_device() == "cpu":
                config.disable_gpu()
                if self.dtype == paddle.float64:
                    config.disable_mkldnn()  # it has no kernels for it
                else:
                    config.enable_mkldnn()
                    config.set_mkldnn_cache_capacity(1)  # or reordered weights pile up, a copy for each shape
                if self.converts:
                    config.enable_mkldnn_bfloat16()
                config.set_cpu_math_library_num_threads(threads())
            else:
                config.enable_use_gpu(100, 0)
            return inference.create_predictor(config)


def _cast(tensor: Tensor, dtype: paddle.dtype) -> Tensor:
    return tensor.astype(dtype) if tensor.is_floating_point() else tensor
