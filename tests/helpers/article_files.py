"""State dicts of the articles' own code, saved and loaded as a reader of the article would."""

from dataclasses import replace

import article_code as code
import numpy as np
import torch

from triglot import port
from triglot.shared.model.recipes import recipe

CODE = {
    "translation": code.Translation,
    "dygraph": code.Dygraph,
    "prenorm": code.Prenorm,
    "annotated": code.Annotated,
    "multihead": code.Multihead,
}
BUFFERS = {
    "translation": {"embed_x.pe": "source", "embed_y.pe": "target"},
    "prenorm": {"transformer.wpe.pe": "source"},
    "annotated": {"src_pos.pe": "source", "tgt_pos.pe": "target"},
}


def config_of(name):
    """Small and odd sizes. The code of article 000 always has three layers in each stack."""
    tiny = recipe(f"{name}-tiny")
    return replace(tiny, layers=3, decoder_layers=3) if name == "translation" else tiny


def filled(model, dtype=torch.float32, seed=0):
    """The model with random parameters, so that no norm and no bias is the identity."""
    generator = torch.Generator().manual_seed(seed)
    drawn = {
        name: tensor if name.endswith("pe") else torch.randn(tensor.shape, generator=generator)
        for name, tensor in model.state_dict().items()
    }
    model.load_state_dict(drawn)
    return model.double() if dtype == torch.float64 else model


def make_state_dict(name, **changes):
    return dict(filled(CODE[name](replace(config_of(name), **changes))).state_dict())


def save(tensors, path):
    """Save with the libraries themselves, as a reader of the article would."""
    if path.suffix == ".npz":
        np.savez(path, allow_pickle=False, **{name: tensor.detach().numpy() for name, tensor in tensors.items()})
    elif path.suffix == ".safetensors":
        from safetensors.torch import save_file

        save_file({name: tensor.detach().contiguous() for name, tensor in tensors.items()}, path)
    else:
        torch.save(tensors, path)


def load(path):
    if path.suffix == ".npz":
        with np.load(path) as file:
            return {name: torch.from_numpy(file[name]) for name in file.files}
    if path.suffix == ".safetensors":
        from safetensors.torch import load_file

        return load_file(path)
    return torch.load(path, weights_only=True)


def read(path, name, config=None):
    return port(path, source_dialect=f"article-{name}", config=config or config_of(name))


def parameters_of(state_dict):
    return {name: tensor for name, tensor in state_dict.items() if not name.endswith("pe")}


def bits(tensor):
    return tensor.detach().contiguous().view(torch.uint8).numpy().tobytes() if tensor.numel() else b""
