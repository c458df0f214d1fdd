"""An encoder made of Flax NNX's own ``nnx.MultiHeadAttention``, ``nnx.Linear`` and ``nnx.LayerNorm``, as an arm."""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
import optax
from flax import nnx
from jax import Array as JaxArray
from jax import numpy as jnp

from triglot.bench.run.arms import PLAN
from triglot.bench.run.cases import Case
from triglot.parity.output_names import name_first_step, name_gradients
from triglot.shared.arrays import Array
from triglot.shared.checkpoint import Checkpoint
from triglot.shared.inputs import EncoderBatch
from triglot.shared.model import schema
from triglot.shared.model.config import ModelConfig
from triglot.shared.porting.dialects.table import attention
from triglot.shared.training.plan import BETAS, EPSILON

from .tables import encoder_table

# The kernels are (in, out), as in a checkpoint, but those of the attention have an axis for the heads.
_TABLE = encoder_table(
    "nnx",
    "layers",
    {
        **attention("attention", "attention.", ("query", "key", "value", "out")),
        "post_attention.norm": "attention_norm",
        "feed_forward.inner": "inner",
        "feed_forward.output": "outer",
        "post_feed_forward.norm": "outer_norm",
    },
    transposed=False,
    weight=".kernel",
    table=".kernel",
    norm_scale=".scale",
)


class Layer(nnx.Module):
    """Attention and feed-forward, each followed by a residual connection and a norm."""

    def __init__(self, config: ModelConfig, dtype: Any, rngs: nnx.Rngs) -> None:
        kinds: dict[str, Any] = {"dtype": dtype, "param_dtype": dtype, "rngs": rngs}
        size, eps = config.hidden_size, config.norm_eps
        self.attention = nnx.MultiHeadAttention(config.heads, size, decode=False, deterministic=True, **kinds)
        self.attention_norm = nnx.LayerNorm(size, epsilon=eps, **kinds)
        self.inner = nnx.Linear(size, config.feed_forward_size, **kinds)
        self.outer = nnx.Linear(config.feed_forward_size, size, **kinds)
        self.outer_norm = nnx.LayerNorm(size, epsilon=eps, **kinds)

    def __call__(self, x: JaxArray, mask: JaxArray) -> JaxArray:
        """x: (B, S, D). mask: bool (B, 1, 1, S), True = may attend."""
        x = self.attention_norm(x + self.attention(x, mask=mask))
        return self.outer_norm(x + self.outer(nnx.gelu(self.inner(x), approximate=False)))


class Encoder(nnx.Module):
    """Embeddings, a norm, and the layers."""

    def __init__(self, config: ModelConfig, positions: int, dtype: Any, rngs: nnx.Rngs) -> None:
        kinds: dict[str, Any] = {"dtype": dtype, "param_dtype": dtype, "rngs": rngs}
        size = config.hidden_size
        self.offset = config.position_offset
        self.has_pooler = "pooler" in config.heads_on_top
        self.token = nnx.Embed(config.source_vocabulary, size, **kinds)
        self.position = nnx.Embed(positions, size, **kinds)
        if config.segments:
            self.segment = nnx.Embed(config.segments, size, **kinds)
        self.norm = nnx.LayerNorm(size, epsilon=config.norm_eps, **kinds)
        self.layers = nnx.List([Layer(config, dtype, rngs) for _ in range(config.layers)])
        if self.has_pooler:
            self.pooler = nnx.Linear(size, size, **kinds)

    def __call__(self, ids: JaxArray, segments: JaxArray | None, valid: JaxArray) -> dict[str, JaxArray]:
        """ids, segments, valid: (B, S). Returns "output" (B, S, D), and "pooler" (B, D) if there is one."""
        x = self.token(ids) + self.position(jnp.arange(ids.shape[1]) + self.offset)
        if segments is not None:
            x = x + self.segment(segments)
        x = self.norm(x)
        for layer in self.layers:
            x = layer(x, valid[:, None, None, :])
        return {"output": x} | ({"pooler": jnp.tanh(self.pooler(x[:, 0]))} if self.has_pooler else {})


class NnxArm:
    """The compiled encoder and its batches."""

    def __init__(self, checkpoint: Checkpoint, case: Case, batches: Sequence[EncoderBatch]) -> None:
        self.device = jax.devices(case.cell.device)[0]
        self.config, self.workload = checkpoint.config, case.cell.workload
        positions = len(checkpoint.tensors["embeddings.position.weight"])
        dtype = getattr(jnp, case.cell.dtype)
        # Only shapes, because compiling the random initialisation takes two seconds.
        model = nnx.eval_shape(lambda: Encoder(checkpoint.config, positions, dtype, nnx.Rngs(0)))
        _load(model, checkpoint)
        graph, parameters = nnx.split(model)
        self.parameters = jax.device_put(parameters, self.device)
        optimizer = optax.adam(PLAN.rate, *BETAS, EPSILON)
        self.state = (
            jax.device_put(optimizer.init(self.parameters), self.device) if self.workload == "training" else None
        )

        def forward(parameters: Any, inputs: Any) -> dict[str, JaxArray]:
            return nnx.merge(graph, parameters)(*inputs[:3])

        def loss(parameters: Any, inputs: Any) -> JaxArray:
            *_, valid, teacher = inputs
            difference = jnp.where(valid[:, :, None], forward(parameters, inputs)["output"] - teacher, 0.0)
            return jnp.square(difference).sum() / (valid.sum() * teacher.shape[-1])

        def step(parameters: Any, state: Any, inputs: Any) -> tuple[JaxArray, Any, Any]:
            value, gradients = jax.value_and_grad(loss)(parameters, inputs)
            changes, state = optimizer.update(gradients, state, parameters)
            return value, optax.apply_updates(parameters, changes), state

        self.forward, self.gradients, self.step = jax.jit(forward), jax.jit(jax.value_and_grad(loss)), jax.jit(step)
        self.use(batches)

    def use(self, batches: Sequence[EncoderBatch]) -> None:
        """Compute these batches from now on."""
        self.inputs = [
            tuple(
                jax.device_put(array, self.device)
                for array in (batch.source, batch.segment_ids, batch.valid, batch.teacher)
            )
            for batch in batches
        ]

    def call(self) -> list[Any]:
        """Compute every batch."""
        with jax.default_matmul_precision("highest"):
            return [self._compute(inputs) for inputs in self.inputs]

    def wait(self, results: list[Any]) -> None:
        """Wait until the results are finished."""
        jax.block_until_ready(results)

    def outputs(self, results: list[Any]) -> Mapping[str, Array]:
        """Return what the first call returned for the first batch."""
        if self.workload == "forward":
            return {name: np.asarray(value, np.float32) for name, value in results[0].items()}
        if self.workload == "forward+backward":
            loss, gradients = results[0]
            return name_gradients(float(loss), _canonical(self.config, gradients))
        first = _canonical(self.config, optax.tree.get(self.state, "mu"))
        return name_first_step(results[0], first, _canonical(self.config, self.parameters))

    def _compute(self, inputs: Any) -> Any:
        if self.workload == "forward":
            return self.forward(self.parameters, inputs)
        if self.workload == "forward+backward":
            return self.gradients(self.parameters, inputs)
        value, self.parameters, self.state = self.step(self.parameters, self.state, inputs)
        return float(value)


def _by_name(state: Any) -> dict[str, Any]:
    """Return the variables of a state by the names of the table, in which each weight is a kernel."""
    paths = {".".join(map(str, path)): variable for path, variable in nnx.to_flat_state(state)}
    return {name.replace(".embedding", ".kernel"): variable for name, variable in paths.items()}


def _load(model: Encoder, checkpoint: Checkpoint) -> None:
    variables, arrays = _by_name(nnx.state(model, nnx.Param)), _TABLE.from_canonical(checkpoint)
    assert variables.keys() == arrays.keys(), variables.keys() ^ arrays.keys()
    for name, variable in variables.items():
        value = variable.get_value()
        variable.set_value(jnp.asarray(arrays[name].astype(np.float32).reshape(value.shape), value.dtype))


def _canonical(config: ModelConfig, state: Any) -> dict[str, Array]:
    """Return a state of Flax as arrays under the canonical names."""
    arrays = {name: np.asarray(variable.get_value()) for name, variable in _by_name(state).items()}
    shapes = schema.parameters(config)
    return {name: array.reshape(shapes[name].shape) for name, array in _TABLE.to_canonical(config, arrays).items()}
