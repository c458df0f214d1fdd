"""BERT as the Flax part of transformers built it, and the files in which it stored every model.

Sources: transformers 4.55, ``models/bert/modeling_flax_bert.py`` (names and arithmetic) and
``modeling_flax_pytorch_utils.py`` (``rename_key_and_reshape_tensor``: how a state dict of PyTorch becomes parameters).
"""

from typing import Any

import numpy as np
import torch
from flax import linen as nn
from jax import numpy as jnp


def dense(parts, values) -> Any:
    size = parts["kernel"].shape[1]
    return nn.Dense(size, use_bias="bias" in parts).apply({"params": parts}, values)


def layer_of(parts, states, valid, heads, norm) -> Any:
    attention, split = parts["attention"], (*states.shape[:2], heads, states.shape[2] // heads)
    query, key, value = (dense(attention["self"][name], states).reshape(split) for name in ("query", "key", "value"))
    bias = jnp.where(valid[:, None, None, :], 0, jnp.finfo(states.dtype).min)
    weights = nn.dot_product_attention_weights(query, key, bias=bias)
    attended = jnp.einsum("...hqk,...khd->...qhd", weights, value).reshape(states.shape)
    states = norm(attention["output"]["LayerNorm"], dense(attention["output"]["dense"], attended) + states)
    inner = nn.gelu(dense(parts["intermediate"]["dense"], states), approximate=False)
    return norm(parts["output"]["LayerNorm"], dense(parts["output"]["dense"], inner) + states)


def outputs(parameters, batch, heads, epsilon):
    """Return what a FlaxBertForPreTraining computes with these parameters, by the names of Triglot."""

    def norm(parts, values) -> Any:
        return nn.LayerNorm(epsilon=epsilon).apply({"params": parts}, values)

    body, cls = parameters["bert"], parameters["cls"]
    tables = {name: parts["embedding"] for name, parts in body["embeddings"].items() if name != "LayerNorm"}
    table = tables["word_embeddings"]
    summed = table[batch.source] + tables["token_type_embeddings"][batch.segment_ids]
    summed += tables["position_embeddings"][: batch.source.shape[1]]
    states = norm(body["embeddings"]["LayerNorm"], jnp.asarray(summed))
    for number in range(len(body["encoder"]["layer"])):
        states = layer_of(body["encoder"]["layer"][str(number)], states, batch.valid, heads, norm)
    pooled = jnp.tanh(dense(body["pooler"]["dense"], states[:, 0]))
    predictions = cls["predictions"]
    hidden = nn.gelu(dense(predictions["transform"]["dense"], states), approximate=False)
    hidden = norm(predictions["transform"]["LayerNorm"], hidden)
    values = {
        "output": states,
        "heads.pooler": pooled,
        "heads.masked_lm": dense(predictions.get("decoder", {"kernel": table.T}), hidden) + predictions["bias"],
        "heads.next_sentence": dense(cls["seq_relationship"], pooled),
    }
    return {name: np.asarray(value) for name, value in values.items()}


def parameters_of(model):
    """Return the nested parameters of the Flax twin of a PyTorch model. The type of a module decides its words."""
    tied, tree = model.config.tie_word_embeddings, {}
    decoders = ("cls.predictions.decoder", "lm_head.decoder", "vocab_projector", "generator_lm_head")
    biases = {"cls.predictions.decoder": "cls.predictions.bias", "lm_head.decoder": "lm_head.bias"}
    replaced = {f"{decoder}.bias": bias for decoder, bias in biases.items()}
    for path, module in model.named_modules():
        for leaf, tensor in module.named_parameters(recurse=False):
            name, array = f"{path}.{leaf}".lstrip("."), tensor.detach().numpy()
            if name in replaced.values() or (tied and path in decoders and leaf == "weight"):
                continue  # the decoder's own bias is the one that the model computes with
            name = replaced.get(name, name)
            if leaf == "weight":
                word = {torch.nn.Linear: "kernel", torch.nn.Embedding: "embedding", torch.nn.LayerNorm: "scale"}
                name = name.removesuffix("weight") + word[type(module)]
                array = array.T if isinstance(module, torch.nn.Linear) else array
            *folders, last = name.split(".")
            branch = tree
            for folder in folders:
                branch = branch.setdefault(folder, {})
            branch[last] = np.ascontiguousarray(array)
    return tree
