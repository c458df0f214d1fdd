"""BERT and ERNIE of PaddleNLP: its files are read and written, and compute what transformers and Paddle compute."""

import json
import re
from dataclasses import replace
from typing import Any

import numpy as np
import paddle
import paddlenlp_models as models
import pytest
from noise import assert_within_noise, truth_of
from safetensors.numpy import save_file

from triglot import port
from triglot.shared.checkpoint import Checkpoint
from triglot.shared.errors import PortingError
from triglot.shared.inputs import encoder_batch
from triglot.shared.model.recipes import recipe
from triglot.shared.porting import recognise

EXCLUDE = {"masking": "exclude", "masking_value": None}
ADD = {"masking": "add", "masking_value": -1e4}
TASKS = {"use_task_id": True, "task_type_vocab_size": 3}
# The class, options of the model, fields of its configuration, and the heads in Triglot.
KINDS: dict[str, tuple[str, dict[str, Any], dict[str, Any], tuple[str, ...]]] = {
    "bert": ("Model", {}, {}, ("pooler",)),
    "bert, pre-training": ("ForPretraining", {}, {}, ("pooler", "masked_lm", "next_sentence")),
    "bert, masked LM": ("ForMaskedLM", {}, {}, ("pooler", "masked_lm")),
    "bert, untied": ("ForMaskedLM", {"tied": False}, {"tie_word_embeddings": False}, ("pooler", "masked_lm")),
    "bert, sequences": ("ForSequenceClassification", {"classes": 5}, {}, ("pooler", "sequence_classifier")),
    "bert, tokens": ("ForTokenClassification", {"classes": 3}, {}, ("pooler", "token_classifier")),
    "ernie": ("Model", {"tasks": 3}, TASKS, ("pooler",)),
    "ernie, pre-training": ("ForPretraining", {"tasks": 3}, TASKS, ("pooler", "masked_lm", "next_sentence")),
    "ernie, sequences": ("ForSequenceClassification", {"classes": 5}, {}, ("pooler", "sequence_classifier")),
    "ernie, tokens": ("ForTokenClassification", {}, {}, ("pooler", "token_classifier")),
}


@pytest.fixture(scope="module", params=KINDS)
def saved(request, tmp_path_factory):
    """The kind of a model, the model in Paddle, its folder, and the checkpoint."""
    name, options, fields, _ = KINDS[request.param]
    model = models.build(request.param.split(",")[0], name, **options)
    folder = tmp_path_factory.mktemp("models") / "model"
    models.save(model, folder, fields)
    return request.param, model, folder, port(folder)


def batch_of(config):
    """Rows with padding at the right and inside, whose first tokens are valid."""
    generator = np.random.default_rng(0)
    ids = generator.integers(1, config.source_vocabulary, (3, 11))
    valid = np.ones(ids.shape, bool)
    valid[1, 6:] = valid[2, 3] = False
    ids[~valid] = config.pad_id
    segments = generator.integers(0, config.segments, ids.shape)
    tasks = generator.integers(0, config.tasks, ids.shape) if config.tasks else None
    return encoder_batch(config, ids, valid, segments, tasks)


def assert_matches(values, checkpoint, batch):
    truth = truth_of(checkpoint, batch)
    assert {name for name in values if name.startswith("heads.")} == {
        f"heads.{head}" for head in checkpoint.config.heads_on_top
    }
    for name, value in values.items():
        if value.shape[:2] == batch.valid.shape:
            values[name] = np.where(batch.valid[..., None], value, 0)
    assert_within_noise(values, truth)


def test_paddle_computes_the_same(saved):
    kind, model, _, checkpoint = saved
    assert checkpoint.config.heads_on_top == KINDS[kind][3]
    assert checkpoint.config.tied_embeddings == ("pre-training" in kind or "masked LM" in kind)
    batch = batch_of(checkpoint.config)
    assert_matches(models.outputs(model, batch), checkpoint, batch)


def test_transformers_computes_the_same(saved, tmp_path):
    """Written for transformers, which masks in another way."""
    import torch
    import transformers

    checkpoint = saved[3]
    port(port(checkpoint, config=EXCLUDE), tmp_path / "out", target_dialect="huggingface")
    (name,) = json.loads((tmp_path / "out" / "config.json").read_text())["architectures"]
    native, report = getattr(transformers, name).from_pretrained(tmp_path / "out", output_loading_info=True)
    assert {key for key in report["unexpected_keys"] if ".pooler." not in key} == set()  # some classes have no pooler
    assert {key for key in report["missing_keys"] if "seq_relationship" not in key} == set()  # of BertForPreTraining
    batch = batch_of(checkpoint.config)
    arrays = {"input_ids": batch.source, "attention_mask": batch.valid, "token_type_ids": batch.segment_ids}
    arrays |= {"task_type_ids": batch.task_ids} if checkpoint.config.tasks else {}
    with torch.inference_mode():
        result = native.eval()(
            **{name: torch.from_numpy(np.asarray(array)).long() for name, array in arrays.items()},
            output_hidden_states=True,
        )
    values = {"output": result.hidden_states[-1].numpy()}
    logits = {"masked_lm": "prediction_logits", "next_sentence": "seq_relationship_logits"}
    for head in checkpoint.config.heads_on_top:
        field = "pooler_output" if head == "pooler" else logits.get(head, "logits")
        if field in result:
            values[f"heads.{head}"] = result[field].numpy()
    truth = truth_of(checkpoint, batch)
    for head, value in values.items():
        if value.shape[:2] == batch.valid.shape:
            values[head] = np.where(batch.valid[..., None], value, 0)
    assert len(values) >= 2
    assert_within_noise(values, truth)


def test_a_written_folder_is_what_paddlenlp_saves(saved, tmp_path):
    kind, _, folder, checkpoint = saved
    target = tmp_path / "out"
    port(checkpoint, target, target_dialect="paddlenlp")
    assert port(target).digest == checkpoint.digest
    theirs, ours = (paddle.load(str(path / "model_state.pdparams"), return_numpy=True) for path in (folder, target))
    for content in (theirs, ours):
        content.pop("StructuredToParameterName@@", None)
    if kind.startswith("ernie") and not checkpoint.config.tasks:  # it is written as a BERT, which computes the same
        theirs = {name.replace("ernie.", "bert."): array for name, array in theirs.items()}
    assert theirs.keys() == ours.keys()
    for name, array in theirs.items():
        np.testing.assert_array_equal(ours[name], array, err_msg=name)


@pytest.mark.parametrize("kind", ["Model", "ForSequenceClassification"])
def test_a_folder_of_an_old_version_is_read(kind, tmp_path):
    """With nested fields, and another name for the decoder."""
    model = models.build("ernie", kind)
    models.save(model, tmp_path / "new", {})
    models.save(model, tmp_path / "old", {}, old=True)
    assert port(tmp_path / "old").digest == port(tmp_path / "new").digest


def test_the_old_name_of_the_decoder_is_read(tmp_path):
    models.save(models.build("bert", "ForMaskedLM", tied=False), tmp_path / "new", {"tie_word_embeddings": False})
    path = tmp_path / "new" / "model_state.pdparams"
    expected = port(tmp_path / "new").digest
    state = paddle.load(str(path))
    state["cls.predictions.decoder_weight"] = state.pop("cls.predictions.decoder.weight")
    del state["cls.predictions.decoder.bias"]
    paddle.save(state, str(path))
    assert port(tmp_path / "new").digest == expected


def test_bare_weights_ask_for_what_no_tensor_shows(saved, tmp_path):
    kind, model, folder, expected = saved
    given: dict[str, Any] = {"heads": 4, "activation": "gelu", "norm_eps": 1e-12}
    heads = KINDS[kind][3] if "classifier" in KINDS[kind][3][-1] else None
    state = {name: np.ascontiguousarray(value.numpy()) for name, value in model.saved.state_dict().items()}
    save_file(state, tmp_path / "weights.safetensors")
    for path in (folder / "model_state.pdparams", tmp_path / "weights.safetensors"):
        answers = {**given, "model_type": "bert"} if kind == "bert" else given  # no name shows it
        bare = port(path, config=answers, heads=heads)
        shared = ("embedding_dropout", "residual_dropout", "attention_dropout", "pad_id")
        assert replace(bare.config, **{name: getattr(expected.config, name) for name in shared}) == expected.config
        assert all(np.array_equal(bare.tensors[name], tensor) for name, tensor in expected.tensors.items())
        with pytest.raises(PortingError, match=r"do not show (model_type, )?heads, activation"):
            port(path, heads=heads)


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"pool_act": "relu"}, "config.json: pool_act is 'relu'; expected 'tanh'"),
        ({"fuse": True}, "config.json: fuse is True; expected False"),
        ({"hidden_act": "gelu_new"}, "config.json: hidden_act is 'gelu_new'; expected one of gelu, relu"),
        ({"model_type": "roberta"}, "config.json: model_type is 'roberta'; expected one of bert, ernie"),
        ({"model_type": "ernie"}, "bert.embeddings.word_embeddings.weight is a name of bert, but model_type is ernie"),
        ({"init_args": 3}, "config.json: init_args is 3; expected a list"),
        ({"layer_norm_eps": -1}, "layer_norm_eps is -1"),
    ],
)
def test_what_triglot_cannot_express_is_named(fields, problem, tmp_path):
    models.save(models.build("bert", "ForMaskedLM"), tmp_path / "model", fields)
    with pytest.raises(PortingError, match=rf"^cannot port {tmp_path}/model: .*{problem}"):
        port(tmp_path / "model")


def test_an_ernie_computes_with_its_own_epsilon_and_task(tmp_path):
    models.save(models.build("ernie", "Model"), tmp_path / "model", {"layer_norm_eps": 1e-5, "pool_act": "relu"})
    assert port(tmp_path / "model").config.norm_eps == 1e-12
    models.save(models.build("ernie", "Model", tasks=3), tmp_path / "task", {**TASKS, "task_id": 2})
    with pytest.raises(PortingError, match="task_id is 2; expected 0"):
        port(tmp_path / "task")


def test_an_unknown_class_in_an_old_folder_is_named(tmp_path):
    models.save(models.build("bert", "Model"), tmp_path / "model", {}, old=True)
    path = tmp_path / "model" / "model_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "init_class": "ErnieGramModel"}))
    with pytest.raises(PortingError, match=r"model_config.json: its class .* is 'ErnieGramModel'; expected a class of"):
        port(tmp_path / "model")


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        (EXCLUDE, "masking 'exclude' (only 'add'), masking_value None (only -10000.0)"),
        ({"activation": "gelu_tanh"}, "activation 'gelu_tanh' (only 'gelu', 'relu')"),
        ({"heads_on_top": ("pooler", "next_sentence")}, "heads_on_top 'next_sentence' (only with 'masked_lm')"),
        ({"heads_on_top": ("replaced_token",)}, "heads_on_top 'replaced_token'"),
        ({"pad_id": None}, "pad_id None (only a number)"),
        ({"segments": 0}, "segments 0 (only 1 or more)"),
        ({"tasks": 4, "norm_eps": 1e-5}, "norm_eps 1e-05 (only 1e-12)"),
        ({"positions_skip_padding": True}, "positions_skip_padding True (only False)"),
        ({"pre_process": "n", "post_process": "da", "final_process": "n"}, "pre_process 'n' (only '')"),
    ],
)
def test_what_paddlenlp_cannot_express_is_named(changes, problem, make_checkpoint, tmp_path):
    checkpoint = make_checkpoint(replace(recipe("bert-base-tiny"), **{**ADD, **changes}))
    with pytest.raises(PortingError, match=re.escape(f"the dialect paddlenlp cannot express {problem}")):
        port(checkpoint, tmp_path / "out", target_dialect="paddlenlp")
    assert not (tmp_path / "out").exists()


def test_the_copies_of_a_tensor_have_to_be_equal(tmp_path):
    models.save(models.build("bert", "ForMaskedLM"), tmp_path / "model", {})
    path = tmp_path / "model" / "model_state.pdparams"
    state = paddle.load(str(path))
    for name in ("decoder_bias", "decoder.weight"):
        changed = {**state, f"cls.predictions.{name}": state[f"cls.predictions.{name}"] + 1}
        paddle.save(changed, str(path))
        with pytest.raises(PortingError, match=r"cls\.predictions\.decoder.* differs from"):
            port(tmp_path / "model")


def test_a_missing_transpose_is_noticed(tmp_path):
    """Every square matrix fits either way."""
    model = models.build("bert", "Model")
    models.save(model, tmp_path / "model", {})
    checkpoint = port(tmp_path / "model")
    batch = batch_of(checkpoint.config)
    name = "encoder.layers.1.attention.output.weight"
    turned = Checkpoint(checkpoint.config, {**checkpoint.tensors, name: checkpoint.tensors[name].T})
    with pytest.raises(AssertionError, match="times the budget"):
        assert_matches(models.outputs(model, batch), turned, batch)


def test_dialects_with_similar_names_are_told_apart(tmp_path):
    """The layers are those of ``paddle.nn.TransformerEncoder``, the embeddings those of transformers."""
    models.save(models.build("bert", "Model"), tmp_path / "model", {})
    assert recognise(tmp_path / "model", None).dialect.name == "paddlenlp"
    encoder = paddle.nn.TransformerEncoder(paddle.nn.TransformerEncoderLayer(8, 2, 16), 1)
    paddle.save(encoder.state_dict(), str(tmp_path / "encoder.pdparams"))
    assert recognise(tmp_path / "encoder.pdparams", None).dialect.name == "paddle-transformer"
    both = {**encoder.state_dict(), **models.build("bert", "Model").saved.state_dict()}
    paddle.save(both, str(tmp_path / "both.pdparams"))
    with pytest.raises(PortingError, match="may be in the dialect paddlenlp or paddle-transformer"):
        recognise(tmp_path / "both.pdparams", None)
