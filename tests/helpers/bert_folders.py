"""BERT and ERNIE as transformers names and saves them, and tools that change their folders."""

import json
import re

import numpy as np
from safetensors.numpy import load_file, save_file

# Sizes that share few factors, so that a swapped axis is noticed.
SIZES = {
    "vocab_size": 31,
    "hidden_size": 12,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": 17,
    "max_position_embeddings": 9,
}
# Class, fields of config.json, whether there is a pooler, Triglot's name of the activation.
MODELS = {
    "bert": ("Bert", {"hidden_act": "gelu"}, True, "gelu"),
    "bert without pooler": ("Bert", {"hidden_act": "gelu_new"}, False, "gelu_tanh"),
    "bert with tanh": ("Bert", {"hidden_act": "gelu_pytorch_tanh", "layer_norm_eps": 1e-5}, True, "gelu_tanh"),
    "bert with relu": ("Bert", {"hidden_act": "relu", "type_vocab_size": 4, "pad_token_id": 5}, True, "relu"),
    "ernie": ("Ernie", {"hidden_act": "gelu", "use_task_id": True, "task_type_vocab_size": 5}, True, "gelu"),
    "ernie without tasks": ("Ernie", {"hidden_act": "relu", "layer_norm_eps": 1e-5}, False, "relu"),
}
NATIVE = {
    "embeddings.token.weight": "embeddings.word_embeddings.weight",
    "embeddings.position.weight": "embeddings.position_embeddings.weight",
    "embeddings.segment.weight": "embeddings.token_type_embeddings.weight",
    "embeddings.task.weight": "embeddings.task_type_embeddings.weight",
    "embeddings.process.norm.scale": "embeddings.LayerNorm.weight",
    "embeddings.process.norm.bias": "embeddings.LayerNorm.bias",
    "encoder.layers.N.attention.query.weight": "encoder.layer.N.attention.self.query.weight",
    "encoder.layers.N.attention.query.bias": "encoder.layer.N.attention.self.query.bias",
    "encoder.layers.N.attention.key.weight": "encoder.layer.N.attention.self.key.weight",
    "encoder.layers.N.attention.key.bias": "encoder.layer.N.attention.self.key.bias",
    "encoder.layers.N.attention.value.weight": "encoder.layer.N.attention.self.value.weight",
    "encoder.layers.N.attention.value.bias": "encoder.layer.N.attention.self.value.bias",
    "encoder.layers.N.attention.output.weight": "encoder.layer.N.attention.output.dense.weight",
    "encoder.layers.N.attention.output.bias": "encoder.layer.N.attention.output.dense.bias",
    "encoder.layers.N.post_attention.norm.scale": "encoder.layer.N.attention.output.LayerNorm.weight",
    "encoder.layers.N.post_attention.norm.bias": "encoder.layer.N.attention.output.LayerNorm.bias",
    "encoder.layers.N.feed_forward.inner.weight": "encoder.layer.N.intermediate.dense.weight",
    "encoder.layers.N.feed_forward.inner.bias": "encoder.layer.N.intermediate.dense.bias",
    "encoder.layers.N.feed_forward.output.weight": "encoder.layer.N.output.dense.weight",
    "encoder.layers.N.feed_forward.output.bias": "encoder.layer.N.output.dense.bias",
    "encoder.layers.N.post_feed_forward.norm.scale": "encoder.layer.N.output.LayerNorm.weight",
    "encoder.layers.N.post_feed_forward.norm.bias": "encoder.layer.N.output.LayerNorm.bias",
    "heads.pooler.weight": "pooler.dense.weight",
    "heads.pooler.bias": "pooler.dense.bias",
}


def native_name(name):
    generic = re.sub(r"layers\.\d+", "layers.N", name)
    layer = re.search(r"layers\.(\d+)", name)
    return NATIVE[generic].replace("N.", f"{layer[1]}.", 1) if layer else NATIVE[generic]


def change_config(folder, **changes):
    """Set fields of ``config.json``; ``...`` removes one."""
    path = folder / "config.json"
    fields = {**json.loads(path.read_text()), **changes}
    path.write_text(json.dumps({name: value for name, value in fields.items() if value is not ...}))


def change_tensors(folder, change):
    path = folder / "model.safetensors"
    tensors = load_file(path)
    save_file({name: np.ascontiguousarray(tensor) for name, tensor in change(tensors).items()}, path)
