"""Modes: what is compiled computes what is written, for every kind of model, and no faster one than was asked for."""

import shutil
import sys
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import triglot
from triglot import impls
from triglot.parity.output_names import name_outputs
from triglot.parity.outputs import ForwardTruth
from triglot.parity.run import weights_for
from triglot.shared import inputs
from triglot.shared.dtypes import BFLOAT16
from triglot.shared.errors import FrameworkError, TrainingError
from triglot.shared.inputs import labelled
from triglot.shared.model.recipes import recipe

KINDS = ["bert-base-tiny", "dygraph-tiny", "translation-tiny", "multihead-tiny"]
SMALL = replace(recipe("translation-tiny"), layers=1, decoder_layers=1)  # each layer takes torch.compile its time
COMPILED = ("jit", "compiled")


def pytest_generate_tests(metafunc):
    """To compile for every check takes up to a minute each: ``make audit`` does it, and the tests compare outputs."""
    thorough = metafunc.config.getoption("--seeds") > 1
    if "config" in metafunc.fixturenames:
        metafunc.parametrize("config", [recipe(name) for name in KINDS] if thorough else [SMALL])


@pytest.mark.audit
@pytest.mark.parametrize("mode", COMPILED)
def test_every_check_passes(framework, config, mode, make_checkpoint):
    report = triglot.check(make_checkpoint(config), [framework], mode=mode, isolate=False)
    assert report.verdict == "pass", [row for row in report.rows if row.verdict != "pass"]


@pytest.mark.parametrize("mode", COMPILED)
def test_the_outputs_are_those_of_eager_mode(framework, config, mode, make_checkpoint):
    """To twice what the sums of a layer norm may err by in float32."""
    batch = inputs.random_batch(config, [9, 1, 4], np.random.default_rng(0))
    eager, compiled = (triglot.build(framework, make_checkpoint(config), mode=each) for each in ("eager", mode))
    for ours, theirs in zip(answers(compiled, batch), answers(eager, batch), strict=True):
        bound = 2 * config.hidden_size * np.finfo(np.float32).eps * np.abs(theirs).max()
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=bound)


def test_the_engine_of_paddle_computes_in_bfloat16(config, make_checkpoint):
    """As exactly as bfloat16 allows, and no more: it is not the result of float32, rounded."""
    batch = inputs.random_batch(config, [9, 1, 4], np.random.default_rng(0))
    weights = weights_for(make_checkpoint(config), "bfloat16", 0)["given"]
    model: Any = triglot.build("paddle", weights, mode="compiled", dtype="bfloat16")
    wide: Any = triglot.build("paddle", weights, mode="compiled")
    call = model.prepare("forward", batch)
    found = {each: model.to_numpy(value) for each, value in name_outputs(*call()).items()}
    verdict = ForwardTruth(weights, batch, "bfloat16").judge(found)
    assert verdict.verdict == "pass", verdict
    for ours, theirs in zip(answers(model, batch), answers(wide, batch), strict=True):
        assert ours.dtype == BFLOAT16
        assert (ours != theirs.astype(BFLOAT16)).any()
    assert {tensor.dtype for tensor in model.weights().values()} == {BFLOAT16}


def test_the_engine_of_paddle_shows_outputs_alone_in_bfloat16(make_checkpoint):
    model: Any = triglot.build("paddle", make_checkpoint("translation-tiny"), mode="compiled", dtype="bfloat16")
    batch = inputs.random_batch(model.config, [3, 2], np.random.default_rng(0))
    for call in (
        lambda: model.trace(batch),
        lambda: model.generate(batch.source),
        lambda: model.loss_and_gradients(labelled(model.config, batch, batch.target)),
        lambda: model.prepare("generation", batch),
        lambda: triglot.build("paddle", make_checkpoint("translation-tiny"), dtype="bfloat16"),
    ):
        with pytest.raises(FrameworkError, match=r"no bfloat16 on a CPU except .* 'compiled'; choose dtype 'float32'"):
            call()


def answers(model, batch):
    if model.config.kind == "attention":
        return model.attend(batch.query, batch.source, batch.value, batch.allowed, batch.valid, batch.bias)
    encoded = model.encode(batch.source, batch.valid)
    if model.config.kind == "encoder":
        return encoded, *model.heads(batch.source, batch.valid).values()
    return encoded, model.forward(batch.source, batch.target, batch.valid, batch.target_valid)


def code_that_runs(call):
    """The Python functions that a call runs through."""
    seen = set()
    sys.setprofile(lambda frame, event, _: seen.add(frame.f_code) if event == "call" else None)
    try:
        call()
    finally:
        sys.setprofile(None)
    return seen


@pytest.mark.parametrize("mode", impls.MODES)
def test_the_compiled_is_not_the_written(framework, mode, make_checkpoint):
    """Once it is compiled, the model code is not run any more."""
    model: Any = triglot.build(framework, make_checkpoint("bert-base-tiny"), mode=mode)
    ids = np.arange(1, 6)[None]
    written = type(model.backend.transformer).encode.__code__
    model.encode(ids)
    assert (written in code_that_runs(lambda: model.encode(ids))) == (mode == "eager")


def test_many_lengths_are_compiled_for(framework, make_checkpoint):
    """More than the eight after which PyTorch would go on eagerly, unless it is told not to."""
    checkpoint = make_checkpoint("bert-base-tiny")
    model, reference = triglot.build(framework, checkpoint, mode="jit"), triglot.build("numpy", checkpoint)
    for length in range(1, 11):
        ids = np.arange(1, 1 + length)[None].repeat(1 + length % 3, axis=0)
        np.testing.assert_allclose(model.encode(ids), reference.encode(ids), rtol=0, atol=1e-5)


def test_what_is_compiled_follows_a_training_or_refuses_it(framework, make_checkpoint):
    checkpoint = make_checkpoint(SMALL)
    source, target = np.array([[1, 5, 6, 2]]), np.array([[1, 7, 8, 9, 2]])
    batch = triglot.teacher_forcing(checkpoint.config, source, target)
    found = {}
    for mode in ("eager", "jit"):
        model = triglot.build(framework, checkpoint, mode=mode)
        before = model.forward(source, target)
        model.begin_training(triglot.Plan(rate=0.1))
        model.training_step(batch)
        found[mode] = model.forward(source, target)
        assert np.abs(found[mode] - before).max() > 0.1
    # A step of Adam is as large as its rate, whatever the size of a gradient: what rounds to another sign is 0.2 off.
    assert np.median(np.abs(found["jit"] - found["eager"])) < 1e-4
    with pytest.raises(
        TrainingError, match=r"^the weights of a model in mode 'compiled' are part of it; train in mode"
    ):
        triglot.build(framework, checkpoint, mode="compiled").begin_training(triglot.Plan())


@pytest.mark.parametrize("name", ["bert-base-tiny", "prenorm-tiny", "translation-tiny"])
def test_what_paddle_compiles_broadcasts_no_mask_by_adding_zeros(name, make_checkpoint):
    """What ``paddle.where`` becomes where shapes differ: five tensors as large as all scores, a third of the time."""
    model: Any = triglot.build("paddle", make_checkpoint(name), mode="jit")
    batch = inputs.random_batch(model.config, [9, 1, 4], np.random.default_rng(0))
    model.prepare("forward", batch)()
    program = model.backend.run.forward.concrete_program.main_program
    found = {operation.name() for operation in program.global_block().ops}
    assert "pd_op.softmax" in found
    assert "pd_op.full_like" not in found, "the zeros"


def test_the_reference_is_never_compiled(make_checkpoint):
    for mode in COMPILED:
        with pytest.raises(FrameworkError, match=f"^NumPy: .*no mode '{mode}'; choose mode 'eager'$"):
            triglot.build("numpy", make_checkpoint("bert-base-tiny"), mode=mode)


def test_a_missing_compiler_is_said(make_checkpoint, monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda _: None)
    for mode in COMPILED:
        with pytest.raises(FrameworkError, match=rf"^PyTorch: mode '{mode}' needs a C\+\+ compiler; install g\+\+"):
            triglot.build("torch", make_checkpoint("bert-base-tiny"), mode=mode)
    triglot.build("torch", make_checkpoint("bert-base-tiny"))
