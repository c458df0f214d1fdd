"""A framework behind the facade (``impls/model.py``): the weights of a model, its programs, and tensors in and out."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache, cached_property, partial
from typing import Any

import jax
import numpy as np
from flax import nnx
from jax import Array
from jax import numpy as jnp

from triglot.shared.checkpoint import Checkpoint
from triglot.shared.errors import FrameworkError
from triglot.shared.inputs.packing import can_pack
from triglot.shared.memory import ask_for_huge_pages
from triglot.shared.model.config import ModelConfig
from triglot.shared.training.plan import Moments, Plan

from . import execution, masks, training, weights
from .execution import in_mode
from .generation import Generator
from .packed import Packed
from .packed_loss import PackedLoss
from .transformer import Transformer

DTYPES = {"float32": jnp.float32, "float64": jnp.float64, "bfloat16": jnp.bfloat16, "float16": jnp.float16}


class _SameKey(nnx.RngStream):
    """A stream that returns the same key at each call.

    Only shapes are kept, and tracing new keys would take most of the time.
    """

    def __call__(self) -> Array:
        return self.key[...]


@cache
def _abstract_transformer(config: ModelConfig) -> tuple[Any, Any]:
    """Return the graph of a transformer, and shapes only: the checkpoint provides the memory. Tracing takes a while."""

    def build() -> Transformer:
        rngs: Any = nnx.Rngs(0)
        rngs.default = _SameKey(jax.random.key(0), tag="default")
        return Transformer(config, rngs=rngs)

    return nnx.split(nnx.eval_shape(build))


class Backend:
    """A transformer with the weights of a checkpoint, and its programs in one mode (``execution.py``).

    Raises:
        FrameworkError: the framework does not support the device, the dtype or the mode.
    """

    def __init__(self, checkpoint: Checkpoint, device: str, dtype: str, mode: str) -> None:
        if dtype not in DTYPES:
            raise FrameworkError(f"JAX: dtype {dtype!r} is not supported; choose one of {', '.join(DTYPES)}")
        try:
            self.device = jax.devices(device)[0]
        except RuntimeError as error:
            raise FrameworkError(f"JAX: no {device} device was found; choose device 'cpu'") from error
        self.config, self.mode = checkpoint.config, mode
        self.dtype, self.dtype_name = DTYPES[dtype], dtype
        with self.computing("forward"):
            # A copy, because models must not share their variables.
            self.transformer = nnx.merge(*_abstract_transformer(checkpoint.config), copy=True)
            weights.load(self.transformer, checkpoint, self.device, self.dtype)
        if device == "cpu" and mode != "eager":
            ask_for_huge_pages()
        self.transformer.eval()
        # Dropout masks are passed in, so no random streams are needed and parameters are the only state.
        self.transformer.set_attributes(nnx.Dropout, rngs=None, raise_if_not_found=False)
        if mode == "compiled" and can_pack(self.config, device, dtype):
            deployed = Packed(self.transformer)
            self.encode, self.run = deployed.encode, deployed.run
        else:
            self.encode = in_mode(mode, execution.encode, self.transformer)
            self.run = in_mode(mode, execution.run, self.transformer)
        self.run_eagerly = partial(execution.run, self.transformer)
        packs = (mode, dtype) == ("jit", "float32") and can_pack(self.config, device, dtype)
        self.loss = PackedLoss(self.transformer) if packs else training.Loss(self.transformer)
        self.generator = Generator(self.transformer)

    @cached_property
    def trace(self) -> Callable[..., Any]:
        """The program that returns every named value. Made when it is needed: only parity calls it."""
        return in_mode(self.mode, execution.trace, self.transformer)

    @contextmanager
    def computing(self, workload: str) -> Iterator[None]:
        """Enter the state in which the framework computes a workload.

        Raises:
            FrameworkError: the framework cannot compute it.
        """
        # Without the first context, float64 silently becomes float32. Without the second, an accelerator multiplies
        # float32 matrices in fewer bits.
        with jax.enable_x64(self.dtype == jnp.float64), jax.default_matmul_precision("highest"):
            yield

    def to_tensor(self, array: np.ndarray) -> Array:
        """Copy an array to the device, floats in the dtype of the model."""
        dtype = self.dtype if np.issubdtype(array.dtype, np.floating) else array.dtype
        return weights.np2jax(array, self.device, dtype)

    def to_numpy(self, tensor: Array) -> np.ndarray:
        """Return a tensor as an array."""
        return weights.jax2np(tensor)

    def masks(self, valid: Array) -> dict[str, Array]:
        """Build each mask from ``valid``, bool (B, S), by name."""
        padding, causal = masks.padding(valid), masks.causal(valid.shape[1])
        return {"padding": padding, "causal": causal, "combined": masks.combine(padding, causal)}

    def gradients(
        self, inputs: Mapping[str, Array], dropout_masks: Mapping[str, Array]
    ) -> tuple[Array, dict[str, Array]]:
        """Return the loss of a batch, and its gradients by parameter name."""
        return training.gradients(self.transformer, self.loss, inputs, dropout_masks)

    def trainer(self, plan: Plan, moments: Moments | None) -> training.Trainer:
        """Return a trainer of the transformer, which resumes from ``moments`` if there are any."""
        return training.Trainer(self.transformer, self.loss, plan, moments)

    def wait(self, result: Any) -> None:
        """Wait until a result is computed."""
        jax.block_until_ready(result)

    def to_canonical(self, tensors: Mapping[str, Array]) -> dict[str, np.ndarray]:
        """Return one tensor for each parameter as arrays, by canonical name and in canonical layout."""
        return weights.to_canonical(self.config, tensors)

    def weights(self) -> dict[str, np.ndarray]:
        """Return the parameters by canonical name, in canonical layout."""
        return weights.export(self.transformer)
