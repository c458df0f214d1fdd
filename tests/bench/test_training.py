"""Training is judged before it is timed: every arm's loss, gradients and first step."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from triglot import impls
from triglot.bench.run import batches as batching
from triglot.bench.run import work
from triglot.bench.run.arms import ARMS, PLAN
from triglot.bench.run.cases import Case, Cell, Settings
from triglot.bench.run.sweep import Sweep
from triglot.bench.run.work import BenchedModel
from triglot.parity import training
from triglot.parity.gradients import NoiseError, gradient_truth
from triglot.parity.output_names import GRADIENTS, WEIGHTS, name_first_step
from triglot.parity.training import TrainingTruth
from triglot.shared.choices import WITH_GRADIENTS
from triglot.shared.errors import FrameworkError
from triglot.shared.worker import WorkerError

CELL = Cell("bert-base-tiny", "training", "padded", "float32", "cpu", 4, 16, 0.75, 1)


def truth_of(checkpoint, cell, batch, folder):
    rate = PLAN.rate if cell.workload == "training" else None
    return TrainingTruth(
        checkpoint, batch, batch, cell.dtype, rate=rate, folder=folder, threads=cell.threads, time_limit=60
    )


@pytest.fixture
def task(make_checkpoint):
    checkpoint = make_checkpoint("bert-base-tiny")
    return checkpoint, batching.batches_of_cell(CELL, checkpoint.config, None, 0)


@pytest.fixture
def expectation(task, tmp_path):
    checkpoint, (batch,) = task
    return truth_of(checkpoint, CELL, batch, tmp_path)


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    """Return the truth of a cell, computed once for all frameworks."""
    known = {}

    def get(checkpoint, cell, batch):
        if cell not in known:
            known[cell] = truth_of(checkpoint, cell, batch, tmp_path_factory.mktemp("truth"))
        return known[cell]

    return get


@pytest.mark.long(workload="forward+backward")
@pytest.mark.xdist_group("training arms")
@pytest.mark.filterwarnings("ignore")  # of the peers
@pytest.mark.parametrize("workload", WITH_GRADIENTS)
@pytest.mark.parametrize(
    ("model", "dtype"),
    [("bert-base-tiny", "float32"), ("dygraph-tiny", "float64"), ("translation-tiny", "float32")],
    ids=["a BERT", "no embeddings, in float64", "an encoder-decoder"],
)
def test_every_arm_has_the_right_gradients_and_first_step(framework, model, dtype, workload, make_checkpoint, expected):
    """Test eager arms and peers. ``test_distillation.py`` tests compiled training, and ``triglot bench`` judges it."""
    checkpoint = make_checkpoint(model)
    cell = replace(CELL, model=model, dtype=dtype, workload=workload)
    batches: Any = batching.batches_of_cell(cell, checkpoint.config, None, 0)
    batches[0].source[0, 1] = 0  # 0 is the pad id of some libraries, but a real token here
    expectation = expected(checkpoint, cell, batches[0])
    names = [
        name
        for name, arm in ARMS.items()
        if arm.framework == framework
        and (arm.mode == "eager" or framework == "jax")
        and arm.why_unsupported(checkpoint.config, workload, dtype, "cpu") is None
    ]
    assert len(names) >= (2 if model == "bert-base-tiny" else 1)
    for name in names:
        prepared = ARMS[name].import_builder()(checkpoint, Case(name, cell), batches)
        results = prepared.call()
        prepared.wait(results)
        outputs = prepared.outputs(results)
        assert {name.split(".")[0] for name in outputs} >= {"loss", "gradients"}
        assert any(name.startswith(WEIGHTS) for name in outputs) == (workload == "training")
        judgement = expectation.judge(outputs)
        assert judgement.verdict == "pass", (name, judgement)
        prepared.wait(prepared.call())


def first_step(checkpoint, batch):
    model = impls.build("torch", checkpoint)
    model.begin_training(PLAN)
    outcome = model.training_step(batch)
    return name_first_step(outcome.loss, model.moments().first, model.weights())


def test_wrong_training_is_noticed(task, expectation):
    checkpoint, (batch,) = task
    outputs = first_step(checkpoint, batch)
    assert expectation.judge(outputs).verdict == "pass"
    name = "encoder.layers.1.feed_forward.inner.weight"
    gradient, moved = GRADIENTS + name, WEIGHTS + name
    stays = checkpoint.tensors[name]
    faults = {
        "a gradient of the wrong size": {gradient: outputs[gradient] * np.float32(1.001)},
        "of the wrong layout": {gradient: outputs[gradient].T},
        "a gradient that is not finite": {gradient: np.full_like(outputs[gradient], np.nan)},
        "a mean over padding too": {"loss": outputs["loss"] * 0.75},
        "weights that stay": {moved: stays},
        "a step of twice the rate": {moved: stays + 2 * (outputs[moved] - stays)},
        "a step up": {moved: 2 * stays - outputs[moved]},
        "a step of gradient descent": {moved: stays - np.float32(PLAN.rate) * outputs[gradient]},
    }
    for fault, changes in faults.items():
        judgement = expectation.judge({**outputs, **changes})
        assert (judgement.verdict, judgement.name) == ("diverged", next(iter(changes))), fault
    for missing in (gradient, "loss", moved):
        judgement = expectation.judge({key: value for key, value in outputs.items() if key != missing})
        assert (judgement.verdict, judgement.name) == ("diverged", missing)


@pytest.mark.long
def test_gradients_that_the_reference_does_not_confirm_are_not_the_truth(task, tmp_path, monkeypatch):
    """The next framework is asked. If there is none, the error says why."""
    checkpoint, (batch,) = task
    derive = training._Derivation.derive
    asked = []

    def wrong(self, *arguments):
        loss, gradients = derive(self, *arguments)
        asked.append(self._worker)
        if len({id(worker) for worker in asked}) == 1:
            gradients = {name: value * (1 + 1e-9) for name, value in gradients.items()}
        return loss, gradients

    monkeypatch.setattr(training._Derivation, "derive", wrong)
    truth = truth_of(checkpoint, CELL, batch, tmp_path)
    assert len({id(worker) for worker in asked}) == 2
    assert truth.judge(first_step(checkpoint, batch)).verdict == "pass"
    monkeypatch.setattr(training._Derivation, "confirm", refused)
    with pytest.raises(FrameworkError, match=r"true gradients are unknown: torch: no; paddle: no; jax: no;"):
        truth_of(checkpoint, CELL, batch, tmp_path)
    monkeypatch.setattr(impls, "installed", tuple)
    with pytest.raises(FrameworkError, match="true gradients are unknown: no framework is installed"):
        truth_of(checkpoint, CELL, batch, tmp_path)


@pytest.mark.parametrize(
    ("error", "reason"),
    [(FrameworkError("no truth"), "no truth"), (MemoryError(), "not enough memory to compute the truth")],
)
def test_a_truth_that_cannot_be_computed_is_a_row(error, reason, task, monkeypatch):
    asked = []

    def unknown(*_, **__):
        asked.append(1)
        raise error

    monkeypatch.setattr(work, "TrainingTruth", unknown)
    settings = Settings(seconds=0.05, rounds=2, processes=1, warm_up=0.1, uncounted=0.001)
    model = BenchedModel(CELL.model, task[0])
    swept = Sweep([model], [CELL], ["triglot-torch-eager", "torch-nn"], settings)
    swept.time_cells()
    assert [(result.status, result.failure) for result in swept.results] == [("failed", reason)] * 2
    assert len(asked) == 1


def refused(*_):
    raise WorkerError("no", fatal=True)


def test_wrong_float32_gradients_are_not_noise(task):
    """Wrong float32 gradients would widen the budget of every arm. Float64 shows that they are wrong."""
    checkpoint, (batch,) = task

    def derive(weights, inputs, masks, dtype):
        loss, gradients = impls.build("torch", weights, dtype=dtype).loss_and_gradients(inputs, masks)
        name = "encoder.layers.0.attention.value.weight"
        return loss, {**gradients, name: gradients[name] * np.float32(1.001)} if dtype == "float32" else gradients

    with pytest.raises(NoiseError, match=r"in float32, gradients\.encoder\.layers\.0\.attention\.value\.weight is"):
        gradient_truth(checkpoint, batch, derive)


def test_a_batch_that_is_too_large_is_judged_in_part(make_checkpoint, tmp_path):
    checkpoint = make_checkpoint("bert-base-tiny")
    for rows, order, expected in ((4, "padded", None), (work.JUDGED_TOKENS // 16 + 1, "padded", 64), (2, "sorted", 2)):
        cell = replace(CELL, batch=rows, order=order)
        prepared: Any = work.Work(BenchedModel("m", checkpoint), cell, Settings(), tmp_path)
        assert (prepared.judged_file is None) == (expected is None)
        assert expected is None or len(prepared.first_rows.valid) == len(prepared.first_rows.teacher) == expected
