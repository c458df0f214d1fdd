"""Folders that other libraries saved, and the path of a ``.pt`` file."""

import shutil
from functools import cache

import numpy as np
import pytest
from bert_folders import MODELS, SIZES
from sentence_models import ACTIVATIONS, BERT_SIZES, PROMPTS, SENTENCE_MODELS, minilm


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


@pytest.fixture(scope="session")
def roberta_folder(tmp_path_factory):
    """A RoBERTa with a masked_lm head, saved by transformers, and an example of what it computes."""
    import torch
    import transformers

    torch.manual_seed(0)
    config = transformers.RobertaConfig(
        vocab_size=61,
        hidden_size=24,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=24,
        max_position_embeddings=34,
        type_vocab_size=1,
    )
    model = transformers.RobertaForMaskedLM(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape) * 0.2)
    path = tmp_path_factory.mktemp("roberta")
    model.save_pretrained(path)
    ids = np.random.default_rng(0).integers(2, 61, (4, 11))
    valid = np.arange(11) < np.array([11, 6, 1, 9])[:, None]
    ids[~valid] = 1
    with torch.inference_mode():
        result = model(torch.from_numpy(ids), torch.from_numpy(valid), output_hidden_states=True)
    outputs = {"last_hidden_state": result.hidden_states[-1].numpy(), "logits": result.logits.numpy()}
    np.savez(path / "example.npz", input_ids=ids, attention_mask=valid.astype(np.int64), **outputs)
    return path


@pytest.fixture(scope="session")
def sentence_encoder(tmp_path_factory):
    """The folder of a small BERT, in which no norm or bias is the identity, with the tokenizer of MiniLM."""
    import torch
    import transformers

    model = transformers.BertModel(transformers.BertConfig(**BERT_SIZES))
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.2)
    folder = tmp_path_factory.mktemp("encoder")
    model.save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json", "vocab.txt"):
        shutil.copyfile(minilm() / name, folder / name)
    return folder


@pytest.fixture(scope="session")
def save_sentence_model(sentence_encoder, tmp_path_factory):
    """A function that returns a model of the library, and its folder."""
    import torch
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer import modules

    @cache
    def saved(kind):
        pooling, layers, normalized = SENTENCE_MODELS[kind]
        torch.manual_seed(0)
        parts = [
            modules.Transformer(str(sentence_encoder), max_seq_length=29),
            modules.Pooling(24, pooling_mode=pooling),
        ]
        size = 24
        for layer in layers:
            function = getattr(torch.nn, ACTIVATIONS[layer.activation])()
            parts.append(modules.Dense(size, layer.size, bias=layer.bias, activation_function=function))
            size = layer.size
        parts += [modules.Normalize()] * normalized
        prompts = {"prompts": PROMPTS, "default_prompt_name": "query"} if layers else {}
        native = SentenceTransformer(modules=parts, device="cpu", similarity_fn_name="dot", **prompts)
        folder = tmp_path_factory.mktemp("sentence")
        native.save(str(folder), create_model_card=False)
        return native, folder

    return saved
