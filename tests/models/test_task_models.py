"""BERT and ERNIE with the heads of their pre-training, ported from transformers and back without a changed bit."""

import json
import re
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from bert_folders import SIZES
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from triglot import impls, port
from triglot.shared import checkpoint
from triglot.shared.errors import PortingError

TASKS = {"use_task_id": True, "task_type_vocab_size": 3}
# The class of transformers, and the fields of its configuration.
MODELS = {
    "bert": ("BertModel", {}),
    "bert pre-training": ("BertForPreTraining", {}),
    "bert pre-training, untied": ("BertForPreTraining", {"tie_word_embeddings": False}),
    "bert masked_lm": ("BertForMaskedLM", {"hidden_act": "relu", "type_vocab_size": 16}),
    "bert masked_lm, untied": ("BertForMaskedLM", {"hidden_act": "gelu_new", "tie_word_embeddings": False}),
    "bert next_sentence": ("BertForNextSentencePrediction", {"layer_norm_eps": 1e-5, "pad_token_id": 5}),
    "ernie": ("ErnieModel", {**TASKS, "type_vocab_size": 4}),
    "ernie pre-training": ("ErnieForPreTraining", {**TASKS, "type_vocab_size": 16}),
    "ernie pre-training, untied": (
        "ErnieForPreTraining",
        {**TASKS, "task_type_vocab_size": 16, "tie_word_embeddings": False},
    ),
    "ernie masked_lm": ("ErnieForMaskedLM", {**TASKS}),
}
HEADS = {
    "Model": ("pooler",),
    "ForPreTraining": ("pooler", "masked_lm", "next_sentence"),
    "ForMaskedLM": ("masked_lm",),
    "ForNextSentencePrediction": ("pooler", "next_sentence"),
}
WITH_MASKED_LM = [kind for kind, (name, _) in MODELS.items() if "masked_lm" in HEADS[re.sub("^(Bert|Ernie)", "", name)]]
UNTIED = [kind for kind in MODELS if "untied" in kind]
TIED = [kind for kind in WITH_MASKED_LM if kind not in UNTIED]
# The canonical name of each tensor of a head, and its name in transformers.
NATIVE_HEADS = {
    "heads.masked_lm.transform.weight": "cls.predictions.transform.dense.weight",
    "heads.masked_lm.transform.bias": "cls.predictions.transform.dense.bias",
    "heads.masked_lm.norm.scale": "cls.predictions.transform.LayerNorm.weight",
    "heads.masked_lm.norm.bias": "cls.predictions.transform.LayerNorm.bias",
    "heads.masked_lm.decoder.weight": "cls.predictions.decoder.weight",
    "heads.masked_lm.bias": "cls.predictions.bias",
    "heads.next_sentence.weight": "cls.seq_relationship.weight",
    "heads.next_sentence.bias": "cls.seq_relationship.bias",
}
DECODER, DECODER_BIAS, BIAS = "cls.predictions.decoder.weight", "cls.predictions.decoder.bias", "cls.predictions.bias"
DTYPES = {"float64": np.float64, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}


@pytest.fixture
def make_model(tmp_path):
    """Return a function that draws every parameter of a model of transformers, and returns it and its saved folder."""
    import torch
    import transformers

    def make(kind, dtype="float32"):
        name, fields = MODELS[kind]
        family = re.match("Bert|Ernie", name)
        assert family is not None
        config = getattr(transformers, f"{family[0]}Config")(**SIZES, **fields)
        model = getattr(transformers, name)(config).eval()
        generator = torch.Generator().manual_seed(0)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=generator))
        model.to(getattr(torch, dtype))
        model.save_pretrained(tmp_path / "model")
        return model, tmp_path / "model"

    return make


def heads_of(kind):
    """Return the heads of a model by their canonical names."""
    return HEADS[re.sub("^(Bert|Ernie)", "", MODELS[kind][0])]


def change_tensors(folder, change):
    """Replace the tensors of a saved model by ``change(tensors)``."""
    path = folder / "model.safetensors"
    save_file({name: np.ascontiguousarray(tensor) for name, tensor in change(load_file(path)).items()}, path)


def inputs_of(kind):
    """Draw two rows, one with padding. Return the arguments of Triglot, and the tensors of transformers by name."""
    import torch

    _, fields = MODELS[kind]
    generator = np.random.default_rng(0)
    ids, segments = generator.integers(0, 31, (2, 9)), generator.integers(0, fields.get("type_vocab_size", 2), (2, 9))
    valid = np.array([[True] * 9, [True] * 4 + [False] * 5])
    arrays = {"input_ids": ids, "token_type_ids": segments, "attention_mask": valid}
    tasks = None
    if "use_task_id" in fields:
        tasks = generator.integers(0, fields["task_type_vocab_size"], (2, 9))
        arrays["task_type_ids"] = tasks
    return (ids, valid, segments, tasks), {name: torch.from_numpy(array) for name, array in arrays.items()}


def outputs_of(model, inputs):
    """Return the output and the heads of a model of transformers, by canonical name."""
    import torch

    body = getattr(model, model.base_model_prefix, model)
    with torch.no_grad():
        result, encoded = model(**inputs), body(**inputs)
    outputs = {"output": encoded.last_hidden_state}
    if encoded.pooler_output is not None:
        outputs["pooler"] = encoded.pooler_output
    kind = re.sub("^(Bert|Ernie)", "", type(model).__name__)
    if kind == "ForPreTraining":
        outputs |= {"masked_lm": result.prediction_logits, "next_sentence": result.seq_relationship_logits}
    elif kind != "Model":
        outputs["masked_lm" if kind == "ForMaskedLM" else "next_sentence"] = result.logits
    return outputs


@pytest.mark.parametrize("kind", [kind for kind in MODELS if heads_of(kind) != ("pooler",)])
def test_heads_are_ported_bit_for_bit(kind, make_model):
    model, folder = make_model(kind)
    ported = port(folder)
    native_tensors = {name: tensor.numpy() for name, tensor in model.state_dict().items()}
    tied = kind not in UNTIED
    expected = {
        name: native
        for name, native in NATIVE_HEADS.items()
        if name.split(".")[1] in heads_of(kind) and not (tied and native == DECODER)
    }
    if kind in UNTIED:
        expected["heads.masked_lm.bias"] = DECODER_BIAS
    head_tensors = {name: tensor for name, tensor in ported.tensors.items() if name in NATIVE_HEADS}
    assert head_tensors.keys() == expected.keys()
    for name, native in expected.items():
        is_linear = name in ("heads.masked_lm.transform.weight", "heads.next_sentence.weight")
        native_tensor = native_tensors[native].T if is_linear else native_tensors[native]
        np.testing.assert_array_equal(head_tensors[name], native_tensor, err_msg=name)
        assert ported.source_names[name] == native
    np.testing.assert_array_equal(
        ported.tensors["embeddings.token.weight"],
        native_tensors[f"{model.base_model_prefix}.embeddings.word_embeddings.weight"],
    )
    assert ported.config.heads_on_top == heads_of(kind)
    assert ported.config.tied_embeddings == (kind in TIED)
    # Every tensor of the file is ported, except the second bias of an untied decoder, which is not used.
    unused = set(load_file(folder / "model.safetensors")) - set(ported.source_names.values())
    assert unused == ({BIAS} if kind in UNTIED else set())


@pytest.mark.parametrize("kind", MODELS)
def test_ported_heads_compute_what_transformers_computes(kind, make_model):
    model, folder = make_model(kind)
    arrays, inputs = inputs_of(kind)
    expected = outputs_of(model.double(), inputs)
    reference = impls.build("numpy", port(folder), dtype="float64")
    valid = arrays[1]
    outputs = {"output": reference.encode(*arrays), **reference.heads(*arrays)}
    assert outputs.keys() == expected.keys() == {"output", *heads_of(kind)}
    for name, value in expected.items():
        judged = valid if name in ("output", "masked_lm") else slice(None)
        # Values and weights are of order 1, sums have at most 17 terms, and there are two layers and a head. Rounding
        # therefore adds a few hundred units of 2^-52, which is below 1e-13, or ten times that where a softmax is
        # steep. The smallest mistake, a wrong epsilon, shifts the values by 1e-6.
        np.testing.assert_allclose(outputs[name][judged], value.numpy()[judged], rtol=0, atol=1e-12, err_msg=name)
    if "masked_lm" in outputs:
        np.testing.assert_array_equal(outputs["masked_lm"][~valid], 0)


@pytest.mark.parametrize("kind", MODELS)
def test_a_model_ported_back_is_the_same_in_transformers(kind, make_model, tmp_path):
    import torch

    model, folder = make_model(kind)
    first = port(folder, tmp_path / "model.npz")
    target = tmp_path / "out"
    port(tmp_path / "model.npz", target, target_dialect="huggingface")
    loaded, report = type(model).from_pretrained(target, local_files_only=True, output_loading_info=True)
    assert not any(report.values()), report
    _, inputs = inputs_of(kind)
    expected, outputs = outputs_of(model, inputs), outputs_of(loaded.eval(), inputs)
    assert outputs.keys() == expected.keys()
    for name, value in expected.items():
        assert torch.equal(outputs[name], value), name
    assert port(target).digest == first.digest
    assert port(target).config == first.config
    fields = json.loads((target / "config.json").read_text())
    assert fields == {name: model.config.to_dict()[name] for name in fields}
    assert load_file(target / "model.safetensors").keys() == load_file(folder / "model.safetensors").keys()


def test_an_encoder_without_a_pooler_is_ported_back(tmp_path, make_model):
    import transformers

    _, folder = make_model("bert")
    change_tensors(folder, lambda tensors: {k: v for k, v in tensors.items() if not k.startswith("pooler")})
    first = port(folder, tmp_path / "out", target_dialect="huggingface")
    loaded: Any = transformers.BertModel.from_pretrained(
        tmp_path / "out", add_pooling_layer=False, local_files_only=True, output_loading_info=True
    )
    report = loaded[1]
    assert not any(report.values()), report
    assert port(tmp_path / "out").digest == first.digest


def test_an_ernie_without_tasks_is_ported_back_as_a_bert(tmp_path, make_model):
    _, folder = make_model("ernie pre-training")
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "use_task_id": False}))
    table = "ernie.embeddings.task_type_embeddings.weight"
    change_tensors(folder, lambda tensors: {k: v for k, v in tensors.items() if k != table})
    first = port(folder, tmp_path / "out", target_dialect="huggingface")
    assert json.loads((tmp_path / "out" / "config.json").read_text())["architectures"] == ["BertForPreTraining"]
    assert port(tmp_path / "out").digest == first.digest


@pytest.mark.parametrize("kind", ["bert pre-training", "bert pre-training, untied", "ernie pre-training"])
def test_heads_with_old_tensor_names_are_ported(kind, make_model):
    model, folder = make_model(kind)
    digest = port(folder).digest
    prefix = f"{model.base_model_prefix}."
    change_tensors(folder, lambda tensors: {name.removeprefix(prefix): tensor for name, tensor in tensors.items()})
    assert port(folder).digest == digest
    old = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}

    def rename(tensors):
        renamed = {}
        for name, tensor in tensors.items():
            leaf = ".".join(name.split(".")[-2:])
            renamed[name.replace(leaf, old.get(leaf, leaf))] = tensor
        assert sum("gamma" in name for name in renamed) == sum("beta" in name for name in renamed) == 6
        return {**renamed, f"{prefix}embeddings.position_ids": np.arange(9)[None]}

    change_tensors(folder, rename)
    assert port(folder).digest == digest


@pytest.mark.parametrize("kind", UNTIED)
def test_the_bias_of_an_untied_decoder_is_used(kind, make_model):
    model, folder = make_model(kind)
    native_tensors = {name: tensor.numpy() for name, tensor in model.state_dict().items()}
    assert (native_tensors[BIAS] != native_tensors[DECODER_BIAS]).any()
    digest = port(folder).digest
    change_tensors(folder, lambda tensors: {**tensors, BIAS: tensors[BIAS] + 1})
    assert port(folder).digest == digest
    change_tensors(folder, lambda tensors: {**tensors, DECODER_BIAS: tensors[DECODER_BIAS] + 1})
    np.testing.assert_array_equal(port(folder).tensors["heads.masked_lm.bias"], native_tensors[DECODER_BIAS] + 1)


@pytest.mark.parametrize("kind", UNTIED)
def test_an_untied_model_without_its_decoder_is_refused(kind, make_model):
    _, folder = make_model(kind)
    change_tensors(folder, lambda tensors: {k: v for k, v in tensors.items() if k != DECODER})
    with pytest.raises(PortingError, match=f"{re.escape(str(folder))}.*missing {DECODER}"):
        port(folder)


@pytest.mark.parametrize("kind", TIED)
def test_a_tied_decoder_that_repeats_the_token_table_is_accepted(kind, make_model, tmp_path):
    model, folder = make_model(kind)
    plain = port(folder)
    table = f"{model.base_model_prefix}.embeddings.word_embeddings.weight"
    change_tensors(folder, lambda t: {**t, DECODER: t[table], DECODER_BIAS: t[BIAS]})
    ported = port(folder, tmp_path / "model.npz")
    assert ported.digest == plain.digest
    assert ported.config == plain.config
    assert ported.source_names["heads.masked_lm.decoder.weight"] == DECODER
    assert checkpoint.load(tmp_path / "model.npz").source_names == ported.source_names
    # A file may use either name of the bias.
    change_tensors(folder, lambda tensors: {k: v for k, v in tensors.items() if k != BIAS})
    assert port(folder).digest == plain.digest


@pytest.mark.parametrize("explicit", [True, False])
@pytest.mark.parametrize(("tied", "original"), [(DECODER, "embeddings.word_embeddings.weight"), (DECODER_BIAS, BIAS)])
def test_a_tied_decoder_that_differs_is_refused(explicit, tied, original, make_model):
    _, folder = make_model("bert pre-training")
    config = json.loads((folder / "config.json").read_text())
    assert config["tie_word_embeddings"] is True
    if not explicit:
        del config["tie_word_embeddings"]  # true is the default of transformers
        (folder / "config.json").write_text(json.dumps(config))

    def change(tensors):
        changed = (tensors[original] if original == BIAS else tensors[f"bert.{original}"]).copy()
        changed[0] = np.nextafter(changed[0], np.float32(9))
        return {**tensors, tied: changed}

    change_tensors(folder, change)
    message = f"{re.escape(str(folder))}.*{tied} differs from {original}.*tie_word_embeddings.*false"
    with pytest.raises(PortingError, match=message):
        port(folder)


def test_next_sentence_without_the_pooler_is_refused(make_model):
    _, folder = make_model("bert next_sentence")
    change_tensors(folder, lambda tensors: {k: v for k, v in tensors.items() if not k.startswith("bert.pooler")})
    message = f"{re.escape(str(folder))}.*missing pooler.dense.weight.*cls.seq_relationship.weight"
    with pytest.raises(PortingError, match=message):
        port(folder)


@pytest.mark.parametrize(("dtype", "numpy_dtype"), DTYPES.items())
def test_other_dtypes_are_ported_bit_for_bit(dtype, numpy_dtype, make_model, tmp_path):
    import torch

    model, folder = make_model("bert pre-training, untied", dtype)
    bits = {8: torch.int64, 2: torch.int16}[np.dtype(numpy_dtype).itemsize]
    native_bits = {name: tensor.view(bits).numpy() for name, tensor in model.state_dict().items()}
    ported = port(folder, tmp_path / "model.npz")
    for converted in (ported, checkpoint.load(tmp_path / "model.npz", "full")):
        for name, tensor in converted.tensors.items():
            assert tensor.dtype == numpy_dtype
            native = native_bits[converted.source_names[name]]
            is_linear = tensor.ndim == 2 and not name.startswith("embeddings") and "decoder" not in name
            expected = native.T if is_linear else native
            np.testing.assert_array_equal(tensor.view(f"i{tensor.itemsize}"), expected, err_msg=name)
    port(tmp_path / "model.npz", tmp_path / "out", target_dialect="huggingface")
    ported_back = load_file(tmp_path / "out" / "model.safetensors")
    for name, tensor in load_file(folder / "model.safetensors").items():
        if name != BIAS:  # not used by an untied decoder
            assert ported_back[name].dtype == tensor.dtype == numpy_dtype
            assert ported_back[name].tobytes() == tensor.tobytes(), name
    assert port(tmp_path / "out").digest == ported.digest
    loaded = type(model).from_pretrained(tmp_path / "out", local_files_only=True)
    assert loaded.dtype == getattr(torch, dtype)


def test_one_file_may_mix_dtypes(make_model):
    _, folder = make_model("bert")
    change_tensors(folder, lambda t: {**t, "pooler.dense.bias": t["pooler.dense.bias"].astype(ml_dtypes.bfloat16)})
    dtypes = {name: tensor.dtype for name, tensor in port(folder).tensors.items()}
    assert {name for name, dtype in dtypes.items() if dtype != np.float32} == {"heads.pooler.bias"}
    assert dtypes["heads.pooler.bias"] == ml_dtypes.bfloat16


@pytest.mark.parametrize(
    ("dtype", "safetensors_name"),
    [
        (np.int64, "I64"),
        (np.int32, "I32"),
        (np.int8, "I8"),
        (np.uint8, "U8"),
        (np.bool_, "BOOL"),
        (np.complex64, "C64"),
        (ml_dtypes.float8_e4m3fn, "F8_E4M3"),
    ],
)
def test_an_unsupported_dtype_is_refused(dtype, safetensors_name, make_model):
    _, folder = make_model("bert pre-training")
    path = folder / "model.safetensors"
    change_tensors(folder, lambda t: {**t, "bert.pooler.dense.bias": t["bert.pooler.dense.bias"].astype(dtype)})
    with safe_open(path, framework="numpy") as file:
        assert file.get_slice("bert.pooler.dense.bias").get_dtype() == safetensors_name
    problem = f"is {safetensors_name}" if safetensors_name in ("C64", "F8_E4M3") else f"has dtype {np.dtype(dtype)}"
    with pytest.raises(PortingError, match=f"bert.pooler.dense.bias {problem}.*expected one of"):
        port(folder)
