"""State dicts of the articles' own code are ported bit for bit in both directions, and compute the same."""

import hashlib
import re
from dataclasses import replace

import article_code as code
import numpy as np
import pytest
import torch

import triglot
from triglot import port
from triglot.shared.arrays import BFLOAT16
from triglot.shared.checkpoint import Checkpoint
from triglot.shared.errors import ConfigError, OutputError, PortingError
from triglot.shared.model import schema
from triglot.shared.model.positions import TABLES
from triglot.shared.model.recipes import recipe
from triglot.shared.porting.dialects import (
    article,
    article_annotated,
    article_dygraph,
    article_multihead,
    article_prenorm,
    article_translation,
)

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
SUFFIXES = (".pt", ".npz", ".safetensors")
MODULES = {
    "translation": article_translation,
    "dygraph": article_dygraph,
    "prenorm": article_prenorm,
    "annotated": article_annotated,
    "multihead": article_multihead,
}


def config_of(name):
    """Small and odd sizes. The code of article 000 always has three layers in each stack."""
    tiny = recipe(f"{name}-tiny")
    return replace(tiny, layers=3, decoder_layers=3) if name == "translation" else tiny


@pytest.fixture(params=CODE)
def name(request):
    return request.param


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


@pytest.mark.parametrize("length", [2, 50, 512, 5000])
@pytest.mark.parametrize("width", [2, 24, 128, 512])
def test_a_table_in_float32_is_within_the_bound(length, width):
    config = replace(recipe("annotated-tiny"), hidden_size=width)
    difference, bound = article.position_error(config, code.position_table(length, width).numpy())
    assert 0 < difference <= bound <= 2 * length * 2.0**-24


@pytest.mark.parametrize("name", BUFFERS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_buffers_are_compared_and_reported(name, dtype, tmp_path):
    save({key: tensor.to(dtype) for key, tensor in make_state_dict(name).items()}, tmp_path / "run.pt")
    left_out = read(tmp_path / "run.pt", name).left_out
    assert left_out.keys() == BUFFERS[name].keys()
    for reason in left_out.values():
        assert re.fullmatch(rf"Triglot computes {config_of(name).positions} .* differs .* at most [\d.e-]+", reason)


@pytest.mark.parametrize("name", BUFFERS)
def test_buffers_are_optional_and_always_written(name, tmp_path):
    tensors = make_state_dict(name)
    save(parameters_of(tensors), tmp_path / "run.pt")
    ported = read(tmp_path / "run.pt", name)
    assert ported.left_out == {}
    port(ported, tmp_path / "back.pt", target_dialect=f"article-{name}")
    back = load(tmp_path / "back.pt")
    for buffer, side in BUFFERS[name].items():
        length = getattr(ported.config, f"{side}_max_length")
        table = TABLES[ported.config.positions](length, ported.config.hidden_size)
        assert back[buffer].dtype == torch.float32
        np.testing.assert_array_equal(back[buffer].numpy(), table[None].astype(np.float32))


@pytest.mark.parametrize(
    ("shift", "difference"),
    [
        (1e-5, "1e-05"),
        (0.5, "0.5"),
        (np.nan, "inf"),
    ],
)
def test_a_buffer_with_other_numbers_is_refused(shift, difference, tmp_path):
    tensors = make_state_dict("annotated")
    tensors["src_pos.pe"] = tensors["src_pos.pe"].double()
    tensors["src_pos.pe"][0, 6, 3] += shift
    path = tmp_path / "run.pt"
    save(tensors, path)
    problem = rf"src_pos\.pe differs from the sinusoidal positions by up to {difference}, rounding explains 8\.3e-07"
    with pytest.raises(PortingError, match=f"^{re.escape(f'cannot port {path}: ')}{problem}"):
        read(path, "annotated")


def test_the_bound_grows_with_the_position(tmp_path):
    """5e-6 can be rounding at the end of a table of 50 rows, but not at its beginning."""
    config = replace(config_of("annotated"), source_max_length=50, target_max_length=50)
    tensors = make_state_dict("annotated", source_max_length=50, target_max_length=50)
    exact = torch.from_numpy(TABLES["sinusoidal"](50, 24).copy())[None]
    for row, fits in ((49, True), (3, False)):
        table = exact.clone()
        table[0, row, 0] += 5e-6
        save({**tensors, "src_pos.pe": table}, tmp_path / "run.pt")
        if fits:
            assert "src_pos.pe" in read(tmp_path / "run.pt", "annotated", config).left_out
        else:
            with pytest.raises(PortingError, match=r"src_pos\.pe differs .* up to 5e-06, rounding explains 4\.8e-07"):
                read(tmp_path / "run.pt", "annotated", config)


def test_the_table_of_other_positions_is_refused(tmp_path):
    save(make_state_dict("translation"), tmp_path / "run.pt")
    with pytest.raises(PortingError, match=r"embed_x\.pe differs from the sinusoidal positions by up to [\d.]+"):
        read(tmp_path / "run.pt", "translation", replace(config_of("translation"), positions="sinusoidal"))


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


def test_two_names_of_the_encoder_in_one_file_are_refused(tmp_path):
    plain, path = make_state_dict("dygraph"), tmp_path / "run.npz"
    save({**plain, "encoder_layer_0_ffn_fc_0.b_0": plain["_layer_0_ffn_fc_0.b_0"]}, path)
    problem = r"encoder_layer_0_ffn_fc_0\.b_0 and _layer_0_multi_head_att_query_fc\.w_0 belong to two models"
    with pytest.raises(PortingError, match=problem):
        read(path, "dygraph")


def test_other_commands_and_sizes_of_article_001_are_written_and_read(make_checkpoint, tmp_path):
    config = replace(
        config_of("dygraph"), pre_process="", post_process="dan", final_process="", key_size=5, value_size=7
    )
    original = make_checkpoint(replace(config, activation="relu"))
    port(original, tmp_path / "out.pt", target_dialect="article-dygraph")
    assert "_layer_1_post_ffn_layer_norm_scale" in load(tmp_path / "out.pt")
    assert read(tmp_path / "out.pt", "dygraph", original.config).digest == original.digest


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda tensors: tensors.pop("encoder.norm.alpha"), "missing encoder.norm.alpha"),
        (lambda tensors: tensors.update(extra=torch.zeros(1)), "unexpected extra"),
        (
            lambda tensors: tensors.update({"encoder.norm.alpha": torch.zeros(24)}),
            "encoder.norm.alpha has shape (24,), expected (1,)",
        ),
        (
            lambda tensors: tensors.update({"encoder.norm.alpha": torch.zeros(())}),
            "encoder.norm.alpha has shape (), expected (1,)",
        ),
        (
            lambda tensors: tensors.update({"src_pos.pe": torch.zeros(19, 24)}),
            "src_pos.pe has shape (19, 24), expected (1, 19, 24)",
        ),
        (
            lambda tensors: tensors.update({"encoder.norm.alpha": torch.ones(1, dtype=torch.int64)}),
            "encoder.norm.alpha has dtype int64, expected one of float64, float32, float16, bfloat16",
        ),
        (
            lambda tensors: tensors.update({"more": tensors.pop("decoder.norm.bias")}),
            "missing decoder.norm.bias; unexpected more",
        ),
    ],
)
def test_anything_but_exactly_the_state_dict_is_refused(change, problem, tmp_path):
    tensors, path = make_state_dict("annotated"), tmp_path / "run.pt"
    change(tensors)
    save(tensors, path)
    advice = "; expected the state dict of article 003, and the recipe annotated .*; pass what differs .*--config"
    with pytest.raises(PortingError, match=f"^{re.escape(f'cannot port {path}: {problem}')}{advice}"):
        read(path, "annotated")


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


def test_a_size_that_contradicts_the_tensors_is_refused(tmp_path):
    path = tmp_path / "run.pt"
    save(make_state_dict("annotated"), path)
    problem = f"{path}: encoder.layers.0.self_attention_block.w_q.weight has shape (24, 24), expected (40, 24)"
    with pytest.raises(PortingError, match=re.escape(problem)):
        read(path, "annotated", replace(config_of("annotated"), heads=5))


def test_more_layers_than_tensors_are_refused_before_their_names_are_generated(tmp_path):
    path = tmp_path / "run.pt"
    save(make_state_dict("annotated"), path)
    count = len(make_state_dict("annotated"))
    for field in ("layers", "decoder_layers"):
        with pytest.raises(PortingError, match=f"{count} tensors cannot be 1000000000 layers"):
            read(path, "annotated", replace(config_of("annotated"), **{field: 10**9}))


def test_a_configuration_of_another_model_is_refused(tmp_path):
    path = tmp_path / "run.pt"
    save(make_state_dict("annotated"), path)
    with pytest.raises(PortingError, match=r"article-annotated has no name for embeddings\.position\.weight"):
        read(path, "annotated", "bert-base-tiny")
    with pytest.raises(ConfigError, match=r"unknown field.*depth"):
        read(path, "annotated", {"depth": 3})


def test_folders_and_other_files_are_refused(tmp_path):
    expected = r"the state dict of the article's own code, a file \.pt, \.pth, \.bin, \.safetensors"
    with pytest.raises(PortingError, match=f"is a folder; expected {expected}"):
        read(tmp_path, "annotated")
    (tmp_path / "model").write_bytes(b"anything")
    with pytest.raises(PortingError, match=r"cannot read .*model: its format is unknown"):
        read(tmp_path / "model", "annotated")


def test_an_impossible_target_is_refused(make_checkpoint, tmp_path):
    with pytest.raises(PortingError, match=r"out: its suffix is '', expected \.pt, \.pth, \.bin, \.safetensors"):
        port(make_checkpoint("annotated-tiny"), tmp_path / "out", target_dialect="article-annotated")
    with pytest.raises(OutputError, match=r"missing/out\.pt: the folder .* does not exist"):
        port(make_checkpoint("annotated-tiny"), tmp_path / "missing" / "out.pt", target_dialect="article-annotated")
    assert list(tmp_path.iterdir()) == []


def test_bfloat16_in_npz_is_refused(make_checkpoint, tmp_path):
    plain = make_checkpoint("annotated-tiny")
    half = Checkpoint(plain.config, {name: tensor.astype(BFLOAT16) for name, tensor in plain.tensors.items()})
    with pytest.raises(PortingError, match=r"is bfloat16, which NumPy does not have; write \.pt or \.safetensors"):
        port(half, tmp_path / "out.npz", target_dialect="article-annotated")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("base", "changes", "losses"),
    [
        ("annotated", {"norm_eps": 1e-5}, "norm_eps 1e-05 (only 1e-06)"),
        ("annotated", {"activation": "gelu"}, "activation 'gelu' (only 'relu')"),
        ("annotated", {"masking_value": -1.0}, "masking_value -1.0 (only -1000000000.0)"),
        ("annotated", {"key_size": 5}, "key_size 5 times heads 3 (only hidden_size 24)"),
        ("annotated", {"value_size": 5}, "value_size 5 times heads 3 (only hidden_size 24)"),
        ("translation", {"normalize_memory": False}, "normalize_memory False (only True)"),
        ("translation", {"positions": "sinusoidal"}, "positions 'sinusoidal' (only 'sinusoidal_per_dimension')"),
        ("dygraph", {"masking": "fill"}, "masking 'fill' (only 'add')"),
        ("dygraph", {"norm_eps": 1e-12}, "norm_eps 1e-12 (only 1e-05)"),
    ],
)
def test_a_model_that_the_code_cannot_compute_is_refused(base, changes, losses, make_checkpoint, tmp_path):
    original = make_checkpoint(replace(config_of(base), **changes))
    problem = f"the dialect article-{base} cannot express {losses};"
    with pytest.raises(PortingError, match=f"^{re.escape(problem)}.*write another dialect"):
        port(original, tmp_path / "out.pt", target_dialect=f"article-{base}")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "changes", [{"pad_id": None, "residual_dropout": 0.5, "initializer": "bert"}, {"heads": 4, "key_size": 6}]
)
def test_arguments_of_the_code_can_have_any_value(changes, make_checkpoint, tmp_path):
    if "heads" in changes:
        changes = {**changes, "value_size": 6}
    original = make_checkpoint(replace(config_of("annotated"), **changes))
    port(original, tmp_path / "out.pt", target_dialect="article-annotated")
    assert read(tmp_path / "out.pt", "annotated", original.config).digest == original.digest


@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        ("compressed", "member encoder.norm.alpha.npy is compressed"),
        ("objects", "encoder.norm.alpha.npy is a pickle; Triglot does not unpickle"),
        ("text", "encoder.norm.alpha.npy has dtype <U3"),
        ("neutral", "manifest.json is not an array; save the state dict with numpy.savez"),
        ("no zip", "File is not a zip file"),
    ],
)
def test_another_npz_is_refused(damage, problem, make_checkpoint, tmp_path):
    path, name = tmp_path / "run.npz", "encoder.norm.alpha"
    if damage == "compressed":
        np.savez_compressed(path, allow_pickle=True, **{name: np.zeros(1)})
    elif damage == "neutral":
        port(make_checkpoint("annotated-tiny"), path)
    elif damage == "no zip":
        path.write_bytes(b"anything")
    else:
        np.savez(path, allow_pickle=True, **{name: np.array(["a", None]) if damage == "objects" else np.array(["abc"])})
    with pytest.raises(PortingError, match=f"^{re.escape(f'cannot read {path}: {problem}')}"):
        read(path, "annotated")


def test_fortran_order_is_read(tmp_path):
    arrays = {name: np.asfortranarray(tensor.detach().numpy()) for name, tensor in make_state_dict("annotated").items()}
    np.savez(tmp_path / "fortran.npz", allow_pickle=False, **arrays)
    save(make_state_dict("annotated"), tmp_path / "plain.npz")
    digests = {read(tmp_path / file, "annotated").digest for file in ("fortran.npz", "plain.npz")}
    assert len(digests) == 1


def test_the_command_ports_in_both_directions(command, workplace):
    model = filled(code.Translation(recipe("translation")))
    torch.save(model.state_dict(), "run.pt")
    heads = ("--set", "heads=4")
    status, out, error = command("port", "run.pt", "model.npz", *heads)
    assert (status, error) == (0, "")
    assert "left out embed_x.pe: Triglot computes" in out
    assert "left out embed_y.pe: Triglot computes" in out
    assert command("port", "model.npz", "back.pt", "--target-dialect", "article-translation", "--quiet") == (0, "", "")
    back = torch.load("back.pt", weights_only=True)
    code.Translation(recipe("translation")).load_state_dict(back, strict=True)
    for name, tensor in parameters_of(model.state_dict()).items():
        assert bits(back[name]) == bits(tensor), name
    assert command("inspect", "back.pt", *heads, "--quiet") == (0, "", "")


def test_the_command_takes_sizes(command, workplace):
    torch.save(make_state_dict("annotated"), "run.pt")
    arguments = ("port", "run.pt", "model.npz", "--source-dialect", "article-annotated", "--quiet")
    assert command(*arguments)[0] == 2
    assert command(*arguments, "--config", "annotated-tiny") == (0, "", "")
    config = config_of("annotated").to_dict()
    shown = recipe("annotated").to_dict()
    sizes = [f"{name}={config[name]}" for name in config if config[name] != shown[name] or name == "heads"]
    assert command(*arguments, *(part for size in sizes for part in ("--set", size))) == (0, "", "")
    assert triglot.load("model.npz").config == config_of("annotated")


def test_the_parity_command_reads_a_state_dict(command, workplace):
    torch.save(make_state_dict("annotated"), "run.pt")
    arguments = ("parity", "run.pt", "--config", "annotated-tiny", "--framework", "torch", "--quiet")
    assert command(*arguments, "--source-dialect", "article-annotated") == (0, "", "")
    assert command(*arguments) == (0, "", "")
