"""``transformers`` BertModel: eager attention, PyTorch's fused one ("sdpa"), and that compiled."""

import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import BertModel

from ...shared import porting
from ...shared.arrays import Array
from ...shared.checkpoint import Checkpoint
from ...shared.inputs import Batch
from ..cases import Case


class Bert:
    """The model, from the weights that Triglot's porter wrote for it."""

    def __init__(
        self, checkpoint: Checkpoint, case: Case, batches: Sequence[Batch], attention: str, compiled: bool
    ) -> None:
        cell = case.cell
        with tempfile.TemporaryDirectory(prefix="triglot-") as folder:
            porting.port(checkpoint, Path(folder) / "bert", target_dialect="huggingface")
            pooler = "pooler" in checkpoint.config.heads_on_top
            model: Any = BertModel.from_pretrained(
                Path(folder) / "bert", attn_implementation=attention, add_pooling_layer=pooler
            )
        model.to(cell.device, getattr(torch, cell.dtype)).eval()
        self.model: Callable[..., Any] = torch.compile(model) if compiled else model
        self.device = cell.device
        self.inputs = [
            {
                "input_ids": torch.from_numpy(batch.source.astype("int64")).to(self.device),
                "attention_mask": torch.from_numpy(batch.valid.astype("int64")).to(self.device),
                "token_type_ids": torch.from_numpy(batch.segment_ids.astype("int64")).to(self.device),
            }
            for batch in batches
        ]

    def call(self) -> list[Any]:
        """Compute every batch."""
        with torch.inference_mode():
            results = [self.model(**given) for given in self.inputs]
        if self.device == "cuda":
            torch.cuda.synchronize()
        return results

    def outputs(self) -> Mapping[str, Array]:
        """What the first batch gives."""
        result = self.call()[0]
        found = {"output": result.last_hidden_state}
        if result.pooler_output is not None:
            found["pooler"] = result.pooler_output
        return {name: value.float().cpu().numpy() for name, value in found.items()}


def eager(checkpoint: Checkpoint, case: Case, batches: Sequence[Batch]) -> Bert:
    """With attention as it is written."""
    return Bert(checkpoint, case, batches, "eager", compiled=False)


def sdpa(checkpoint: Checkpoint, case: Case, batches: Sequence[Batch]) -> Bert:
    """With ``scaled_dot_product_attention``, the default."""
    return Bert(checkpoint, case, batches, "sdpa", compiled=False)


def compiled(checkpoint: Checkpoint, case: Case, batches: Sequence[Batch]) -> Bert:
    """The same through ``torch.compile``."""
    return Bert(checkpoint, case, batches, "sdpa", compiled=True)
