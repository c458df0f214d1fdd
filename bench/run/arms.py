"""The arms: Triglot's implementations in every mode, and the stock encoders of the frameworks.

An arm names its builders, ``module:function``, which only worker processes import. A builder takes a checkpoint, a
case and the batches of a call, or with workload "embed" its texts, and returns a ``Prepared``.
"""

import importlib
import importlib.util
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from triglot import impls
from triglot.parity.output_names import GENERATED, IDS, is_after_end, name_first_step, name_gradients, name_outputs
from triglot.shared.arrays import Array
from triglot.shared.checkpoint import Checkpoint
from triglot.shared.checkpoint.training_state import DTYPES as TRAINING_DTYPES
from triglot.shared.choices import DEVICES, DTYPES, FRAMEWORKS, MODES, WITH_GRADIENTS
from triglot.shared.errors import FrameworkError, suggestion
from triglot.shared.inputs import Batch
from triglot.shared.inputs.packing import can_pack
from triglot.shared.model.config import ModelConfig
from triglot.shared.training.plan import Plan

from .cases import Case
from .parts import Part

# The training step that is timed. At this rate hundreds of steps on the same batch stay stable.
PLAN = Plan(rate=1e-4, dropout=False)


class Prepared(Protocol):
    """A model with its inputs, ready to be timed."""

    def use(self, parts: Any, /) -> None:
        """Compute these batches, or texts, from now on."""
        ...

    def call(self) -> Any:
        """Compute all of them. In JAX and on a GPU, the results may not be finished yet."""
        ...

    def wait(self, results: Any) -> None:
        """Wait until the results are finished."""
        ...

    def outputs(self, results: Any) -> Mapping[str, Array]:
        """Return what the first call returned for the first batch, under the names of ``parity/output_names.py``."""
        ...


@dataclass(frozen=True)
class Arm:
    """One way to compute the model.

    ``builder`` is for all workloads but "embed", and ``text_builder`` for that one; an empty one means that the arm
    does not do such work. ``packages`` must be installed, and are imported in the order given. ``dtypes`` lists the
    number formats for each supported device. A ``peer`` is not part of Triglot; its ``builder``, if any, computes only
    BERT-like encoders.
    """

    framework: str
    mode: str
    builder: str
    packages: tuple[str, ...] = ()
    dtypes: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: dict.fromkeys(DEVICES, DTYPES))
    peer: bool = False
    text_builder: str = ""

    def builder_of(self, workload: str) -> str:
        """Return the builder for a workload; empty if the arm does not do such work."""
        return self.text_builder if workload == "embed" else self.builder

    def import_builder(self, workload: str = "forward") -> Callable[[Checkpoint, Case, Sequence[Part]], Prepared]:
        """Import the packages and then the builder for a workload."""
        for package in self.packages:
            importlib.import_module(package)
        module, name = self.builder_of(workload).split(":")
        return getattr(importlib.import_module(module), name)

    def why_unsupported(  # noqa: PLR0911 (one return per reason)
        self, config: ModelConfig, workload: str, dtype: str, device: str
    ) -> str | None:
        """Return why the arm cannot do this work; None if nothing is known to prevent it."""
        if missing := [name for name in self.packages if importlib.util.find_spec(name) is None]:
            return f"{', '.join(missing)} not installed"
        if not self.builder_of(workload):
            return "does not turn texts into vectors" if workload == "embed" else "only turns texts into vectors"
        if (workload, dtype) == ("embed", "float64"):
            return "embed returns float32 vectors, so float64 is unsupported"
        if workload == "generation" and config.kind != "encoder_decoder":
            return f"a model of kind {config.kind} does not generate"
        if workload == "generation" and None in (config.start_id, config.end_id, config.pad_id):
            return "the model has no start, end and pad id, so it does not generate"
        is_stock_encoder = self.peer and workload != "embed"
        if is_stock_encoder and (workload == "generation" or not _is_bert_like(config)):
            return "computes only BERT-like encoders"
        if is_stock_encoder and "transformers" in self.packages and not _is_bert(config):
            return "computes only BERT itself, not RoBERTa or DistilBERT"
        if workload in WITH_GRADIENTS and (reason := self._why_not_trained(config, dtype)):
            return reason
        if (self.framework, self.mode) == ("jax", "compiled") and not can_pack(config, device, dtype):
            return "in JAX, jit and compiled are the same for this model: see triglot-jax-jit"
        if device not in self.dtypes:
            return f"does not run on {device}"
        if dtype not in self.dtypes[device]:
            return f"does not support {dtype} on {device}"
        if workload == "generation" and (self.framework, device, dtype) == ("paddle", "cpu", "bfloat16"):
            return "supports bfloat16 on cpu only in its inference engine, which does not generate"
        return None

    def compiles_cpp(self, config: ModelConfig, workload: str, dtype: str, device: str) -> bool:
        """Return whether PyTorch's compiler may translate the arm to C++."""
        packs = workload in {"compiled": ("forward", "embed"), "jit": WITH_GRADIENTS}.get(self.mode, ())
        is_packed = not self.peer and packs and can_pack(config, device, dtype)
        may_lack_kernels = dtype == "bfloat16"  # only a worker, which imports PyTorch, can find out
        may_compile = not is_packed or may_lack_kernels
        return (self.framework, device) == ("torch", "cpu") and self.mode != "eager" and may_compile

    def _why_not_trained(self, config: ModelConfig, dtype: str) -> str | None:
        if config.kind == "attention" or (config.kind == "encoder_decoder" and not config.heads_on_top):
            return f"a model of kind {config.kind} without a head has no loss"
        if self.mode == "compiled":
            return "is compiled with its weights, so it does not train"
        if (self.framework, self.mode) == ("jax", "eager"):
            return "JAX compiles training in every mode: see triglot-jax-jit"
        return None if dtype in TRAINING_DTYPES else f"trains only in {' and '.join(TRAINING_DTYPES)}"


def _is_bert_like(config: ModelConfig) -> bool:
    """Return whether the stock encoders compute this model: BERT's embeddings, post-norm, exact GELU, all biases."""
    steps = (config.kind, config.pre_process, config.post_process, config.final_process, config.norm)
    return (
        steps == ("encoder", "", "dan", "", "layer_norm")
        and config.activation == "gelu"
        and config.attention_output_activation == "none"
        and config.pooler_activation == "tanh"
        and all((config.projection_bias, config.output_bias, config.feed_forward_bias, config.norm_bias))
        and (config.positions, config.embedding_process) == ("learned", "nd")
        and not (config.tasks or config.embedding_size or config.embedding_scale)
        and config.hidden_size == config.heads * config.key_size == config.heads * config.value_size
        and set(config.heads_on_top) <= {"pooler"}
    )


def _is_bert(config: ModelConfig) -> bool:
    """Return whether transformers computes a BERT-like encoder as ``BertModel``: with segments, positions from 0."""
    return bool(config.segments) and not (config.position_offset or config.positions_skip_padding)


_PEER_DTYPES: dict[str, tuple[str, ...]] = dict.fromkeys(DEVICES, ("float32", "bfloat16", "float16"))


def _own_arm(framework: str, mode: str) -> Arm:
    dtypes: dict[str, tuple[str, ...]] = dict.fromkeys(DEVICES, DTYPES)
    if framework == "paddle":  # on a CPU, only its inference engine has bfloat16, and nothing has float16
        dtypes["cpu"] = ("float32", "float64", *(["bfloat16"] if mode == "compiled" else []))
    return Arm(
        framework,
        mode,
        f"{__name__}:TriglotArm",
        impls.REQUIRED_MODULES[framework],
        dtypes,
        text_builder="triglot.bench.run.text_arm:triglot_encoder",
    )


def _peer(framework: str, mode: str, builder: str, packages: tuple[str, ...] = (), dtypes: Any = _PEER_DTYPES) -> Arm:
    builder = f"triglot.bench.peers.{builder}"
    return Arm(framework, mode, builder, packages or impls.REQUIRED_MODULES[framework], dtypes, peer=True)


ARMS: dict[str, Arm] = {
    **{f"triglot-{framework}-{mode}": _own_arm(framework, mode) for framework in FRAMEWORKS for mode in MODES},
    "transformers-eager": _peer("torch", "eager", "transformers_bert:eager", ("torch", "transformers")),
    "transformers-sdpa": _peer("torch", "eager", "transformers_bert:sdpa", ("torch", "transformers")),
    "transformers-compiled": _peer("torch", "jit", "transformers_bert:compiled", ("torch", "transformers")),
    "torch-nn": _peer("torch", "eager", "torch_encoder:prepare"),
    "paddle-nn": _peer("paddle", "eager", "paddle_encoder:PaddleArm", dtypes=dict.fromkeys(DEVICES, ("float32",))),
    "paddle-nn-compiled": _peer("paddle", "compiled", "paddle_encoder:DeployedArm", dtypes={"cpu": ("float32",)}),
    "nnx": _peer("jax", "jit", "nnx_encoder:NnxArm"),
    "onnxruntime": _peer(
        "onnxruntime",
        "compiled",
        "onnx_session:OnnxArm",
        ("torch", "transformers", "onnx", "onnxruntime"),
        {"cpu": ("float32",)},
    ),
    "openvino": _peer(
        "openvino",
        "compiled",
        "openvino_model:OpenVinoArm",
        ("torch", "onnx", "onnxscript", "openvino"),
        {"cpu": ("float32", "bfloat16")},
    ),
    "ctranslate2": _peer(
        "ctranslate2",
        "compiled",
        "ctranslate2_encoder:CTranslate2Arm",
        # If torch is imported first, short calls of CTranslate2 take 1.8 times as long.
        ("ctranslate2", "transformers", "torch"),
        {"cpu": ("float32",)},
    ),
    "sentence-transformers": Arm(
        "torch",
        "eager",
        builder="",
        packages=("torch", "sentence_transformers"),
        dtypes=_PEER_DTYPES,
        peer=True,
        text_builder="triglot.bench.peers.sentence_encoder:prepare",
    ),
}


def register(name: str, arm: Arm) -> None:
    """Add an arm to the benchmark. A report that has this arm can be read only while it is registered."""
    ARMS[name] = arm


def quick_arms(configs: Sequence[ModelConfig], workload: str, dtypes: Sequence[str], device: str) -> list[str]:
    """Return the arms of ``--quick``: the baseline, the fastest of each framework, and the best-known peers."""

    def fastest(framework: str) -> str:
        modes = ["compiled", "jit"] if workload in ("forward", "embed") else ["jit"]
        work = [(config, workload, dtype, device) for config in configs for dtype in dtypes]

        def able(name: str) -> int:
            return sum(ARMS[name].why_unsupported(*each) is None for each in work)

        return max((f"triglot-{framework}-{mode}" for mode in modes), key=able)  # of equals, the first

    own = [fastest(framework) for framework in FRAMEWORKS]
    peers = {"forward": ["transformers-sdpa", "onnxruntime"], "embed": ["sentence-transformers"]}
    return ["triglot-torch-eager", *own, *peers.get(workload, ["transformers-sdpa"])]


def select(
    frameworks: Sequence[str], modes: Sequence[str], names: Sequence[str], workload: str = "forward"
) -> list[str]:
    """Return the arms with these frameworks, modes and names. An empty list selects all that do such work.

    Raises:
        FrameworkError: a name is unknown, or no arm is left.
    """
    for name in names:
        if name not in ARMS:
            raise FrameworkError(
                f"unknown arm {name!r}; {suggestion(name, list(ARMS))}expected one of {', '.join(ARMS)}"
            )
    selected = [
        name
        for name, arm in ARMS.items()
        if (not frameworks or arm.framework in frameworks)
        and (not modes or arm.mode in modes)
        and (name in names if names else arm.builder_of(workload))
    ]
    if not selected:
        wanted = " and ".join(" or ".join(part) for part in (frameworks, modes, names) if part)
        raise FrameworkError(f"no arm is {wanted}; select fewer options, or one of {', '.join(ARMS)}")
    return selected


class TriglotArm:
    """A model of Triglot and its batches."""

    def __init__(self, checkpoint: Checkpoint, case: Case, batches: Sequence[Batch]) -> None:
        arm, cell = ARMS[case.arm], case.cell
        self.model = impls.build(arm.framework, checkpoint, device=cell.device, dtype=cell.dtype, mode=arm.mode)
        self.workload = cell.workload
        if cell.workload == "training":
            self.model.begin_training(PLAN)
        self.use(batches)

    def use(self, batches: Sequence[Batch]) -> None:
        """Compute these batches from now on."""
        self.calls = [self.model.prepare(self.workload, batch) for batch in batches]

    def call(self) -> list[Any]:
        """Compute every batch."""
        return [call() for call in self.calls]

    def wait(self, results: list[Any]) -> None:
        """Wait until the results are finished."""
        self.model.wait(results)

    def outputs(self, results: list[Any]) -> Mapping[str, Array]:
        """Return the results of the first batch, and the number of generated tokens in all batches."""
        if self.workload == "generation":
            ids = [self.model.to_numpy(target) for target in results]
            end_id = self.model.config.special_ids[1]
            return {IDS: ids[0], GENERATED: np.array(sum(count_generated(target, end_id) for target in ids))}
        if self.workload == "training":
            return name_first_step(results[0].loss, self.model.moments().first, self.model.weights())
        if self.workload == "forward+backward":
            loss, gradients = results[0]
            return name_gradients(float(loss), self.model.to_canonical(gradients))
        output, heads = results[0]
        return {name: self.model.to_numpy(value) for name, value in name_outputs(output, heads).items()}


def count_generated(ids: Array, end_id: int) -> int:
    """Return the number of generated tokens in targets (B, T): all but the first, up to the end of each."""
    return int((~is_after_end(ids, end_id))[:, 1:].sum())
