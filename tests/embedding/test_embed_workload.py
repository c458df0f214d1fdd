"""``triglot bench --workload embed``: from texts to vectors, in Triglot and in sentence-transformers."""

import json
from pathlib import Path

import numpy as np
import pytest

from triglot import models
from triglot.bench.run import call_files
from triglot.bench.run.arms import ARMS, SENTENCE_EMBEDDING
from triglot.bench.run.cases import Case, Cell, Settings
from triglot.bench.run.work import BenchedModel, Work
from triglot.shared import checkpoint as checkpoints

CELL = Cell("model", "embed", "arrival", "float32", "cpu", batch=20, length=16, fill=1.0, threads=1)
TIMED = ("triglot-torch-compiled", "triglot-paddle-compiled", "triglot-jax-compiled", "sentence-transformers")


@pytest.fixture
def work(sentence_folder, tmp_path):
    """The work of a cell whose texts are longer than its length, for a model with a default prompt."""
    source = models.resolve_sentence_encoder(str(sentence_folder))
    folder = tmp_path / "work"
    folder.mkdir()
    return Work(BenchedModel("model", source.checkpoint, source.tokenizer), CELL, Settings(), folder)


@pytest.mark.parametrize("arm", TIMED)
def test_the_vectors_of_every_arm_pass(arm, work):
    checkpoint = checkpoints.load(work.checkpoint)
    calls, further = (
        [call_files.read(file, checkpoint.config) for file in files] for files in (work.files, work.further_files)
    )
    prepared = ARMS[arm].import_builder("embed")(checkpoint, Case(arm, CELL), calls)
    vectors = prepared.outputs(prepared.call())[SENTENCE_EMBEDDING]
    assert len(vectors) == CELL.batch
    judgement = work.truth().judge({SENTENCE_EMBEDDING: vectors})
    assert judgement.verdict == "pass", judgement
    swapped = work.truth().judge({SENTENCE_EMBEDDING: vectors[[1, 0, *range(2, len(vectors))]]})
    assert swapped.verdict == "diverged"
    prepared.use(further)
    others = prepared.outputs(prepared.call())[SENTENCE_EMBEDDING]
    assert others.shape == vectors.shape
    assert not np.allclose(others, vectors, atol=1e-3)


def test_the_command_times_texts(sentence_folder, workplace, command):
    arms = ("--arm", "triglot-torch-compiled", "--arm", "sentence-transformers", "--arm", "onnxruntime")
    options = ("--workload", "embed", "--quick", "--batch", "16", "--length", "16", "--seconds", "0.1", "--quiet")
    assert command("bench", sentence_folder, *options, *arms, "--json", "bench.json", "--markdown", "bench.md")[0] == 0
    cases = {case["arm"]: case for case in json.loads(Path("bench.json").read_text())["cases"]}
    assert {arm: case["status"] for arm, case in cases.items()} == {arms[1]: "ok", arms[3]: "ok", arms[5]: "skipped"}
    page = Path("bench.md").read_text()
    assert "embed, 16 sentences, up to 16 tokens" in page
    assert "| texts/s |" in page
    for arm in (arms[1], arms[3]):
        assert cases[arm]["new_shapes_ms"] > 0


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (("bert-base-tiny",), "bert-base-tiny is not a complete sentence encoder; expected a folder of"),
        (("minilm", "--order", "sorted"), "--order does not apply to --workload embed"),
        (("minilm", "--fill", "0.5"), "--fill applies only to --order padded"),
        (("minilm", "--arm", "nnx"), "nothing was timed; nnx: does not turn texts into vectors"),
    ],
)
def test_what_cannot_be_embedded_is_refused(options, reason, command):
    code, out, err = command("bench", *options, "--workload", "embed", "--quick", "--quiet")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert reason in err
