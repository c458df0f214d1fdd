"""State dicts of the articles' own code are ported bit for bit in both directions, and compute the same."""

import hashlib
from dataclasses import replace

import article_code as code
import numpy as np
import pytest
import torch
from article_files import BUFFERS, CODE, bits, config_of, filled, load, make_state_dict, parameters_of, read, save

import triglot
from triglot import port
from triglot.shared.arrays import BFLOAT16
from triglot.shared.checkpoint import Checkpoint
from triglot.shared.errors import PortingError
from triglot.shared.model import schema
from triglot.shared.model.positions import TABLES
from triglot.shared.model.recipes import recipe
from triglot.shared.porting.dialects import (
    article_annotated,
    article_dygraph,
    article_multihead,
    article_prenorm,
    article_translation,
)

SUFFIXES = (".pt", ".npz", ".safetensors")
MODULES = {
    "translation": article_translation,
    "dygraph": article_dygraph,
    "prenorm": article_prenorm,
    "annotated": article_annotated,
    "multihead": article_multihead,
}


@pytest.fixture(params=CODE)
def name(request):
    return request.param


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_ported_state_dict_is_written_bit_for_bit_and_loads_strictly(name, suffix, tmp_path):
    model = filled(CODE[name](config_of(name)))
    save(model.state_dict(), tmp_path / f"run{suffix}")
    ported = port(
        tmp_path / f"run{suffix}", tmp_path / "model.npz", source_dialect=f"article-{name}", config=config_of(name)
    )
    port(tmp_path / "model.npz", tmp_path / f"back{suffix}", target_dialect=f"article-{name}")
    back, expected = load(tmp_path / f"back{suffix}"), model.state_dict()
    assert back.keys() == expected.keys()
    for key, tensor in parameters_of(expected).items():
        assert back[key].dtype == tensor.dtype
        assert back[key].shape == tensor.shape
        assert bits(back[key]) == bits(tensor), key
    CODE[name](config_of(name)).load_state_dict(back, strict=True)
    assert read(tmp_path / f"back{suffix}", name).digest == ported.digest
    assert set(ported.source_names.values()) == parameters_of(expected).keys()
    assert ported.left_out.keys() == expected.keys() - parameters_of(expected).keys() == BUFFERS.get(name, {}).keys()


@pytest.mark.parametrize(
    ("dtype", "suffix"),
    [
        *((dtype, suffix) for dtype in (torch.float64, torch.float16) for suffix in SUFFIXES),
        (torch.bfloat16, ".pt"),
        (torch.bfloat16, ".safetensors"),
    ],
)
def test_every_number_format_is_kept(dtype, suffix, tmp_path):
    tensors = {name: tensor.to(dtype) for name, tensor in make_state_dict("annotated").items()}
    save(tensors, tmp_path / f"run{suffix}")
    ported = read(tmp_path / f"run{suffix}", "annotated")
    assert {tensor.dtype for tensor in ported.tensors.values()} == {
        np.dtype(str(dtype).removeprefix("torch.")) if dtype != torch.bfloat16 else BFLOAT16
    }
    port(ported, tmp_path / f"back{suffix}", target_dialect="article-annotated")
    back = load(tmp_path / f"back{suffix}")
    for name, tensor in parameters_of(tensors).items():
        assert bits(back[name]) == bits(tensor), name


def test_every_parameter_has_its_own_name(name):
    config = replace(config_of(name), layers=12, decoder_layers=11) if name in BUFFERS else config_of(name)
    table = MODULES[name].TABLE.names(config)
    assert table.keys() == schema.parameters(config).keys()
    assert len(set(table.values())) == len(table)


def test_the_recipe_is_the_default_configuration(tmp_path):
    save(filled(code.Translation(recipe("translation"))).state_dict(), tmp_path / "run.pt")
    assert port(tmp_path / "run.pt", config={"heads": 4}).config == recipe("translation")
    corrected = port(tmp_path / "run.pt", config={"heads": 4, "norm_eps": 1e-6})
    assert corrected.config == replace(recipe("translation"), norm_eps=1e-6)


def test_only_linear_weights_are_transposed(name, tmp_path):
    """Shapes cannot show it, because here all hidden sizes and vocabularies are equal."""
    sizes = {"feed_forward_size": 24} if name != "multihead" else {}
    if name in BUFFERS:
        sizes |= {"source_vocabulary": 24, "target_vocabulary": 24}
    config = replace(config_of(name), **sizes)
    tensors = dict(filled(CODE[name](config)).state_dict())
    save(tensors, tmp_path / "run.pt")
    ported = read(tmp_path / "run.pt", name, config)
    roles = {canonical: parameter.role for canonical, parameter in schema.parameters(config).items()}
    for canonical, native in ported.source_names.items():
        transposed = roles[canonical] == "linear_weight" and name != "dygraph"
        expected = tensors[native].detach().numpy()
        tensor = ported.tensors[canonical]
        np.testing.assert_array_equal(tensor, expected.T if transposed else expected, err_msg=canonical)
        assert tensor.flags.writeable
    assert "linear_weight" in roles.values()


def test_neither_the_file_nor_the_checkpoint_is_changed(tmp_path):
    save(make_state_dict("annotated"), tmp_path / "run.pt")
    before = hashlib.sha256((tmp_path / "run.pt").read_bytes()).hexdigest()
    ported = read(tmp_path / "run.pt", "annotated")
    digest = ported.digest
    port(ported, tmp_path / "back.pt", target_dialect="article-annotated")
    assert ported.digest == digest
    for tensor in ported.tensors.values():
        tensor.fill(0)
    assert hashlib.sha256((tmp_path / "run.pt").read_bytes()).hexdigest() == before
    assert read(tmp_path / "run.pt", "annotated").digest == digest


@pytest.fixture
def double(name):
    """The code in float64 and its state dict, with Triglot's position table. Another test compares the two tables."""
    config, model = config_of(name), CODE[name](config_of(name))
    model = filled(model, torch.float64)
    tensors = dict(model.state_dict())
    for buffer, side in BUFFERS.get(name, {}).items():
        table = TABLES[config.positions](getattr(config, f"{side}_max_length"), config.hidden_size)
        tensors[buffer] = torch.from_numpy(table.copy())[None]
    model.load_state_dict(tensors)
    return model, tensors


def outputs(name, model, checkpoint):
    """The outputs of the article's code and of the reference at real tokens."""
    config, generator = config_of(name), np.random.default_rng(0)
    reference = triglot.build("numpy", checkpoint, dtype="float64")
    valid = np.arange(11) < np.array([[11], [4], [7]])
    target_valid = np.arange(9) < np.array([[5], [9], [6]])
    with torch.no_grad():
        if name == "dygraph":
            vectors = generator.normal(size=(3, 11, config.hidden_size)).astype(np.float32)
            expected = model(torch.from_numpy(vectors).double(), torch.from_numpy(valid))
            return expected.numpy()[valid], reference.encode(vectors, valid)[valid]
        if name == "multihead":
            query, key, value = (
                generator.normal(size=(length, 3, config.hidden_size)).astype(np.float32) for length in (9, 11, 11)
            )
            inputs = (torch.from_numpy(vectors).double() for vectors in (query, key, value))
            expected = model(*inputs, torch.from_numpy(~valid))
            output, _ = reference.attend(query, key, value, key_valid=valid, batch_first=False)
            return expected.numpy(), output
        source, target = (
            np.where(real, generator.integers(code.PAD + 1, size, real.shape), code.PAD)
            for real, size in ((valid, config.source_vocabulary), (target_valid, config.target_vocabulary))
        )
        ids = torch.from_numpy(source), torch.from_numpy(target)
        if name == "translation":
            expected = model(*ids)
            output = reference.forward(source, target)
        else:
            expected = model(*ids, torch.from_numpy(valid), torch.from_numpy(target_valid))
            output = reference.forward(source, target, valid, target_valid)
    return expected.numpy()[target_valid], output[target_valid]


# Relative to the largest value. Values are of order 10 to 1,000 (every weight is N(0, 1)), sums have at most 40 terms,
# and up to 6 layers pass their errors on: some thousand units of 2^-52. A wrong name or a tanh GELU is above 1e-4.
TOLERANCE = 1e-11


def distance(name, model, checkpoint):
    expected, output = outputs(name, model, checkpoint)
    return np.abs(expected - output).max() / np.abs(expected).max()


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_the_checkpoint_computes_what_the_code_computes(name, suffix, double, tmp_path):
    model, tensors = double
    save(tensors, tmp_path / f"run{suffix}")
    assert distance(name, model, read(tmp_path / f"run{suffix}", name)) < TOLERANCE


def test_exchanging_any_two_tensors_changes_the_output(name, double, tmp_path):
    """Each tensor in turn is exchanged with the next one of its shape."""
    model, tensors = double
    save(tensors, tmp_path / "run.pt")
    ported = read(tmp_path / "run.pt", name)
    names, exchanges = list(ported.tensors), 0
    for number, first in enumerate(names):
        shape = ported.tensors[first].shape
        second = next((name for name in names[number + 1 :] if ported.tensors[name].shape == shape), None)
        if second is None:
            continue
        exchanged = {**ported.tensors, first: ported.tensors[second], second: ported.tensors[first]}
        assert distance(name, model, Checkpoint(ported.config, exchanged)) > 1e4 * TOLERANCE, (first, second)
        exchanges += 1
    assert exchanges >= 3


def test_article_001_is_read_with_both_names_of_the_encoder_and_written_with_the_empty_one(tmp_path):
    config = config_of("dygraph")
    plain = dict(filled(code.Dygraph(config)).state_dict())
    named = dict(filled(code.Dygraph(config, "encoder")).state_dict())
    assert [key.removeprefix("encoder") for key in named] == list(plain)
    save(plain, tmp_path / "plain.npz")
    save(named, tmp_path / "named.npz")
    ported = read(tmp_path / "named.npz", "dygraph")
    assert ported.digest == read(tmp_path / "plain.npz", "dygraph").digest
    assert set(ported.source_names.values()) == named.keys()
    port(ported, tmp_path / "back.npz", target_dialect="article-dygraph")
    assert load(tmp_path / "back.npz").keys() == plain.keys()


def test_other_commands_and_sizes_of_article_001_are_written_and_read(make_checkpoint, tmp_path):
    config = replace(
        config_of("dygraph"), pre_process="", post_process="dan", final_process="", key_size=5, value_size=7
    )
    original = make_checkpoint(replace(config, activation="relu"))
    port(original, tmp_path / "out.pt", target_dialect="article-dygraph")
    assert "_layer_1_post_ffn_layer_norm_scale" in load(tmp_path / "out.pt")
    assert read(tmp_path / "out.pt", "dygraph", original.config).digest == original.digest


@pytest.mark.parametrize("article", list(MODULES))
def test_sizes_come_from_the_tensors_and_heads_from_the_user(article, tmp_path):
    path = tmp_path / "run.pt"
    save(make_state_dict(article), path)
    with pytest.raises(PortingError, match=r"^cannot port .*: the tensors do not show heads.*; add --set heads=NUMBER"):
        port(path)
    given = {"heads": 3, "activation": config_of(article).activation} if article == "dygraph" else {"heads": 3}
    found, expected = port(path, config=given).config, config_of(article)
    shown = {"layers", "decoder_layers", "hidden_size", "key_size", "value_size", "feed_forward_size"}
    shown |= {"source_vocabulary", "target_vocabulary"}
    assert {name: getattr(found, name) for name in shown} == {name: getattr(expected, name) for name in shown}


@pytest.mark.parametrize(
    "changes", [{"pad_id": None, "residual_dropout": 0.5, "initializer": "bert"}, {"heads": 4, "key_size": 6}]
)
def test_arguments_of_the_code_can_have_any_value(changes, make_checkpoint, tmp_path):
    if "heads" in changes:
        changes = {**changes, "value_size": 6}
    original = make_checkpoint(replace(config_of("annotated"), **changes))
    port(original, tmp_path / "out.pt", target_dialect="article-annotated")
    assert read(tmp_path / "out.pt", "annotated", original.config).digest == original.digest


def test_fortran_order_is_read(tmp_path):
    arrays = {name: np.asfortranarray(tensor.detach().numpy()) for name, tensor in make_state_dict("annotated").items()}
    np.savez(tmp_path / "fortran.npz", allow_pickle=False, **arrays)
    save(make_state_dict("annotated"), tmp_path / "plain.npz")
    digests = {read(tmp_path / file, "annotated").digest for file in ("fortran.npz", "plain.npz")}
    assert len(digests) == 1
