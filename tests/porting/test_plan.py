"""The plan of a port says what becomes of every tensor, and a dry run refuses what a port refuses."""

import hashlib
import json
import re
from dataclasses import replace

import numpy as np
import pytest
from refusals import assert_refused, run_process, unchanged
from safetensors.numpy import load_file, save_file

import triglot
from triglot.shared import porting
from triglot.shared.arrays import BFLOAT16
from triglot.shared.checkpoint import Checkpoint
from triglot.shared.errors import OutputError, PortingError
from triglot.shared.model.recipes import recipe
from triglot.shared.porting.plan import File, describe
from triglot.shared.training.plan import History, Moments, Plan, Training

BERT = replace(recipe("bert-base-tiny"), heads_on_top=("pooler", "masked_lm"), tied_embeddings=True)


def stock_encoder(make_checkpoint, layers=2):
    config = replace(
        recipe("bert-base-tiny"),
        **{"layers": layers, "source_vocabulary": 0, "segments": 0, "positions": "none", "pad_id": None},
        **{"heads_on_top": (), "embedding_process": "", "source_max_length": 512, "embedding_dropout": 0.0},
    )
    return make_checkpoint(config)


def plan_of(recognised, target_dialect, target, config=None, **options):
    checkpoint = recognised.read(config)
    records = porting.write(checkpoint, target, target_dialect, **options)
    source = File(str(recognised.source.path), recognised.dialect.name, recognised.sign)
    return describe(checkpoint, records, source, File(str(target), target_dialect))


def tensors_of(path):
    """The tensors of a file, read by the libraries."""
    path = path / "model.safetensors" if path.is_dir() else path
    if path.suffix == ".safetensors":
        return load_file(path)
    with np.load(path) as file:
        return {name: file[name] for name in file.files if name != "manifest.json"}


def transformed(tensor, words):
    """Do to a tensor what the words of a plan say."""
    for word in words.split(", "):
        if part := re.fullmatch(r"(\d+) to (\d+) of axis (\d)", word):
            start, stop, axis = map(int, part.groups())
            tensor = np.take(tensor, range(start, stop), axis)
        elif word == "transposed":
            tensor = tensor.T
        else:
            assert word == "as it is"
    return tensor


PORTS = [
    ("huggingface", "", "neutral", ".npz"),
    ("huggingface", "", "torch", ".safetensors"),
    ("huggingface", "", "nnx", ".npz"),
    ("torch", ".npz", "huggingface", ""),
    ("neutral", ".npz", "huggingface", ""),
    ("torch-transformer", ".npz", "paddle-transformer", ".safetensors"),
    ("paddle-transformer", ".safetensors", "torch-transformer", ".npz"),
]


@pytest.mark.parametrize(("dialect", "suffix", "target_dialect", "target_suffix"), PORTS)
def test_what_a_plan_says_is_what_a_port_does(
    dialect, suffix, target_dialect, target_suffix, make_checkpoint, tmp_path
):
    is_stock = dialect.endswith("-transformer")
    original = stock_encoder(make_checkpoint) if is_stock else make_checkpoint(BERT)
    source, target = tmp_path / f"source{suffix}", tmp_path / f"target{target_suffix}"
    triglot.port(original, source, target_dialect=dialect)
    config = None if dialect in ("neutral", "huggingface") else original.config
    recognised = porting.recognise(source, dialect)
    with unchanged(tmp_path):
        plan = plan_of(recognised, target_dialect, target, config, dry_run=True)
    assert plan == plan_of(recognised, target_dialect, target, config)
    assert plan.digest == original.digest
    files = tensors_of(source), tensors_of(target)
    for tensor in plan.tensors:
        for tensors, place in zip(files, (tensor.source, tensor.target), strict=True):
            array = transformed(tensors[place.name], place.transform)
            assert (array.shape, array.dtype.name) == (tensor.shape, tensor.dtype)
            assert hashlib.sha256(array.tobytes()).hexdigest() == tensor.sha256
    assert {tensor.source.name for tensor in plan.tensors} | plan.left_out.keys() == files[0].keys()
    assert {tensor.target.name for tensor in plan.tensors} | plan.added.keys() == files[1].keys()
    packed = [tensor for tensor in plan.tensors if " to " in tensor.source.transform + tensor.target.transform]
    assert len(packed) == (12 if is_stock else 0)


def test_every_tensor_that_is_left_out_is_named(make_checkpoint, tmp_path):
    triglot.port(make_checkpoint(BERT), tmp_path / "model", target_dialect="huggingface")
    path = tmp_path / "model" / "model.safetensors"
    tensors = load_file(path)
    table = tensors["bert.embeddings.word_embeddings.weight"]
    tensors |= {
        "bert.embeddings.position_ids": np.arange(37)[None],
        "cls.predictions.decoder.weight": table,
        "cls.predictions.decoder.bias": tensors["cls.predictions.bias"],
    }
    save_file(tensors, path)
    plan = plan_of(porting.recognise(tmp_path / "model", None), "neutral", tmp_path / "model.npz", dry_run=True)
    assert plan.left_out == {
        "bert.embeddings.position_ids": "it is a buffer without information",
        "cls.predictions.decoder.weight": "it equals the table of tokens, to which it is tied",
        "cls.predictions.bias": "it equals cls.predictions.decoder.bias",
    }
    assert {tensor.source.name for tensor in plan.tensors} == tensors.keys() - plan.left_out.keys()


def test_buffers_that_are_added_are_named(make_checkpoint, tmp_path):
    source, target = tmp_path / "model.npz", tmp_path / "run.npz"
    triglot.save(make_checkpoint(recipe("annotated-tiny")), source)
    plan = plan_of(porting.recognise(source, None), "article-annotated", target)
    with np.load(target) as file:
        assert plan.added.keys() == set(file.files) - {tensor.target.name for tensor in plan.tensors}
    assert set(plan.added.values()) == {"a buffer of the module, computed from the configuration"}


def test_a_training_state_that_the_target_cannot_hold_is_named(make_checkpoint, tmp_path):
    plain = make_checkpoint(recipe("bert-base-tiny"))
    moments = {name: np.zeros(tensor.shape, np.float32) for name, tensor in plain.tensors.items()}
    training = Training(Plan(), Moments(0, moments, moments), History())
    triglot.save(Checkpoint(plain.config, plain.tensors, training=training), tmp_path / "model.npz")
    recognised = porting.recognise(tmp_path / "model.npz", None)
    options = {"dry_run": True}
    assert plan_of(recognised, "neutral", tmp_path / "x.npz", **options).left_out == {}
    reasons = plan_of(recognised, "torch", tmp_path / "x.pt", **options).left_out
    assert reasons == {"the training state": "the dialect torch does not hold it"}
    corrected = recognised.read({"norm_eps": 1e-3})
    assert corrected.left_out == {"the training state": "it belongs to the model with another configuration"}
    assert recognised.read({"norm_eps": plain.config.norm_eps}).training


def with_nan(checkpoint):
    tensors = dict(checkpoint.tensors)
    tensors["heads.pooler.bias"] = np.full_like(tensors["heads.pooler.bias"], np.nan)
    return Checkpoint(checkpoint.config, tensors)


def in_bfloat16(checkpoint):
    return Checkpoint(checkpoint.config, {name: tensor.astype(BFLOAT16) for name, tensor in checkpoint.tensors.items()})


REFUSALS = [
    (with_nan, "neutral", "x.npz", None, PortingError, "heads.pooler.bias holds NaN or infinity"),
    (in_bfloat16, "torch", "x.npz", None, PortingError, "is bfloat16, which NumPy does not have"),
    (lambda checkpoint: checkpoint, "article-annotated", "x.pt", None, PortingError, "cannot express kind 'encoder'"),
    (lambda checkpoint: checkpoint, "torch", "x.pdf", None, PortingError, "its suffix is '.pdf'"),
    (lambda checkpoint: checkpoint, "torch", "x.pt", 9, PortingError, "the dialect torch writes one file"),
    (lambda checkpoint: checkpoint, "neutral", "x", None, OutputError, "the name of a neutral checkpoint ends in .npz"),
    (lambda checkpoint: checkpoint, "neutral", ".", 9, OutputError, "it already exists"),
    (lambda checkpoint: checkpoint, "huggingface", "a/x", None, OutputError, "does not exist; create it"),
]


@pytest.mark.parametrize("dry_run", [True, False])
@pytest.mark.parametrize(("change", "dialect", "name", "shard_size", "error", "problem"), REFUSALS)
def test_a_dry_run_refuses_what_a_port_refuses(
    change, dialect, name, shard_size, error, problem, dry_run, make_checkpoint, tmp_path
):
    (tmp_path / "other").touch()
    checkpoint = change(make_checkpoint(BERT))
    with unchanged(tmp_path), pytest.raises(error, match=re.escape(problem)):
        porting.write(checkpoint, tmp_path / name, dialect, shard_size=shard_size, dry_run=dry_run)


def test_the_command_shows_and_writes_the_plan(make_checkpoint, tmp_path):
    triglot.port(make_checkpoint(BERT), tmp_path / "folder", target_dialect="huggingface")
    command = ["port", tmp_path / "folder", tmp_path / "model.npz", "--dtype", "float16"]
    with unchanged(tmp_path):
        code, out, err = run_process(*command, "--dry-run")
    assert (code, err) == (0, "")
    for shown in (
        "bert.encoder.layer.1.output.dense.weight",
        "encoder.layers.1.feed_forward.output.weight",
        "transposed, float32 to float16 / as it is",
        "read as huggingface, because it has bert.embeddings.word_embeddings.weight",
        "dry run: everything was checked, and nothing was written",
    ):
        assert shown in out
    code, out, err = run_process(*command, "--json", "-")
    assert (code, err) == (0, "")
    plan = json.loads(out)
    ported = triglot.load(tmp_path / "model.npz")
    assert plan["schema"] == "triglot.port/1"
    assert plan["digest"] == ported.digest
    assert plan["losses"]["total"] == sum(tensor.size for tensor in ported.tensors.values())
    assert plan["source"] == {
        "path": str(tmp_path / "folder"),
        "dialect": "huggingface",
        "sign": "bert.embeddings.word_embeddings.weight",
    }
    assert plan["tensors"][0] == {
        "name": "embeddings.token.weight",
        "source": {"name": "bert.embeddings.word_embeddings.weight", "transform": "float32 to float16"},
        "target": {"name": "embeddings.token.weight", "transform": "as it is"},
        "shape": [101, 24],
        "dtype": "float16",
        "sha256": hashlib.sha256(ported.tensors["embeddings.token.weight"].tobytes()).hexdigest(),
    }
    refused = run_process(*command, "--json", tmp_path / "model.npz")
    assert_refused(refused, "would be written twice")
