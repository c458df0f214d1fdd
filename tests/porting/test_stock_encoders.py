"""The stock encoders of PyTorch and PaddlePaddle, in both directions, against the libraries themselves."""

import importlib
import itertools
import re
from typing import Any

import numpy as np
import pytest
from checkpoint_files import assert_same_tensors
from hypothesis import given, settings
from hypothesis import strategies as st
from noise import assert_within_noise, random_batch, truth_of

import triglot
from triglot.shared.errors import PortingError
from triglot.shared.model.config import ModelConfig
from triglot.shared.model.initializers import initialize

SIZES = {"hidden_size": 24, "layers": 2, "heads": 3, "key_size": 8, "value_size": 8, "source_vocabulary": 0}
SUFFIXES = {"torch": ".pt", "paddle": ".pdparams"}
PROCESSES = {True: ("n", "da"), False: ("", "dan")}  # by whether the norm comes first


def config_of(
    *, norm_first=False, final_norm=True, activation: Any = "gelu", feed_forward_size=24, norm_eps=1e-5, **fields
):
    """Return the configuration of a stock encoder. Its feed-forward matrices are square."""
    pre, post = PROCESSES[norm_first]
    return ModelConfig(
        **{**SIZES, **fields},
        feed_forward_size=feed_forward_size,
        source_max_length=512,
        positions="none",
        pre_process=pre,
        post_process=post,
        final_process="n" if final_norm else "",
        norm_eps=norm_eps,
        activation=activation,
        masking="exclude",
    )


def answers(config):
    """Return what the tensors do not show."""
    norm_first = config.pre_process == "n"
    return {
        "heads": config.heads,
        "norm_first": norm_first,
        "activation": config.activation,
        "norm_eps": config.norm_eps,
    }


def library_encoder(library, config):
    """Return the encoder of a library for a configuration."""
    nn: Any = importlib.import_module(f"{library}.nn")
    norm_first = config.pre_process == "n"
    placement = (
        {"norm_first": norm_first, "batch_first": True} if library == "torch" else {"normalize_before": norm_first}
    )
    epsilon = {"layer_norm_eps": config.norm_eps}
    layer = nn.TransformerEncoderLayer(
        config.hidden_size, config.heads, config.feed_forward_size, 0.0, config.activation, **placement, **epsilon
    )
    norm = nn.LayerNorm(config.hidden_size, config.norm_eps) if config.final_process else None
    nested = {"enable_nested_tensor": False} if library == "torch" else {}
    encoder = nn.TransformerEncoder(layer, config.layers, norm, **nested)
    encoder.eval()
    return encoder


def save(library, encoder, path):
    """Write random weights into the encoder, without a norm or a bias that is the identity, and save it."""
    generator = np.random.default_rng(0)
    state = {
        name: tensor.numpy() + generator.normal(0, 0.2, tuple(tensor.shape)).astype(np.float32)
        for name, tensor in encoder.state_dict().items()
    }
    if library == "torch":
        import torch

        encoder.load_state_dict({name: torch.from_numpy(array) for name, array in state.items()})
        torch.save(encoder.state_dict(), path)
    else:
        import paddle

        encoder.set_state_dict(state)
        paddle.save(encoder.state_dict(), str(path))


def load(library, encoder, path):
    """Load a file that Triglot wrote, strictly, by the library itself."""
    if library == "torch":
        import torch

        encoder.load_state_dict(torch.load(path, weights_only=True))
    else:
        import paddle

        missing, unexpected = encoder.set_state_dict(paddle.load(str(path)))
        assert (missing, unexpected) == ([], [])


def run(library, encoder, batch):
    """Return the output of a library at real tokens."""
    if library == "torch":
        import torch

        with torch.no_grad():
            output = encoder(
                torch.from_numpy(batch.source), src_key_padding_mask=torch.from_numpy(~batch.valid)
            ).numpy()
    else:
        import paddle

        mask = np.where(batch.valid, np.float32(0), np.float32(-np.inf))[:, None, None, :]
        output = encoder(paddle.to_tensor(batch.source), paddle.to_tensor(mask)).numpy()
    return {"output": np.where(batch.valid[:, :, None], output, 0)}


VARIANTS = [
    {"norm_first": norm_first, "final_norm": final_norm, "activation": activation}
    for (norm_first, final_norm), activation in zip(
        itertools.product((False, True), repeat=2), ("gelu", "relu", "relu", "gelu"), strict=True
    )
]


@pytest.mark.parametrize("library", SUFFIXES)
@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_an_encoder_moves_between_the_libraries(library, variant, tmp_path):
    """The obvious job: from one library to the other, each against the same truth."""
    config = config_of(**variant)
    source, (other,) = tmp_path / f"source{SUFFIXES[library]}", SUFFIXES.keys() - {library}
    original = library_encoder(library, config)
    save(library, original, source)
    checkpoint = triglot.port(source, config=answers(config))
    assert checkpoint.config == config
    batch = random_batch(config, (7, 1, 5))
    truth = truth_of(checkpoint, batch)
    assert_within_noise(run(library, original, batch), truth)

    target = tmp_path / f"target{SUFFIXES[other]}"
    triglot.port(checkpoint, target, target_dialect=f"{other}-transformer")
    ported = library_encoder(other, config)
    load(other, ported, target)
    assert_within_noise(run(other, ported, batch), truth)
    assert triglot.port(target, config=answers(config)).digest == checkpoint.digest


@settings(max_examples=25)
@given(
    library=st.sampled_from(list(SUFFIXES)),
    suffix=st.sampled_from([".pt", ".bin", ".safetensors", ".pdparams", ".npz"]),
    dtype=st.sampled_from(["float32", "float64", "float16"]),
    fields=st.fixed_dictionaries(
        {
            "norm_first": st.booleans(),
            "final_norm": st.booleans(),
            "layers": st.integers(1, 3),
            "feed_forward_size": st.sampled_from([7, 12]),
        }
    ),
    seed=st.integers(0, 99),
)
def test_a_checkpoint_survives_the_way_there_and_back(library, suffix, dtype, fields, seed, tmp_path_factory):
    """Bit for bit, also with square matrices."""
    path = tmp_path_factory.mktemp("way")
    config = config_of(**fields, norm_eps=1e-3, hidden_size=12, heads=3, key_size=4, value_size=4)
    tensors = {name: tensor.astype(dtype) for name, tensor in initialize(config, seed).items()}
    checkpoint = triglot.Checkpoint(config, tensors)
    file = path / f"file{suffix}"
    triglot.port(checkpoint, file, target_dialect=f"{library}-transformer")
    back = triglot.port(file, config=answers(config))
    assert back.config == config
    assert back.digest == checkpoint.digest
    assert_same_tensors(back.tensors, tensors)


@pytest.mark.parametrize("library", SUFFIXES)
def test_what_no_tensor_shows_is_asked_for_at_once(library, tmp_path):
    config, path = config_of(), tmp_path / f"file{SUFFIXES[library]}"
    save(library, library_encoder(library, config), path)
    options = (
        "--set heads=NUMBER --set norm_first=true|false --set activation=relu|gelu|gelu_tanh --set norm_eps=NUMBER"
    )
    problem = f"the tensors do not show heads, norm_first, activation, norm_eps; add {options}, or --config"
    with pytest.raises(PortingError, match=re.escape(problem)):
        triglot.port(path)
    given_answers = answers(config)
    with pytest.raises(PortingError, match=r"do not show norm_eps; add --set norm_eps=NUMBER"):
        triglot.port(path, config={name: given_answers[name] for name in ("heads", "norm_first", "activation")})
    with pytest.raises(PortingError, match="norm_first is 'first'; expected true or false"):
        triglot.port(path, config={**given_answers, "norm_first": "first"})
    with pytest.raises(PortingError, match="heads is 5; expected a divisor of 24, the size of all heads"):
        triglot.port(path, config={**given_answers, "heads": 5})


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"pre_process": "n", "post_process": "dan"}, "pre_process 'n' with post_process 'dan' (only 'n' with 'da'"),
        ({"final_process": "d"}, "final_process 'd' (only '' or 'n')"),
        ({"masking": "fill", "masking_value": -1e9}, "masking 'fill' (only 'exclude')"),
        ({"projection_bias": False}, "projection_bias False (only True)"),
        ({"key_size": 4}, "key_size 4 times heads 3 (only hidden_size 24)"),
    ],
)
def test_a_model_that_the_libraries_cannot_compute_is_refused(fields, problem, tmp_path):
    config = ModelConfig.from_dict({**config_of().to_dict(), **fields})
    checkpoint = triglot.Checkpoint(config, initialize(config, 0))
    for library, suffix in SUFFIXES.items():
        with pytest.raises(PortingError, match=re.escape(f"{library}-transformer cannot express {problem}")):
            triglot.port(checkpoint, tmp_path / f"out{suffix}", target_dialect=f"{library}-transformer")
    assert not list(tmp_path.iterdir())


def test_parts_of_several_dtypes_are_not_packed(tmp_path):
    """Concatenation would convert one of them in silence."""
    config = config_of()
    tensors: dict[str, Any] = {**initialize(config, 0)}
    tensors["encoder.layers.1.attention.key.bias"] = tensors["encoder.layers.1.attention.key.bias"].astype(np.float16)
    checkpoint = triglot.Checkpoint(config, tensors)
    problem = r"layers\.1\.self_attn\.in_proj_bias would pack tensors of float32 and float16 into one; convert"
    with pytest.raises(PortingError, match=problem):
        triglot.port(checkpoint, tmp_path / "out.pt", target_dialect="torch-transformer")
    assert not list(tmp_path.iterdir())
    triglot.port(checkpoint, tmp_path / "out.pdparams", target_dialect="paddle-transformer")
    assert triglot.port(tmp_path / "out.pdparams", config=answers(config)).digest == checkpoint.digest
