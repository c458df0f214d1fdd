"""The stock Transformers of PyTorch and PaddlePaddle, in both directions, against the libraries themselves."""

import importlib
import itertools
import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from checkpoint_files import assert_same_tensors
from hypothesis import given, settings
from hypothesis import strategies as st
from noise import assert_within_noise, random_batch, truth_of

import triglot
from triglot.shared.errors import PortingError
from triglot.shared.model.config import ModelConfig
from triglot.shared.model.initializers import initialize

# PyTorch warns that an odd number of heads has no fast path.
pytestmark = pytest.mark.filterwarnings("ignore:enable_nested_tensor is True")

SIZES = {"hidden_size": 24, "layers": 2, "heads": 3, "key_size": 8, "value_size": 8, "source_vocabulary": 0}
SUFFIXES = {"torch": ".pt", "paddle": ".pdparams"}
PROCESSES = {True: ("n", "da"), False: ("", "dan")}  # by whether the norm comes first
LINEAR = ("projection_bias", "output_bias", "feed_forward_bias")
# The biases of each layer: all, without those of linear layers (the default without biases in PaddlePaddle), or none
# (that in PyTorch).
BIASES = {
    "all": {},
    "norms": dict.fromkeys(LINEAR, False),
    "none": dict.fromkeys((*LINEAR, "norm_bias"), False),
}
FINAL = {"no": ("", True), "final": ("n", True), "biasless": ("n", False)}  # a final norm, and whether it has a bias


# The fields of each kind of model, and the value that its module returns.
KINDS = {"encoder": {}, "encoder_decoder": {"kind": "encoder_decoder", "decoder_layers": 3, "target_max_length": 512}}
RETURNED = {"encoder": "output", "encoder_decoder": "decoded"}


def config_of(
    kind="encoder",
    *,
    norm_first=False,
    final_norm="final",
    biases="all",
    activation: Any = "gelu",
    feed_forward_size=24,
    **fields,
):
    """Return the configuration of a stock Transformer. Its feed-forward matrices are square."""
    pre, post = PROCESSES[norm_first]
    final_process, final_norm_bias = FINAL[final_norm]
    return ModelConfig(
        **{**SIZES, **KINDS[kind], "norm_eps": 1e-5, **BIASES[biases], **fields},
        feed_forward_size=feed_forward_size,
        source_max_length=512,
        positions="none",
        pre_process=pre,
        post_process=post,
        final_process=final_process,
        final_norm_bias=final_norm_bias,
        activation=activation,
        masking="exclude",
    )


def answers(config):
    """Return what the tensors do not show."""
    norm_first = config.pre_process == "n"
    given = {"heads": config.heads, "norm_first": norm_first, "activation": config.activation}
    if config.final_process and not config.final_norm_bias:
        given["norm"] = "layer_norm"
    return {**given, "norm_eps": config.norm_eps}


def library_module(library, config):
    """Return the encoder, or the encoder-decoder, of a library for a configuration."""
    nn: Any = importlib.import_module(f"{library}.nn")
    norm_first = config.pre_process == "n"
    options: dict[str, Any] = {"dim_feedforward": config.feed_forward_size, "dropout": 0.0}
    options |= {"activation": config.activation}
    if library == "torch":
        options |= {"norm_first": norm_first, "batch_first": True, "bias": config.feed_forward_bias}
    else:
        biases = [None if bias else False for bias in (config.projection_bias, config.feed_forward_bias)]
        options |= {"normalize_before": norm_first, "bias_attr": biases}
    if config.kind == "encoder_decoder":  # Paddle's has no epsilon, but the default, which is that of these models
        layers = config.layers, config.decoder_layers
        module = nn.Transformer(config.hidden_size, config.heads, *layers, **options)
        stacks = [module.encoder, module.decoder]
    else:
        options |= {"layer_norm_eps": config.norm_eps}
        layer = nn.TransformerEncoderLayer(config.hidden_size, config.heads, **options)
        module = nn.TransformerEncoder(layer, config.layers)
        stacks = [module]
    for stack in stacks:
        stack.norm = library_norm(library, config, config.final_norm_bias) if config.final_process else None
        for layer, name in itertools.product(stack.layers, ("norm1", "norm2", "norm3")):
            if hasattr(layer, name) and (getattr(layer, name).bias is not None) != config.norm_bias:
                setattr(layer, name, library_norm(library, config, config.norm_bias))
    module.eval()
    return module


def library_norm(library, config, bias):
    """Return a norm of a library."""
    nn: Any = importlib.import_module(f"{library}.nn")
    options = {"bias": bias} if library == "torch" else {"bias_attr": None if bias else False}
    return nn.LayerNorm(config.hidden_size, config.norm_eps, **options)


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


def run(library, module, batch):
    """Return the output of a library at real tokens."""
    is_pair = batch.config.kind == "encoder_decoder"
    vectors, real = ([batch.source, batch.target], batch.target_valid) if is_pair else ([batch.source], batch.valid)
    causal = np.tril(np.ones((real.shape[1],) * 2, np.bool_))
    masks = [batch.valid[:, None, None, :]]  # True: may be attended to
    if is_pair:
        masks += [real[:, None, None, :] & causal, masks[0]]
    if library == "torch":
        import torch

        padding = {"src_key_padding_mask": torch.from_numpy(~batch.valid)}
        if is_pair:
            padding["memory_key_padding_mask"] = padding["src_key_padding_mask"]
            padding["tgt_key_padding_mask"] = torch.from_numpy(~real)
            padding["tgt_mask"] = torch.from_numpy(~causal)
        with torch.no_grad():
            output = module(*map(torch.from_numpy, vectors), **padding).numpy()
    else:
        import paddle

        added = [np.where(mask, np.float32(0), np.float32(-np.inf)) for mask in masks]
        output = module(*map(paddle.to_tensor, [*vectors, *added])).numpy()
    return {RETURNED[batch.config.kind]: np.where(real[:, :, None], output, 0)}


VARIANTS = [
    {"norm_first": norm_first, "final_norm": final_norm, "biases": biases, "activation": activation}
    for (norm_first, final_norm, biases), activation in zip(
        itertools.product((False, True), FINAL, BIASES), itertools.cycle(("gelu", "relu")), strict=False
    )
]


def variant_name(variant):
    return "-".join(map(str, variant.values()))


@pytest.mark.parametrize("library", SUFFIXES)
@pytest.mark.parametrize("variant", VARIANTS, ids=variant_name)
@pytest.mark.parametrize("kind", KINDS)
def test_a_model_moves_between_the_libraries(library, kind, variant, tmp_path):
    """The obvious job: from one library to the other and back, each against the same truth."""
    config = config_of(kind, **variant)
    source, (other,) = tmp_path / f"source{SUFFIXES[library]}", SUFFIXES.keys() - {library}
    original = library_module(library, config)
    save(library, original, source)
    checkpoint = triglot.port(source, config=answers(config))
    assert checkpoint.config == config
    batch = random_batch(config, (7, 1, 5))
    truth = truth_of(checkpoint, batch)
    assert_within_noise(run(library, original, batch), truth)

    target = tmp_path / f"target{SUFFIXES[other]}"
    triglot.port(checkpoint, target, target_dialect=f"{other}-transformer")
    ported = library_module(other, config)
    load(other, ported, target)
    assert_within_noise(run(other, ported, batch), truth)
    back = tmp_path / f"back{SUFFIXES[library]}"
    triglot.port(target, back, target_dialect=f"{library}-transformer", config=answers(config))
    assert triglot.port(back, config=answers(config)).digest == checkpoint.digest
    load(library, original, back)


@pytest.mark.parametrize("variant", [*VARIANTS[::4], VARIANTS[11]], ids=variant_name)
@pytest.mark.parametrize("kind", KINDS)
def test_every_framework_computes_a_ported_model(framework, kind, variant, make_checkpoint):
    """Within the noise around the truth, which the test above compares with the libraries."""
    checkpoint = make_checkpoint(config_of(kind, **variant))
    batch, model = random_batch(checkpoint.config, (7, 1, 5)), triglot.build(framework, checkpoint)
    values = {"output": model.encode(batch.source, batch.valid)}
    if kind == "encoder_decoder":
        values["decoded"] = model.forward(batch.source, batch.target, batch.valid, batch.target_valid)
    assert_within_noise(values, truth_of(checkpoint, batch))


@settings(max_examples=25)
@given(
    library=st.sampled_from(list(SUFFIXES)),
    suffix=st.sampled_from([".pt", ".bin", ".safetensors", ".pdparams", ".npz"]),
    dtype=st.sampled_from(["float32", "float64", "float16"]),
    kind=st.sampled_from([*KINDS]),
    fields=st.fixed_dictionaries(
        {
            "norm_first": st.booleans(),
            "final_norm": st.sampled_from([*FINAL]),
            "biases": st.sampled_from([*BIASES]),
            "layers": st.integers(1, 3),
            "feed_forward_size": st.sampled_from([7, 12]),
        }
    ),
    seed=st.integers(0, 99),
)
def test_a_checkpoint_survives_the_way_there_and_back(library, suffix, dtype, kind, fields, seed, tmp_path_factory):
    """Bit for bit, also with square matrices."""
    path = tmp_path_factory.mktemp("way")
    config = config_of(kind, **fields, norm_eps=1e-3, hidden_size=12, heads=3, key_size=4, value_size=4)
    tensors = {name: tensor.astype(dtype) for name, tensor in initialize(config, seed).items()}
    checkpoint = triglot.Checkpoint(config, tensors)
    file = path / f"file{suffix}"
    triglot.port(checkpoint, file, target_dialect=f"{library}-transformer")
    back = triglot.port(file, config=answers(config))
    assert back.config == config
    assert back.digest == checkpoint.digest
    assert_same_tensors(back.tensors, tensors)


def test_an_rms_norm_is_not_taken_for_a_layer_norm(tmp_path):
    """It has a weight and no bias, as a LayerNorm may have."""
    import torch

    layer = torch.nn.TransformerEncoderLayer(24, 3, 40, batch_first=True)
    path, config = tmp_path / "model.pt", config_of()
    save("torch", torch.nn.TransformerEncoder(layer, 2, norm=torch.nn.RMSNorm(24)), path)
    with pytest.raises(PortingError, match=r"do not show norm; add --set norm=layer_norm"):
        triglot.port(path, config=answers(config))
    tensors = torch.load(path, weights_only=True)
    torch.save({name: tensor for name, tensor in tensors.items() if not re.search(r"norm\d\.bias", name)}, path)
    with pytest.raises(PortingError, match=r"cannot express .*norm_bias False \(only all True, or the first three"):
        triglot.port(path, config={**answers(config), "norm": "layer_norm"})


@pytest.mark.parametrize("library", SUFFIXES)
def test_what_no_tensor_shows_is_asked_for_at_once(library, tmp_path):
    config, path = config_of(), tmp_path / f"file{SUFFIXES[library]}"
    save(library, library_module(library, config), path)
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


@pytest.mark.parametrize(
    ("library", "missing", "problem"),
    [
        (
            "torch",
            {"feed_forward_bias"},
            "projection_bias True, output_bias True, feed_forward_bias False, norm_bias True (only all True, or",
        ),
        ("torch", {"norm_bias"}, "feed_forward_bias True, norm_bias False (only all True, or the first three False)"),
        ("torch", {"projection_bias", "output_bias"}, "(only all True, or the first three False)"),
        ("paddle", {"output_bias"}, "projection_bias True, output_bias False, feed_forward_bias True, norm_bias True"),
        ("paddle", {"projection_bias"}, "(only the first two alike)"),
    ],
)
def test_biases_that_a_library_cannot_leave_out_alone_are_refused(library, missing, problem, tmp_path):
    fields: dict[str, Any] = dict.fromkeys(missing, False)
    config = config_of(**fields)
    checkpoint = triglot.Checkpoint(config, initialize(config, 0))
    with pytest.raises(PortingError, match=re.escape(problem)):
        triglot.port(checkpoint, tmp_path / "out.npz", target_dialect=f"{library}-transformer")
    assert not list(tmp_path.iterdir())


def test_paddle_may_leave_out_the_biases_of_attention_alone(tmp_path):
    config, path = config_of(projection_bias=False, output_bias=False), tmp_path / "file.pdparams"
    original = library_module("paddle", config)
    save("paddle", original, path)
    checkpoint = triglot.port(path, config=answers(config))
    assert checkpoint.config == config
    batch = random_batch(config, (7, 1, 5))
    assert_within_noise(run("paddle", original, batch), truth_of(checkpoint, batch))


def test_a_bias_that_only_some_layers_have_is_refused(tmp_path):
    config, path = config_of(), tmp_path / "file.safetensors"
    triglot.port(triglot.Checkpoint(config, initialize(config, 0)), path, target_dialect="torch-transformer")
    tensors = safetensors.numpy.load_file(path)
    del tensors["layers.1.linear1.bias"]
    safetensors.numpy.save_file(tensors, path)
    with pytest.raises(PortingError, match=r"missing layers\.1\.linear1\.bias; expected the state dict of"):
        triglot.port(path, config=answers(config))
    del tensors["layers.0.linear1.bias"]
    safetensors.numpy.save_file(tensors, path)
    with pytest.raises(PortingError, match=r"unexpected layers\.0\.linear2\.bias"):
        triglot.port(path, config=answers(config))


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("decoder.norm.weight", "missing decoder.norm.weight"),
        ("encoder.norm.weight", "unexpected decoder.norm.weight"),
        ("decoder.layers.2.multihead_attn.in_proj_bias", "missing decoder.layers.2.multihead_attn.in_proj_bias"),
    ],
)
def test_stacks_that_differ_are_refused(name, problem, tmp_path):
    config, path = config_of("encoder_decoder"), tmp_path / "file.safetensors"
    triglot.port(triglot.Checkpoint(config, initialize(config, 0)), path, target_dialect="torch-transformer")
    tensors = safetensors.numpy.load_file(path)
    del tensors[name]
    safetensors.numpy.save_file(tensors, path)
    with pytest.raises(PortingError, match=f"{re.escape(problem)}.*, whose stacks have the same biases"):
        triglot.port(path, config=answers(config))


def test_a_decoder_of_tokens_is_refused(make_checkpoint, tmp_path):
    """The modules have neither embeddings nor a head."""
    checkpoint = make_checkpoint("annotated-tiny")
    for library in SUFFIXES:
        problem = f"{library}-transformer cannot express positions 'sinusoidal' \\(only 'none'\\).*heads_on_top"
        with pytest.raises(PortingError, match=problem):
            triglot.port(checkpoint, tmp_path / "out.npz", target_dialect=f"{library}-transformer")
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


def test_the_fixed_epsilon_of_a_paddle_transformer_is_named(command, tmp_path):
    config = config_of("encoder_decoder")
    for eps, warned in ((1e-5, False), (1e-3, True)):
        triglot.save(triglot.initialize(replace(config, norm_eps=eps)), tmp_path / "model.npz")
        _, out, _ = command(
            "port", tmp_path / "model.npz", tmp_path / "x.pdparams", "--target-dialect", "paddle-transformer"
        )
        assert ("the module always uses an epsilon of 1e-05, so its results differ" in out) == warned
