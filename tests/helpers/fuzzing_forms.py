"""What the fuzzer damages: a checkpoint in each form that Triglot reads.

A form writes a small model, names the file that is damaged, and reads the model again. Neutral checkpoints and archives
have checksums. The other formats have none, so damage to their numbers cannot be noticed.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from triglot import port
from triglot.shared.checkpoint import Checkpoint, TextSettings
from triglot.shared.model.config import DenseLayer, ModelConfig
from triglot.shared.model.initializers import initialize, perturb
from triglot.shared.model.recipes import recipe

TINY = {
    **{"layers": 1, "hidden_size": 2, "heads": 1, "key_size": 2, "value_size": 2, "feed_forward_size": 2},
    **{"source_vocabulary": 3, "source_max_length": 2},
}
BERT = replace(recipe("minilm"), **TINY)


@dataclass(frozen=True)
class Form:
    """A dialect in a format. ``damaged`` is the file that is damaged, in the folder that ``target`` names.

    ``options`` say how to read it, and ``writing`` how to write it.
    """

    dialect: str
    target: str
    damaged: str = ""
    has_checksums: bool = False
    options: dict[str, Any] = field(default_factory=dict[str, Any])
    writing: dict[str, Any] = field(default_factory=dict[str, Any])
    config: ModelConfig = BERT
    prepare: Callable[[Path], None] = lambda path: None

    def write(self, folder: Path, seed: int) -> Path:
        """Write the model of a seed in ``folder``. Return the file that is damaged."""
        text = TextSettings(2, {"query": "Q: "}) if self.config.sentence_pooling != "none" else None
        checkpoint = Checkpoint(self.config, perturb(initialize(self.config, seed), seed), text=text)
        target = folder / self.target
        port(checkpoint, target, target_dialect=self.dialect, **self.writing)
        self.prepare(target)
        return target / self.damaged if self.damaged else target

    def read(self, path: Path) -> str:
        """Return the digest of the model. ``path``: the damaged file."""
        is_whole = not self.damaged or self.damaged.endswith(".index.json")
        source = path if is_whole else path.parents[self.damaged.count("/")]
        checkpoint = port(source, source_dialect=self.dialect, **self.options)
        return checkpoint.digest


def into_shards(folder: Path) -> None:
    """Divide the weights of a folder into two shards with an index."""
    from safetensors.numpy import load_file, save_file

    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    weight_map = {name: f"shard{number % 2}.safetensors" for number, name in enumerate(sorted(tensors))}
    for shard in ("shard0.safetensors", "shard1.safetensors"):
        save_file({name: tensors[name] for name in tensors if weight_map[name] == shard}, folder / shard)
    index = {"metadata": {}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


OWN = {"config": BERT}
PARTS = {"shard_size": 200}
ORBAX_ARRAY = "embeddings.token.embedding.value"
SENTENCE = replace(
    BERT,
    heads_on_top=("sentence_embedding",),
    sentence_pooling="mean",
    sentence_layers=(DenseLayer(size=2, bias=True, activation="tanh"),),
)
FORMS: dict[str, Form] = {
    "safetensors": Form("torch", "model.safetensors", options=OWN),
    "torch": Form("torch", "model.pt", has_checksums=True, options=OWN),
    "paddle": Form("paddle", "model.pdparams", options=OWN),
    "npz": Form("nnx", "model.npz", has_checksums=True, options=OWN),
    "config": Form("huggingface", "model", "config.json"),
    "index": Form("huggingface", "model", "model.safetensors.index.json", prepare=into_shards, options=OWN),
    "shard": Form("huggingface", "model", "shard1.safetensors", prepare=into_shards),
    "msgpack": Form("nnx", "model.msgpack", options=OWN),
    "orbax list": Form("nnx", "model.orbax", "_METADATA", options=OWN),
    "orbax array": Form("nnx", "model.orbax", f"{ORBAX_ARRAY}/.zarray", options=OWN),
    "orbax numbers": Form("nnx", "model.orbax", f"{ORBAX_ARRAY}/0.0", options=OWN),
    "neutral index": Form("neutral", "model", "index.json", has_checksums=True, writing=PARTS),
    "neutral part": Form("neutral", "model", "part-00001.npz", has_checksums=True, writing=PARTS),
    "paddlenlp config": Form(
        "paddlenlp", "model", "config.json", config=replace(BERT, masking="add", masking_value=-1e4)
    ),
    "modules": Form("sentence-transformers", "model", "modules.json", config=SENTENCE),
    "pooling": Form("sentence-transformers", "model", "1_Pooling/config.json", config=SENTENCE),
    "dense": Form("sentence-transformers", "model", "2_Dense/config.json", config=SENTENCE),
    "prompts": Form("sentence-transformers", "model", "config_sentence_transformers.json", config=SENTENCE),
}
