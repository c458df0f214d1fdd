"""``transformers`` BertModel: eager attention, PyTorch's fused one ("sdpa"), and that compiled."""

import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from transformers import BertModel

from triglot.bench.run.cases import Case
from triglot.shared import porting
from triglot.shared.checkpoint import Checkpoint
from triglot.shared.inputs import EncoderBatch
from triglot.shared.porting.dialects.huggingface_families import BERT

from .torch_encoder import TorchArm


def bert_model(checkpoint: Checkpoint, attention: str) -> Any:
    """Return a BertModel for inference, with weights that Triglot ports to it. ``attention``: "eager" or "sdpa"."""
    with tempfile.TemporaryDirectory(prefix="triglot-") as folder:
        porting.write(checkpoint, Path(folder) / "bert", "huggingface")
        pooler = "pooler" in checkpoint.config.heads_on_top
        model: Any = BertModel.from_pretrained(
            Path(folder) / "bert", attn_implementation=attention, add_pooling_layer=pooler
        )
    return model.eval()


def prepare(
    checkpoint: Checkpoint, case: Case, batches: Sequence[EncoderBatch], attention: str, *, compiled: bool = False
) -> TorchArm:
    """Build the model. ``compiled``: with frozen weights, as Triglot's, unless they are trained."""
    device = case.cell.device
    model = bert_model(checkpoint, attention)
    # Give the padding token a gradient like any other. Here the mask says what is padding.
    model.embeddings.word_embeddings.padding_idx = None
    model.to(device, getattr(torch, case.cell.dtype))
    computed: Any = model
    if compiled:
        computed = torch.compile(model, options={"freezing": case.cell.workload == "forward"})

    def run(inputs: Any) -> dict[str, torch.Tensor]:
        result = computed(**inputs)
        pooled = {} if result.pooler_output is None else {"pooler": result.pooler_output}
        return {"output": result.last_hidden_state, **pooled}

    names = {"source": "input_ids", "valid": "attention_mask", "segment_ids": "token_type_ids"}

    def inputs_of(batch: EncoderBatch) -> dict[str, torch.Tensor]:
        arrays = {names[name]: array for name, array in batch.arrays().items() if name in names}
        return {name: torch.from_numpy(array.astype("int64")).to(device) for name, array in arrays.items()}

    return TorchArm(
        model, run, inputs_of, case, batches, partial(BERT.table(("pooler",)).to_canonical, checkpoint.config)
    )


eager = partial(prepare, attention="eager")
sdpa = partial(prepare, attention="sdpa")  # ``scaled_dot_product_attention``, the default of transformers
compiled = partial(prepare, attention="sdpa", compiled=True)
