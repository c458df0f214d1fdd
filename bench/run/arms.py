"""Who takes part: Triglot's own implementations in every mode, and the stock encoder of each framework.

Each arm has a builder, ``module:function``, that only its worker process imports: it takes a checkpoint, a case and its
batches, and returns a ``Prepared``.
"""

import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from triglot import impls
from triglot.shared.arrays import Array
from triglot.shared.checkpoint.training_state import DTYPES as TRAINING_DTYPES
from triglot.shared.choices import DTYPES
from triglot.shared.errors import FrameworkError
from triglot.shared.model.config import ModelConfig
from triglot.shared.training.plan import Plan

# The training step that is timed. At this rate hundreds of steps on the same batch stay stable.
PLAN = Plan(rate=1e-4, dropout=False)

TRAINS = ("forward+backward", "training")  # the workloads with gradients


class Prepared(Protocol):
    """What is timed: a call that computes, the wait for its results, and the results as arrays by name.

    "output" and the heads that there are; "averaged" of attention alone; of a generation "ids", and how many were
    "generated". Of what trains: "loss", "gradients.NAME" for each tensor and, of a training step, "weights.NAME", all
    of the very first call: the next finds other weights.
    """

    def call(self) -> Any:
        """Compute every batch; in JAX and on a GPU, what this returns may not be there yet."""
        ...

    def wait(self, results: Any) -> None:
        """Wait until it is."""
        ...

    def outputs(self, results: Any) -> Mapping[str, Array]:
        """What a call returned, of the first batch."""
        ...


@dataclass(frozen=True)
class Arm:
    """One way to compute the model.

    ``packages`` have to be installed. ``dtypes``: what it computes in on each device that it runs on. ``peer``: not
    ours; it computes the output of a post-norm encoder alone.
    """

    framework: str
    mode: str
    builder: str
    packages: tuple[str, ...]
    dtypes: Mapping[str, tuple[str, ...]]
    peer: bool = False

    def why_not(  # noqa: PLR0911 (a reason each)
        self, config: ModelConfig, workload: str, dtype: str, device: str
    ) -> str | None:
        """Why the arm cannot take part; None if it can, as far as is known before it is tried."""
        if missing := [name for name in self.packages if importlib.util.find_spec(name) is None]:
            return f"{', '.join(missing)} not installed"
        if workload == "generation" and config.kind != "encoder_decoder":
            return f"an {config.kind} does not generate"
        if workload == "generation" and None in (config.start_id, config.end_id, config.pad_id):
            return "it has no start, end and pad id, so it does not generate"
        if self.peer and (workload == "generation" or not _is_bert(config)):
            return "computes BERTs alone"
        if workload in TRAINS and (why := self._why_not_train(config, dtype)):
            return why
        if device not in self.dtypes:
            return f"does not run on {device} here"
        if dtype not in self.dtypes[device]:
            return f"has no {dtype} here"
        if workload == "generation" and (self.framework, device, dtype) == ("paddle", "cpu", "bfloat16"):
            return "has bfloat16 in its inference engine alone, which does not generate"
        return None

    def compiles_in_cpp(self, device: str) -> bool:
        """Whether PyTorch's compiler makes C++ of it."""
        return (self.framework, device) == ("torch", "cpu") and self.mode != "eager"

    def _why_not_train(self, config: ModelConfig, dtype: str) -> str | None:
        if config.kind == "attention":
            return "attention alone has no loss"
        if self.mode == "compiled":
            return "is compiled with its weights, so it does not train"
        if (self.framework, self.mode) == ("jax", "eager"):
            return "JAX compiles its training in every mode: see triglot-jax-jit"
        return None if dtype in TRAINING_DTYPES else f"trains in {' and '.join(TRAINING_DTYPES)} alone"


def _is_bert(config: ModelConfig) -> bool:
    """Whether the stock encoders compute this model: post-norm, a layer norm, exact GELU, learned positions."""
    given = (config.kind, config.pre_process, config.post_process, config.final_process, config.norm)
    return (
        given == ("encoder", "", "dan", "", "layer_norm")
        and config.activation == "gelu"
        and config.positions == "learned"
        and not config.tasks
        and config.hidden_size == config.heads * config.key_size == config.heads * config.value_size
        and set(config.heads_on_top) <= {"pooler"}
    )


_PACKAGES = {"torch": ("torch",), "paddle": ("paddle",), "jax": ("jax", "flax", "optax")}
_STOCK: dict[str, tuple[str, ...]] = dict.fromkeys(impls.DEVICES, ("float32", "bfloat16", "float16"))


def _floats(framework: str, mode: str) -> dict[str, tuple[str, ...]]:
    """What Triglot's own implementation computes in, by device."""
    if framework != "paddle":
        return dict.fromkeys(impls.DEVICES, DTYPES)
    wide = ("float32", "float64")
    return {"cpu": (*wide, "bfloat16") if mode == "compiled" else wide, "cuda": DTYPES}


ARMS: dict[str, Arm] = {
    **{
        f"triglot-{framework}-{mode}": Arm(
            framework, mode, "triglot.bench.run.triglot_arm:prepare", _PACKAGES[framework], _floats(framework, mode)
        )
        for framework in impls.FRAMEWORKS
        for mode in impls.MODES
        # jit and compiled are the same in JAX.
        if (framework, mode) != ("jax", "compiled")
    },
    **{
        f"transformers-{kind}": Arm(
            "torch",
            mode,
            f"triglot.bench.peers.transformers_bert:{kind}",
            ("torch", "transformers"),
            _STOCK,
            peer=True,
        )
        for kind, mode in (("eager", "eager"), ("sdpa", "eager"), ("compiled", "jit"))
    },
    "torch-nn": Arm("torch", "eager", "triglot.bench.peers.torch_encoder:prepare", ("torch",), _STOCK, peer=True),
    "paddle-nn": Arm(
        "paddle",
        "eager",
        "triglot.bench.peers.paddle_encoder:prepare",
        ("paddle",),
        dict.fromkeys(impls.DEVICES, ("float32",)),
        peer=True,
    ),
    "nnx": Arm("jax", "jit", "triglot.bench.peers.nnx_encoder:prepare", _PACKAGES["jax"], _STOCK, peer=True),
    "onnxruntime": Arm(
        "onnxruntime",
        "compiled",
        "triglot.bench.peers.onnx_session:prepare",
        ("torch", "onnx", "onnxscript", "onnxruntime"),
        {"cpu": ("float32",)},
        peer=True,
    ),
}


def selected(frameworks: Sequence[str], modes: Sequence[str], names: Sequence[str]) -> list[str]:
    """The arms of these frameworks, in these modes, of these names; an empty list leaves the choice open.

    Raises:
        FrameworkError: there is no arm of such a name, or none is left.
    """
    for name in names:
        if name not in ARMS:
            raise FrameworkError(f"unknown arm {name!r}; expected one of {', '.join(ARMS)}")
    found = [
        name
        for name, arm in ARMS.items()
        if (not frameworks or arm.framework in frameworks)
        and (not modes or arm.mode in modes)
        and (not names or name in names)
    ]
    if not found:
        told = " and ".join(" or ".join(part) for part in (frameworks, modes, names) if part)
        raise FrameworkError(f"there is no arm for {told}; ask for less, or for one of {', '.join(ARMS)}")
    return found
