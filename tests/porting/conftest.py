"""Folders that other libraries saved, and the path of a ``.pt`` file."""

import pytest
from bert_folders import MODELS, SIZES


@pytest.fixture
def path(tmp_path):
    """The path of a ``.pt`` file. Tests of other containers have a ``path`` of their own."""
    return tmp_path / "run.pt"


@pytest.fixture
def make_transformers_model(tmp_path):
    """Make a model of transformers with random weights, so that no norm is the identity, and its folder."""
    import torch
    import transformers

    def make(kind):
        family, fields, pooler, _ = MODELS[kind]
        config = getattr(transformers, f"{family}Config")(**SIZES, **fields)
        model = getattr(transformers, f"{family}Model")(config, add_pooling_layer=pooler).eval()
        generator = torch.Generator().manual_seed(0)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=generator))
        folder = tmp_path / "model"
        model.save_pretrained(folder)
        return model, folder

    return make


@pytest.fixture
def bert_folder(make_transformers_model):
    """A folder with a small BERT."""
    return make_transformers_model("bert")[1]
