"""The programs of a model, run as they are written or compiled.

"eager": operation by operation. "jit": compiled by the framework at the first call; weights may change, and gradients
flow. "compiled": compiled for deployment, the fastest mode; weights must not change afterwards. For encoders on a CPU,
the frameworks have other programs, which skip padding: ``encode`` and ``run`` in mode "compiled", the loss in "jit".

Every program takes the arrays of a batch by name (``Batch.arrays``).

Shapes: B batch, S source length, T target length, D hidden size.
"""

import copy
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import paddle
from paddle import Tensor, inference, nn
from paddle.static import InputSpec
from paddle.utils import flatten, map_structure, pack_sequence_as

from triglot.shared.environment import threads
from triglot.shared.errors import FrameworkError
from triglot.shared.model.probe import Probe

from . import masks
from .transformer import Transformer


def encode(transformer: Transformer, inputs: Mapping[str, Tensor]) -> Tensor:
    """Return the output of the encoder, (B, S, D)."""
    return transformer.encode(inputs["source"], inputs["valid"], inputs.get("segment_ids"), inputs.get("task_ids"))


def run(transformer: Transformer, inputs: Mapping[str, Tensor], probe: Probe | None = None) -> tuple[Tensor, Any]:
    """Return output and heads; for a model that is attention alone, output and averaged weights."""
    if transformer.config.kind == "attention":
        allowed = masks.combine(masks.padding(inputs["valid"]), inputs["allowed"])
        vectors = inputs["query"], inputs["key"], inputs["value"]
        return transformer.attend(*vectors, allowed, inputs["bias"], probe)
    source = inputs["source"], inputs["valid"], inputs.get("segment_ids"), inputs.get("task_ids")
    return transformer(*source, inputs.get("target"), inputs.get("target_valid"), probe)


def trace(
    transformer: Transformer, inputs: Mapping[str, Tensor], replacements: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """Return every named value. The model continues with the replacement of a value, if there is one."""
    probe = Probe(replacements, copy=paddle.clone)
    run(transformer, inputs, probe)
    return probe.record


def in_mode(mode: str, program: Callable[..., Any], transformer: Transformer) -> Callable[..., Any]:
    """Return ``program`` bound to ``transformer``, compiled if the mode says so.

    Raises:
        FrameworkError: the framework lacks a compiler, or this mode.
    """
    if mode == "eager":
        return partial(program, transformer)
    # The inference engine returns only the outputs that it was saved with, so ``trace`` is compiled by ``to_static``.
    if mode == "compiled" and program is not trace:
        return _Deployed(program, transformer).run
    layer = _Program(program, transformer)
    layer.forward = paddle.jit.to_static(layer.forward, full_graph=True)  # the layer has to outlive its compiled method
    return layer


class _Program(nn.Layer):
    """A program as a layer, because ``to_static`` compiles only methods of layers."""

    def __init__(self, program: Callable[..., Any], transformer: Transformer) -> None:
        super().__init__()
        self.program = program
        self.transformer = transformer

    # By default, Paddle rewrites the source of the model, which takes seconds for each shape. No program needs that:
    # none has an ``if`` or a loop that depends on a tensor. None may read a varying size from ``shape``, which has -1
    # in its place.
    @paddle.jit.not_to_static
    def forward(self, inputs: dict[str, Tensor], second: dict[str, Tensor] | None = None) -> Any:
        if second is None:
            return self.program(self.transformer, inputs)
        return self.program(self.transformer, inputs, second)


class _Deployed:
    """A program in Paddle's inference engine, the documented way to deploy; on the CPU with oneDNN.

    The engine is built at the first call and serves every shape. On the CPU it takes float32, even for a model in
    bfloat16: it converts to bfloat16 inside, where it has such kernels, most of all for matrix products.

    Raises:
        FrameworkError: the processor has no bfloat16 kernels; the engine would silently compute in float32.
    """

    def __init__(self, program: Callable[..., Any], transformer: Transformer) -> None:
        self.program, self.transformer = program, transformer
        self.dtype = transformer.parameters()[0].dtype
        self.on_cpu = paddle.get_device() == "cpu"
        self.converts = self.dtype == paddle.bfloat16 and self.on_cpu
        if self.converts and not paddle.base.core.supports_bfloat16():
            raise FrameworkError("PaddlePaddle: bfloat16 needs a processor with AVX-512; choose dtype 'float32'")
        self.predictor: inference.Predictor | None = None
        self.structure: Any = None
        # The engine's handles of inputs and outputs. Looking them up takes longer than using them.
        self.inputs: dict[str, Any] = {}
        self.outputs: list[Any] = []

    def flat(self, transformer: Transformer, inputs: Mapping[str, Tensor]) -> Sequence[Tensor]:
        """Return the outputs as the engine does, in a flat list. Called once, when the program is traced."""
        outputs = self.program(transformer, inputs)
        self.structure = map_structure(lambda _: 0, outputs)
        return flatten(outputs)

    def run(self, inputs: Mapping[str, Tensor]) -> Any:
        """Run the program. The engine has one set of inputs and outputs; ``Backend`` lets threads take turns."""
        if self.converts:
            inputs = {name: _cast(tensor, paddle.float32) for name, tensor in inputs.items()}
        if self.predictor is None:
            predictor = self._build(inputs)
            self.inputs = {name: predictor.get_input_handle(name) for name in predictor.get_input_names()}
            self.outputs = [predictor.get_output_handle(name) for name in predictor.get_output_names()]
            self.predictor = predictor
        for name, handle in self.inputs.items():
            handle.share_external_data(inputs[name])
        self.predictor.run()
        to_tensor = paddle.from_dlpack if self.on_cpu else paddle.to_tensor  # from_dlpack copies nothing
        outputs = [_cast(to_tensor(handle.copy_to_cpu()), self.dtype) for handle in self.outputs]
        return pack_sequence_as(self.structure, outputs)

    def _build(self, inputs: Mapping[str, Tensor]) -> inference.Predictor:
        # The engine refuses an input that nothing reads.
        names = [name for name in inputs if name not in ("labels", "teacher")]
        specs = {name: InputSpec(_sizes(inputs[name]), inputs[name].dtype, name) for name in names}
        transformer = self.transformer
        if self.converts:
            transformer = copy.deepcopy(transformer).to(dtype=paddle.float32)
        layer = _Program(self.flat, transformer)
        to_static: Any = paddle.jit.to_static  # its stubs do not allow a dictionary of inputs
        layer.forward = to_static(layer.forward, input_spec=[specs], full_graph=True)
        with tempfile.TemporaryDirectory(prefix="triglot-") as folder:
            _trace(layer.forward)
            paddle.jit.save(layer, f"{folder}/program")
            config = inference.Config(f"{folder}/program.json", f"{folder}/program.pdiparams")
            config.disable_glog_info()
            if self.on_cpu:
                config.disable_gpu()
                if self.dtype == paddle.float64:
                    config.disable_mkldnn()  # it has no float64 kernels
                else:
                    config.enable_mkldnn()
                    config.set_mkldnn_cache_capacity(1)  # otherwise it caches a copy of the reordered weights per shape
                if self.converts:
                    config.enable_mkldnn_bfloat16()
                config.enable_custom_passes(["identity_op_clean_pass"], False)  # dropout would copy its input
                config.set_cpu_math_library_num_threads(threads())
            else:
                config.enable_use_gpu(100, 0)
            return inference.create_predictor(config)


def _trace(static: Any) -> None:
    """Trace a method that ``to_static`` wraps. The program is kept, so ``paddle.jit.save`` does not trace again."""
    try:
        with _without_stacks():
            _ = static.concrete_program
    except Exception:
        # It fails again, but with stacks, so that the message names the line. It has to be in this block, where the
        # first error keeps its unfinished program alive: Paddle tells programs apart by ``id``.
        _ = static.concrete_program


@contextmanager
def _without_stacks() -> Iterator[None]:
    """Enter a context in which Paddle records no Python stack for the operations that it traces.

    Recording them takes about half of the tracing time, and no option of Paddle turns it off. Paddle reads each stack
    with ``traceback.extract_stack``, which respects ``sys.tracebacklimit``. That limit holds for the whole process, so
    other threads print their tracebacks without frames until the context ends.
    """
    before = getattr(sys, "tracebacklimit", None)
    sys.tracebacklimit = 0
    try:
        yield
    finally:
        if before is None:
            del sys.tracebacklimit
        else:
            sys.tracebacklimit = before


def _sizes(tensor: Tensor) -> list[int | None]:
    """Return the sizes of an input, None for those that vary. The size of vectors does not: a norm divides by it."""
    if tensor.ndim == 3 and tensor.is_floating_point():
        return [None, None, tensor.shape[-1]]
    return [None] * tensor.ndim


def _cast(tensor: Tensor, dtype: paddle.dtype) -> Tensor:
    return tensor.astype(dtype) if tensor.dtype != dtype and tensor.is_floating_point() else tensor
