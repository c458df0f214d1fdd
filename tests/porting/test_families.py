"""RoBERTa, DistilBERT, ELECTRA and classifiers: saved by transformers, ported, judged, written and loaded again."""

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from noise import assert_within_noise, truth_of
from safetensors.numpy import load_file, save_file

from triglot import impls, port
from triglot.shared.errors import ConfigError, PortingError
from triglot.shared.inputs import encoder_batch

SIZES: dict[str, Any] = {
    "vocab_size": 61,
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 40,
    "max_position_embeddings": 19,
}
DISTILBERT = {"dim": 24, "n_layers": 2, "n_heads": 4, "hidden_dim": 40}
ROBERTA = {"pad_token_id": 1, "type_vocab_size": 1}
UNTIED = {"tie_word_embeddings": False}
# The class of transformers, the fields of its configuration that differ from SIZES, and the heads in Triglot.
CLASSIFIER = ("pooler", "sequence_classifier")
MODELS: dict[str, tuple[str, dict[str, Any], tuple[str, ...]]] = {
    "BERT, sequences": ("BertForSequenceClassification", {"num_labels": 5}, CLASSIFIER),
    "BERT, tokens": ("BertForTokenClassification", {"num_labels": 3}, ("token_classifier",)),
    "ERNIE, sequences": ("ErnieForSequenceClassification", {"use_task_id": True}, CLASSIFIER),
    "RoBERTa": ("RobertaModel", ROBERTA, ("pooler",)),
    "RoBERTa, masked LM": ("RobertaForMaskedLM", ROBERTA, ("masked_lm",)),
    "RoBERTa, untied": ("RobertaForMaskedLM", ROBERTA | UNTIED, ("masked_lm",)),
    "RoBERTa, sequences": ("RobertaForSequenceClassification", ROBERTA | {"num_labels": 3}, CLASSIFIER),
    "RoBERTa, tokens": ("RobertaForTokenClassification", ROBERTA, ("token_classifier",)),
    "XLM-R": ("XLMRobertaModel", ROBERTA | {"pad_token_id": 3}, ("pooler",)),
    "XLM-R, masked LM": ("XLMRobertaForMaskedLM", ROBERTA, ("masked_lm",)),
    "XLM-R, sequences": ("XLMRobertaForSequenceClassification", ROBERTA, CLASSIFIER),
    "DistilBERT": ("DistilBertModel", DISTILBERT, ()),
    "DistilBERT, masked LM": ("DistilBertForMaskedLM", DISTILBERT | {"activation": "relu"}, ("masked_lm",)),
    "DistilBERT, untied": ("DistilBertForMaskedLM", DISTILBERT | UNTIED, ("masked_lm",)),
    "DistilBERT, sequences": ("DistilBertForSequenceClassification", DISTILBERT, CLASSIFIER),
    "DistilBERT, tokens": ("DistilBertForTokenClassification", DISTILBERT, ("token_classifier",)),
    "ELECTRA": ("ElectraModel", {"embedding_size": 16}, ()),
    "ELECTRA, generator": ("ElectraForMaskedLM", {"embedding_size": 16}, ("masked_lm",)),
    "ELECTRA, discriminator": ("ElectraForPreTraining", {"embedding_size": 32}, ("replaced_token",)),
    "ELECTRA, one size": ("ElectraForPreTraining", {"embedding_size": 24}, ("replaced_token",)),
    "ELECTRA, sequences": ("ElectraForSequenceClassification", {"embedding_size": 16}, CLASSIFIER),
    "ELECTRA, tokens": ("ElectraForTokenClassification", {"embedding_size": 16}, ("token_classifier",)),
}


@pytest.fixture(scope="module")
def save(tmp_path_factory):
    """A function that returns a model of transformers, in which no norm or bias is the identity, and its folder."""
    import torch
    import transformers

    def saved(name, fields):
        start = name.split("For")[0].removesuffix("Model")
        sizes = (
            {key: SIZES[key] for key in ("vocab_size", "max_position_embeddings")} if start == "DistilBert" else SIZES
        )
        model = getattr(transformers, name)(getattr(transformers, f"{start}Config")(**sizes | fields)).eval()
        generator = torch.Generator().manual_seed(0)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.2)
        folder = tmp_path_factory.mktemp("model")
        model.save_pretrained(folder)
        return model, folder

    return saved


def pytest_generate_tests(metafunc):
    if "model" in metafunc.fixturenames:
        steps = metafunc.function is test_every_step_passes_every_check
        few = steps and metafunc.config.getoption("--seeds") == 1
        kinds = ["RoBERTa, sequences", "ELECTRA, generator"] if few else list(MODELS)
        metafunc.parametrize("model", kinds, indirect=True, scope="module")


@pytest.fixture(scope="module")
def model(request, save):
    """The kind of a model, the model of transformers, its folder, and the checkpoint."""
    name, fields, _ = MODELS[request.param]
    native, folder = save(name, fields)
    return request.param, native, folder, port(folder)


@pytest.fixture(scope="module")
def batch(model):
    """Rows with padding at the right, at the left and inside. As a tokenizer does it, only padding has the pad id."""
    config = model[3].config
    generator = np.random.default_rng(0)
    ids = generator.integers(config.pad_id + 1, config.source_vocabulary, (4, 11))
    valid = np.ones(ids.shape, bool)
    valid[1, 6:] = valid[2, :4] = valid[3, 3] = False
    ids[~valid] = config.pad_id
    segments = generator.integers(0, config.segments or 1, ids.shape)
    tasks = generator.integers(0, config.tasks, ids.shape) if config.tasks else None
    return encoder_batch(config, ids, valid, segments if config.segments else None, tasks)


@pytest.fixture(scope="module")
def truth(model, batch):
    return truth_of(model[3], batch)


def judged(values, batch):
    """Return the values that both libraries define: a pooler that reads a padding token differs."""
    pooled = {name for name, value in values.items() if value.shape[:2] != batch.valid.shape}
    return {name: value[batch.valid[:, 0]] if name in pooled else value for name, value in values.items()}


def assert_judged_within_noise(values, batch, truth):
    names = values.keys()
    shared = replace(
        truth,
        values=judged({name: truth.values[name] for name in names}, batch),
        noise=judged({name: np.broadcast_to(truth.noise[name], truth.values[name].shape) for name in names}, batch),
    )
    assert_within_noise(judged(values, batch), shared)


def test_transformers_is_within_the_noise(model, batch, truth):
    import torch

    kind, native, _, ported = model
    heads = MODELS[kind][2]
    assert ported.config.heads_on_top == heads
    arrays = {"input_ids": batch.source, "attention_mask": batch.valid}
    arrays |= {"token_type_ids": batch.segment_ids} if ported.config.segments else {}
    arrays |= {"task_type_ids": batch.task_ids} if ported.config.tasks else {}
    with torch.inference_mode():
        result = native(
            **{name: torch.from_numpy(np.asarray(array)).long() for name, array in arrays.items()},
            output_hidden_states=True,
        )
    values = {"output": result.hidden_states[-1].numpy()}
    if heads == ("pooler",):
        values["heads.pooler"] = result.pooler_output.numpy()
    elif heads:
        values[f"heads.{heads[-1]}"] = result.logits.numpy()
    for name, value in values.items():
        if value.shape[:2] == batch.valid.shape:
            values[name] = np.where(batch.valid.reshape(*batch.valid.shape, *[1] * (value.ndim - 2)), value, 0)
    assert_judged_within_noise(values, batch, truth)


def test_every_framework_is_within_the_noise(framework, model, batch, truth):
    _, _, _, ported = model
    built = impls.build(framework, ported)
    arrays = (batch.source, batch.valid, batch.segment_ids, batch.task_ids)
    heads = built.heads(*arrays) if ported.config.heads_on_top else {}
    values = {f"heads.{name}": value for name, value in heads.items()}
    assert_judged_within_noise({"output": built.encode(*arrays), **values}, batch, truth)


@pytest.mark.long(framework="jax")
def test_every_step_passes_every_check(framework, model, check_small):
    """``make audit`` tries all of the models."""
    report = check_small(model[3], framework)
    assert report.verdict == "pass", [row for row in report.rows if row.verdict != "pass"]


def test_a_model_ported_back_is_the_same_file(model, tmp_path):
    _, native, folder, ported = model
    port(ported, tmp_path / "model.npz")
    target = tmp_path / "out"
    port(tmp_path / "model.npz", target, target_dialect="huggingface")
    _, report = type(native).from_pretrained(target, local_files_only=True, output_loading_info=True)
    assert not any(report.values()), report
    assert port(target).digest == ported.digest
    theirs, ours = load_file(folder / "model.safetensors"), load_file(target / "model.safetensors")
    unused = {name for name in theirs if name == "lm_head.bias" and native.config.tie_word_embeddings is False}
    assert theirs.keys() == ours.keys()
    for name in theirs.keys() - unused:
        np.testing.assert_array_equal(theirs[name], ours[name], err_msg=name)
    written = json.loads((target / "config.json").read_text())
    expected = json.loads((folder / "config.json").read_text())
    if native.config.model_type == "xlm-roberta":  # it computes what RoBERTa does
        expected["model_type"] = "roberta"
        expected["architectures"] = [expected["architectures"][0].removeprefix("XLM")]
    assert {name: expected[name] for name in written} == written


@pytest.mark.parametrize(
    ("kind", "answers"),
    [
        ("RoBERTa", {"model_type": "roberta", "pad_id": 1}),
        ("RoBERTa", {"position_offset": 2, "positions_skip_padding": True, "masking": "exclude", "pad_id": 1}),
        ("RoBERTa, masked LM", {"pad_id": 1}),
        ("XLM-R, sequences", {"pad_id": 1}),
        ("DistilBERT, sequences", {"norm_eps": 1e-12}),
        ("ELECTRA, generator", {}),
        ("BERT, tokens", {"masking": "exclude"}),
    ],
)
def test_bare_weights_are_ported_with_the_answers_that_the_error_asks_for(kind, answers, save):
    name, fields, _ = MODELS[kind]
    _, folder = save(name, fields)
    expected = port(folder)
    given = {"heads": 4, "activation": "gelu", "norm_eps": expected.config.norm_eps, **answers}
    for missing in {"heads": 4, "activation": "gelu", **answers}:
        if (
            missing not in ("position_offset", "positions_skip_padding", "norm_eps")
            and "position_offset" not in answers
        ):
            others = {name: value for name, value in given.items() if name != missing}
            with pytest.raises(PortingError, match=f"the tensors do not show .*{missing}.*--set .*{missing}="):
                port(folder / "model.safetensors", config=others)
    bare = port(folder / "model.safetensors", config=given)
    training_only = ("embedding_dropout", "residual_dropout", "attention_dropout", "pad_id")
    shared = {name: getattr(expected.config, name) for name in training_only}
    assert replace(bare.config, **shared) == expected.config
    assert all(np.array_equal(bare.tensors[name], tensor) for name, tensor in expected.tensors.items())


def test_weights_without_a_prefix_are_not_taken_for_those_of_a_bert(save):
    """The four fields that suffice for a BERT would shift every position of a RoBERTa."""
    _, folder = save("RobertaModel", ROBERTA)
    four = {"heads": 4, "activation": "gelu", "norm_eps": 1e-12, "masking": "exclude"}
    with pytest.raises(PortingError, match=r"do not show model_type; add --set model_type=bert\|roberta\|"):
        port(folder / "model.safetensors", config=four)


def test_an_unknown_model_type_is_refused(save):
    _, folder = save("RobertaModel", ROBERTA)
    with pytest.raises(PortingError, match="model_type is 'gpt'; expected one of bert, ernie, roberta"):
        port(folder / "model.safetensors", config={"model_type": "gpt"})


def change(folder, fields, tensors=None):
    """Change fields of a folder's config.json, and replace its tensors."""
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))
    if tensors is not None:
        save_file(tensors, folder / "model.safetensors")


def test_a_classifier_beside_a_pooler_needs_its_class(save):
    _, folder = save("BertForSequenceClassification", {"num_labels": 5})
    assert port(folder).config.heads_on_top == CLASSIFIER
    change(folder, {"architectures": ["BertForTokenClassification"]})
    assert port(folder).config.heads_on_top == ("pooler", "token_classifier")
    change(folder, {"architectures": None})
    with pytest.raises(
        PortingError,
        match=r"classifier\.weight may belong to a classifier of sequences or of tokens or .* architectures",
    ):
        port(folder)
    assert port(folder, heads=["pooler"]).config.heads_on_top == ("pooler",)
    assert port(folder, heads=["pooler", "token_classifier"]).config.heads_on_top == ("pooler", "token_classifier")
    assert port(folder, heads=CLASSIFIER).config.heads_on_top == CLASSIFIER


@pytest.mark.parametrize("start", ["Bert", "Roberta", "DistilBert"])
def test_a_multiple_choice_model_is_not_taken_for_a_classifier(start, save):
    _, folder = save(f"{start}ForMultipleChoice", {"Roberta": ROBERTA, "DistilBert": DISTILBERT}.get(start, {}))
    with pytest.raises(PortingError, match="or to a multiple-choice model; name ForSequenceClassification or ForToken"):
        port(folder)
    assert not set(CLASSIFIER[1:]) & set(port(folder, heads=[]).config.heads_on_top)


@pytest.mark.parametrize("name", ["RobertaForMaskedLM", "ElectraForMaskedLM"])
def test_a_masked_lm_head_that_always_has_a_gelu_is_refused_beside_another_activation(name, save):
    _, folder = save(name, {"hidden_act": "relu"})
    with pytest.raises(
        PortingError, match=r"activation is 'relu'; expected 'gelu', which the head masked_lm of .* always uses"
    ):
        port(folder)
    assert port(folder, heads=[]).config.activation == "relu"
    config = {"heads": 4, "activation": "relu", "norm_eps": 1e-5, "pad_id": 1}
    with pytest.raises(PortingError, match=r"which the head masked_lm of .* always uses"):
        port(folder / "model.safetensors", config=config)


@pytest.mark.parametrize(
    ("name", "fields", "other"), [("RobertaModel", ROBERTA, "bert"), ("BertForMaskedLM", {}, "roberta")]
)
def test_names_of_another_type_than_the_configuration_says_are_refused(name, fields, other, save):
    _, folder = save(name, fields)
    tensors = load_file(folder / "model.safetensors")
    prefixed = {key if "." in key[:5] else f"roberta.{key}": tensor for key, tensor in tensors.items()}
    change(folder, {"model_type": other}, tensors if other == "roberta" else prefixed)
    with pytest.raises(PortingError, match=f"is a name of .*, but model_type is {other}; correct model_type"):
        port(folder, heads=[])
    with pytest.raises(PortingError, match=f"is a name of .*, but model_type is {other}; correct model_type"):
        port(folder / "model.safetensors", config={"model_type": other})


@pytest.mark.parametrize("architectures", [5, True, "BertModel", [3], {"a": 1}])
def test_architectures_that_are_no_list_of_names_are_refused(architectures, save):
    _, folder = save("BertForTokenClassification", {})
    change(folder, {"architectures": architectures})
    with pytest.raises(
        PortingError, match=r"config\.json: architectures is .*; expected a list of the names of classes"
    ):
        port(folder)


@pytest.mark.parametrize("heads", [5, "pooler", ["pooler", 5], [["pooler"]]])
def test_heads_that_are_no_list_of_names_are_refused(heads, make_checkpoint):
    with pytest.raises(ConfigError, match=r"heads is .*; expected a list of names, or None"):
        port(make_checkpoint("bert-base-tiny"), heads=heads)


def test_heads_may_come_from_an_iterator(make_checkpoint):
    heads: Any = iter(["pooler"])
    assert port(make_checkpoint("bert-base-tiny"), heads=heads).config.heads_on_top == ("pooler",)


def test_the_encoder_of_any_task_model_is_ported_without_its_heads(save, tmp_path):
    _, folder = save("BertForQuestionAnswering", {})
    with pytest.raises(
        PortingError, match=r"unexpected qa_outputs\.weight.*leave other heads out \(heads=, or --heads"
    ):
        port(folder)
    ported = port(folder, tmp_path / "encoder.npz", heads=[])
    assert ported.config.heads_on_top == ()
    assert ported.left_out == dict.fromkeys(
        ("qa_outputs.weight", "qa_outputs.bias"),
        "it is outside of the encoder, and Triglot does not know the head that may need it",
    )


@pytest.mark.parametrize("kept", [(), ("pooler",), ("masked_lm",), ("pooler", "next_sentence")])
@pytest.mark.parametrize("container", ["folder", "neutral"])
def test_heads_are_kept_by_name(kept, container, save, tmp_path):
    _, folder = save("BertForPreTraining", {})
    whole = port(folder, tmp_path / "whole.npz")
    ported = port(folder if container == "folder" else tmp_path / "whole.npz", heads=kept)
    assert ported.config.heads_on_top == kept
    assert ported.config.tied_embeddings == ("masked_lm" in kept)
    assert all(np.array_equal(tensor, whole.tensors[name]) for name, tensor in ported.tensors.items())
    kept_and_left = {*ported.source_names.values(), *ported.left_out}
    assert {whole.source_names[name] for name in whole.tensors} <= kept_and_left
    assert set(ported.left_out.values()) == {"it belongs to a head that is not kept"}


@pytest.mark.parametrize("container", ["folder", "neutral"])
def test_heads_that_are_missing_are_refused(container, save, tmp_path):
    _, folder = save("BertForPreTraining", {})
    port(folder, tmp_path / "whole.npz")
    source = folder if container == "folder" else tmp_path / "whole.npz"
    with pytest.raises(PortingError, match="the model has no head logits; expected any of pooler, masked_lm"):
        port(source, heads=["logits"])
    with pytest.raises((ConfigError, PortingError), match="pooler as well, because next_sentence reads it"):
        port(source, heads=["next_sentence"])


def test_a_pooler_beside_the_classifier_of_a_roberta_is_left_out(save):
    _, folder = save("RobertaForSequenceClassification", {})
    expected, file = port(folder), folder / "model.safetensors"
    tensors = load_file(file)
    unused = {f"roberta.pooler.dense.{name}": tensors[f"classifier.dense.{name}"] + 1 for name in ("weight", "bias")}
    save_file(tensors | unused, file)
    ported = port(folder)
    assert ported.digest == expected.digest
    assert ported.left_out == dict.fromkeys(unused, "the classifier has a pooler of its own")
    assert np.array_equal(
        port(folder, heads=["pooler"]).tensors["heads.pooler.weight"], expected.tensors["heads.pooler.weight"] + 1
    )


def test_the_tokenizer_is_copied_from_folder_to_folder(save, tmp_path, command):
    _, folder = save("BertModel", {})
    (folder / "tokenizer.json").write_text("the words")
    code, out, _ = command("port", folder, tmp_path / "new", "--target-dialect", "huggingface")
    assert (code, (tmp_path / "new" / "tokenizer.json").read_text()) == (0, "the words")
    assert "the tokenizer is not part" not in out
    (folder / "tokenizer.json").unlink()
    _, out, _ = command("port", folder, tmp_path / "other", "--target-dialect", "huggingface")
    assert "the tokenizer is not part of a checkpoint; copy its files into the folder" in out


def test_the_pooler_of_a_classifier_is_not_kept_alone(save):
    _, folder = save("RobertaForSequenceClassification", {})
    with pytest.raises(PortingError, match="is part of its sequence_classifier; keep both or neither"):
        port(folder, heads=["pooler"])


def test_names_of_classes_that_are_not_kept_are_listed(save):
    _, folder = save("BertForSequenceClassification", {})
    assert port(folder).left_out == {}
    path = folder / "config.json"
    path.write_text(
        json.dumps(json.loads(path.read_text()) | {"id2label": {"0": "bad", "1": "good"}, "problem_type": "x"})
    )
    assert port(folder).left_out.keys() == {"id2label", "problem_type"}


def test_the_head_of_a_decoder_stays(make_checkpoint):
    pair = make_checkpoint("translation-tiny")
    assert port(pair, heads=["logits"]) is pair
    with pytest.raises(PortingError, match="logits is the output of a decoder and cannot be left out; keep it"):
        port(pair, heads=[])


def test_a_tensor_without_a_name_is_unexpected(save):
    """It is not the second bias of a head, which these families do not have."""
    name, fields, _ = MODELS["ELECTRA, generator"]
    _, folder = save(name, fields)
    tensors = load_file(folder / "model.safetensors")
    change(folder, {}, {**tensors, "": np.zeros_like(tensors["generator_lm_head.bias"])})
    with pytest.raises(PortingError, match=r"unexpected ;"):
        port(folder)
