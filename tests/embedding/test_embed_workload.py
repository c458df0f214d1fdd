"""``triglot bench --workload embed``: from texts to vectors, in Triglot and in sentence-transformers."""

import json
from pathlib import Path

import numpy as np
import pytest

from triglot import models
from triglot.bench.run import parts
from triglot.bench.run.arms import ARMS
from triglot.bench.run.cases import Case, Cell, Settings
from triglot.bench.run.texts import JUDGED, VECTORS, texts_of_calls
from triglot.bench.run.work import BenchedModel, Work
from triglot.shared import checkpoint as checkpoints
from triglot.shared.inputs.text import sentences

CELL = Cell("model", "embed", "arrival", "float32", "cpu", batch=20, length=16, fill=1.0, threads=1)
PEER = "sentence-transformers"


def work_of(source, folder):
    """The work of a cell with more texts than are judged, most of them longer than its length."""
    folder.mkdir()
    model = BenchedModel("model", source.checkpoint, source.tokenizer, source.path)
    return Work(model, CELL, Settings(), folder)


def prepared(arm, work):
    checkpoint = checkpoints.load(work.checkpoint)
    timed = [parts.read(file, checkpoint.config) for file in work.files]
    return ARMS[arm].import_builder("embed")(checkpoint, Case(arm, CELL), timed)


@pytest.mark.usefixtures("without_cpp")
@pytest.mark.parametrize(
    "arm", [*(f"triglot-{name}-{mode}" for name in ("torch", "paddle", "jax") for mode in ("eager", "compiled")), PEER]
)
def test_the_vectors_of_every_arm_pass(arm, sentence_folder, tmp_path):
    """The model has a default prompt, which no arm uses."""
    work = work_of(models.resolve_sentence_encoder(str(sentence_folder)), tmp_path / "work")
    model = prepared(arm, work)
    outputs = model.outputs(model.call())
    judgement = work.judge(outputs)
    assert judgement.verdict == "pass", judgement
    model.use([parts.read(file, work.config) for file in work.further_files])
    others = model.outputs(model.call())[VECTORS]
    assert others.shape == outputs[VECTORS].shape
    assert work.judge({VECTORS: others}).verdict == "diverged", "other texts have the same vectors"


def test_vectors_in_wrong_places_are_seen(sentence_folder, tmp_path):
    work = work_of(models.resolve_sentence_encoder(str(sentence_folder)), tmp_path / "work")
    model = prepared("triglot-torch-eager", work)
    vectors = model.outputs(model.call())[VECTORS]
    for one, other in ((0, JUDGED - 1), (JUDGED - 2, JUDGED)):
        places = np.arange(len(vectors))
        places[[one, other]] = other, one
        assert work.judge({VECTORS: vectors[places]}).verdict == "diverged"
    judgement = work.judge({VECTORS: vectors[:JUDGED]})
    assert (judgement.verdict, judgement.reason) == ("diverged", "there are 12 vectors for 20 texts")


def test_texts_of_all_lengths_are_judged():
    timed, further = texts_of_calls(100)
    assert sorted(timed + further) == sorted(sentences(200))
    lengths = [len(text) for text in timed]
    assert lengths[0] == max(lengths)
    assert lengths[JUDGED - 1] == min(lengths)
    assert lengths[:JUDGED] == sorted(lengths[:JUDGED], reverse=True)
    assert lengths[JUDGED:] != sorted(lengths[JUDGED:], reverse=True)


def test_the_encoder_may_be_in_a_folder_of_the_model(sentence_folder, tmp_path):
    """As in older models of sentence-transformers. The peer reads the whole model."""
    encoder = sentence_folder / "0_Transformer"
    encoder.mkdir()
    whole = {"modules.json", "config_sentence_transformers.json"}
    for file in [path for path in sentence_folder.iterdir() if path.is_file() and path.name not in whole]:
        file.rename(encoder / file.name)
    listed = sentence_folder / "modules.json"
    modules = json.loads(listed.read_text())
    modules[0]["path"] = encoder.name
    listed.write_text(json.dumps(modules))
    source = models.resolve_sentence_encoder(str(sentence_folder))
    assert source.tokenizer == encoder / "tokenizer.json"
    work = work_of(source, tmp_path / "work")
    model = prepared(PEER, work)
    assert work.judge(model.outputs(model.call())).verdict == "pass"


@pytest.mark.long
def test_the_command_times_texts(sentence_folder, workplace, command):
    arms = ("--arm", "triglot-torch-compiled", "--arm", PEER, "--arm", "onnxruntime")
    options = ("--workload", "embed", "--quick", "--batch", "16", "--length", "16", "--seconds", "0.1", "--quiet")
    written = ("--json", "bench.json", "--markdown", "bench.md", "--html", "bench.html")
    assert command("bench", sentence_folder, *options, *arms, *written)[0] == 0
    cases = {case["arm"]: case for case in json.loads(Path("bench.json").read_text())["cases"]}
    assert {arm: case["status"] for arm, case in cases.items()} == {arms[1]: "ok", PEER: "ok", arms[5]: "skipped"}
    for name in ("bench.md", "bench.html"):
        page = Path(name).read_text()
        assert "embed, 16 sentences, up to 16 tokens" in page
        assert "texts/s" in page
    for arm in (arms[1], PEER):
        assert cases[arm]["new_shapes_ms"] > 0
        assert cases[arm]["fill"] is None
    assert command("bench", sentence_folder, *options, *arms, "--json", "bench.json", "--resume")[0] == 0
    for case in json.loads(Path("bench.json").read_text())["cases"]:
        assert case["samples_ms"] == cases[case["arm"]]["samples_ms"], "something was timed again"


def test_the_default_length_is_that_of_the_model(sentence_folder):
    assert models.resolve_sentence_encoder(str(sentence_folder)).max_tokens == 20


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (("bert-base-tiny",), "bert-base-tiny is a recipe, whose weights are random; expected a folder of"),
        (("minilm", "--order", "sorted"), "--order does not apply to --workload embed"),
        (("minilm", "--fill", "0.5"), "--fill applies only to --order padded"),
        (("minilm", "--set", "sentence_pooling=cls"), "--config and --set do not apply to --workload embed"),
        (("minilm", "--length", "512"), "--length is 512, but minilm cuts texts at 256 tokens; lower it"),
        (("minilm", "--arm", "nnx"), "nothing was timed; nnx: does not turn texts into vectors"),
        (("minilm", "--arm", "triglot-jax-jit", "--dtype", "float64"), "float64 is unsupported"),
    ],
)
def test_what_cannot_be_embedded_is_refused(options, reason, command):
    code, out, err = command("bench", *options, "--workload", "embed", "--quick", "--quiet")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert reason in err


def test_an_incomplete_sentence_encoder_is_refused(sentence_folder, tokenizer, command):
    options = ("--workload", "embed", "--quick", "--quiet")
    (sentence_folder / "tokenizer.json").unlink()
    code, _, err = command("bench", sentence_folder, *options)
    assert code == 2
    assert "has no tokenizer.json; expected a folder of sentence-transformers" in err
    code, _, err = command("bench", tokenizer.parent, *options, "--source-dialect", "huggingface")
    assert code == 2
    assert "returns one vector per token" in err
