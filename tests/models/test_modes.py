"""Modes: compiled models compute the same as eager ones, for every kind of model."""

import shutil
import sys
import traceback
import warnings
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from noise import assert_within_noise, random_batch, truth_of
from tiny_configs import EMBEDDED, EMBEDDED_PAIR, VECTORS

import triglot
from triglot import impls
from triglot.parity.output_names import name_outputs
from triglot.parity.outputs import ForwardTruth
from triglot.parity.run import rounded_weights
from triglot.shared import inputs
from triglot.shared.arrays import BFLOAT16
from triglot.shared.errors import FrameworkError, SlowWarning, TrainingError
from triglot.shared.inputs import labelled
from triglot.shared.model.recipes import recipe

KINDS = ["bert-base-tiny", "dygraph-tiny", "translation-tiny", "multihead-tiny"]
# torch.compile takes long for each layer.
SMALL = replace(recipe("translation-tiny"), layers=1, decoder_layers=1)
SMALL_ENCODER = replace(recipe("bert-base-tiny"), layers=1)
CANNOT_PACK: Any = {"masking": "fill", "masking_value": -1e9}
COMPILED = ("jit", "compiled")


def pytest_generate_tests(metafunc):
    """Choose small models, because compiling takes up to a minute; ``make audit`` takes all kinds."""
    thorough = metafunc.config.getoption("--seeds") > 1
    marks = metafunc.definition.iter_markers("parametrize")
    if "config" in metafunc.fixturenames and not any("config" in mark.args[0] for mark in marks):
        metafunc.parametrize("config", [recipe(name) for name in KINDS] if thorough else [SMALL])


@pytest.mark.audit
@pytest.mark.parametrize("mode", COMPILED)
def test_compiled_models_pass_every_check(framework, config, mode, make_checkpoint):
    report = triglot.check(make_checkpoint(config), [framework], mode=mode, isolate=False)
    assert report.verdict == "pass", [row for row in report.rows if row.verdict != "pass"]


@pytest.mark.usefixtures("without_cpp")
@pytest.mark.parametrize("mode", COMPILED)
def test_compiled_outputs_agree_with_eager_ones(framework, config, mode, make_checkpoint):
    compare_with_eager(framework, make_checkpoint(config), mode)


@pytest.mark.long(framework="torch")
@pytest.mark.long(framework="jax")
@pytest.mark.usefixtures("without_cpp")
@pytest.mark.parametrize(
    "config",
    [EMBEDDED, EMBEDDED_PAIR, replace(VECTORS, pre_process="n", post_process="da")],
    ids=["encoder", "pair", "packed encoder"],
)
def test_a_compiled_norm_that_reads_the_size_of_vectors(framework, config, make_checkpoint):
    """Paddle traces one program for all sizes of a batch, but the norm divides by the size of a vector."""
    compare_with_eager(framework, make_checkpoint(replace(config, norm="scalar_layer_norm")), "compiled")


@pytest.mark.long(mode="jit")
@pytest.mark.parametrize("mode", COMPILED)
def test_cpp_of_pytorch_agrees_with_eager_outputs(mode, make_checkpoint):
    """In a model whose padding cannot be skipped. Without heads, because each kernel takes a second to compile."""
    config = replace(SMALL_ENCODER, heads_on_top=(), **CANNOT_PACK)
    compare_with_eager("torch", make_checkpoint(config), mode, batches=[[9, 1, 4]])


@pytest.mark.parametrize("lengths", [[9, 1, 4], [9, 8, 9]], ids=["much padding", "little padding"])
def test_an_encoder_computes_in_bfloat16(lengths, framework, make_checkpoint, request):
    if framework != "jax":
        request.getfixturevalue("bfloat16_kernels")
    weights = rounded_weights(make_checkpoint(SMALL_ENCODER), "bfloat16")
    batch: Any = inputs.random_batch(SMALL_ENCODER, lengths, np.random.default_rng(0))
    model = triglot.build(framework, weights, mode="compiled", dtype="bfloat16")
    outputs = {name: model.to_numpy(value) for name, value in name_outputs(*model.prepare("forward", batch)()).items()}
    judgement = ForwardTruth(weights, batch, "bfloat16").judge(outputs)
    assert judgement.verdict == "pass", judgement


@pytest.mark.parametrize(
    ("name", "processor", "reason"),
    [
        ("torch", "it is emulated", "it is emulated; use float32"),
        ("torch", None, None),
        ("paddle", "it is emulated", "it is emulated; use float32"),
        ("jax", None, "JAX is slower in bfloat16"),
    ],
)
def test_slow_bfloat16_is_not_silent(name, processor, reason, monkeypatch):
    monkeypatch.setattr(impls, "why_bfloat16_is_slow", lambda: processor)
    silent = [("cuda", "bfloat16", "compiled"), ("cpu", "float32", "compiled"), ("cpu", "bfloat16", "eager")]
    if reason is None:
        silent.append(("cpu", "bfloat16", "compiled"))
    else:
        with pytest.warns(SlowWarning, match=reason):
            impls.warn_if_slow(name, "cpu", "bfloat16", "compiled")
    for other in silent:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            impls.warn_if_slow(name, *other)


def test_build_warns_of_slow_bfloat16(make_checkpoint):
    with pytest.warns(SlowWarning, match="JAX is slower in bfloat16") as caught:
        triglot.build("jax", make_checkpoint("bert-base-tiny"), mode="compiled", dtype="bfloat16")
    assert caught[0].filename == __file__


@pytest.mark.usefixtures("bfloat16_kernels")
@pytest.mark.parametrize(
    ("config", "lengths"),
    [(SMALL, [9, 1, 4]), (SMALL_ENCODER, [9, 1, 4]), (SMALL_ENCODER, [9, 8, 9])],
    ids=["pair", "packed encoder", "encoder with little padding"],
)
def test_paddle_inference_engine_computes_in_bfloat16(config, lengths, make_checkpoint):
    """Its outputs are as exact as bfloat16 allows, and are not rounded float32 outputs."""
    batch: Any = inputs.random_batch(config, lengths, np.random.default_rng(0))
    weights = rounded_weights(make_checkpoint(config), "bfloat16")
    model: Any = triglot.build("paddle", weights, mode="compiled", dtype="bfloat16")
    wide: Any = triglot.build("paddle", weights, mode="compiled")
    call = model.prepare("forward", batch)
    outputs = {each: model.to_numpy(value) for each, value in name_outputs(*call()).items()}
    verdict = ForwardTruth(weights, batch, "bfloat16").judge(outputs)
    assert verdict.verdict == "pass", verdict
    for ours, theirs in zip(answers(model, batch), answers(wide, batch), strict=True):
        assert ours.dtype == BFLOAT16
        assert (ours != theirs.astype(BFLOAT16)).any()
    assert {tensor.dtype for tensor in model.weights().values()} == {BFLOAT16}


@pytest.mark.long(mode="jit")
@pytest.mark.parametrize("mode", COMPILED)
@pytest.mark.parametrize("name", KINDS)
def test_paddle_rewrites_no_source(name, mode, make_checkpoint, monkeypatch):
    """By default it rewrites the source of every method that it traces, which takes seconds for each shape."""
    rewritten = []
    rewriter = "paddle.jit.dy2static.program_translator.FunctionCache.convert_with_cache"
    monkeypatch.setattr(rewriter, lambda _, function: rewritten.append(function) or function)
    model: Any = triglot.build("paddle", make_checkpoint(name), mode=mode)
    batch: Any = inputs.random_batch(model.config, [3, 2], np.random.default_rng(0))
    model.prepare("forward", batch)()
    model.trace(batch)
    if model.config.kind == "encoder_decoder":
        model.generate(batch.source)
        if mode == "jit":
            model.loss_and_gradients(labelled(model.config, batch, batch.target))
    assert not rewritten


@pytest.mark.parametrize("limit", [None, 7])
def test_paddle_records_no_stacks_when_it_traces_for_the_engine(limit, make_checkpoint, monkeypatch):
    """By default, Paddle records the stack of every operation, which takes about half of the tracing time."""
    if limit is not None:
        monkeypatch.setattr(sys, "tracebacklimit", limit, raising=False)
    recorded = []
    extract = traceback.extract_stack
    monkeypatch.setattr("traceback.extract_stack", lambda: recorded.append(extract()) or recorded[-1])
    triglot.build("paddle", make_checkpoint(SMALL_ENCODER), mode="compiled").encode([[5, 6, 7]])
    assert len(recorded) > 50
    # Saving adds a few operations for inputs and outputs, with stacks.
    assert sum(map(bool, recorded)) < 5
    assert getattr(sys, "tracebacklimit", None) == limit


def test_an_error_names_its_line_when_paddle_traces_for_the_engine(make_checkpoint, monkeypatch):
    # A failed trace leaves its parameters here, under the ``id`` of a program that no longer exists.
    recorder = "paddle.jit.dy2static.parameter_recorder._global_parameter_recorder"
    monkeypatch.setattr(f"{recorder}.params_dict", {})
    monkeypatch.setattr(f"{recorder}.tensor2value", {})

    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("not today")

    monkeypatch.setattr("triglot.impls.paddlepaddle.feed_forward.FeedForward.forward", broken)
    model: Any = triglot.build("paddle", make_checkpoint(SMALL), mode="compiled")
    with pytest.raises(RuntimeError, match=r"(?s)encoder\.py.*self\.feed_forward\(.*test_modes\.py.*not today"):
        model.encode([[5, 6, 7]])
    assert not hasattr(sys, "tracebacklimit")


def test_paddle_inference_engine_refuses_bfloat16_without_kernels(make_checkpoint, monkeypatch):
    monkeypatch.setattr("paddle.base.core.supports_bfloat16", lambda: False)
    with pytest.raises(FrameworkError, match=r"bfloat16 needs a processor with AVX-512; choose dtype 'float32'"):
        triglot.build("paddle", make_checkpoint(SMALL), mode="compiled", dtype="bfloat16")


@pytest.mark.usefixtures("bfloat16_kernels")
def test_paddle_inference_engine_refuses_all_but_outputs_in_bfloat16(make_checkpoint):
    model: Any = triglot.build("paddle", make_checkpoint("translation-tiny"), mode="compiled", dtype="bfloat16")
    batch: Any = inputs.random_batch(model.config, [3, 2], np.random.default_rng(0))
    for call in (
        lambda: model.trace(batch),
        lambda: model.generate(batch.source),
        lambda: model.loss_and_gradients(labelled(model.config, batch, batch.target)),
        lambda: model.prepare("generation", batch),
        lambda: triglot.build("paddle", make_checkpoint("translation-tiny"), dtype="bfloat16"),
    ):
        with pytest.raises(FrameworkError, match=r"no bfloat16 on a CPU except .* 'compiled'; choose dtype 'float32'"):
            call()


def compare_with_eager(framework, checkpoint, mode, batches=([9, 1, 4], [5, 2])):
    """Compare the outputs of two models for batches of these lengths, in one program if the mode serves every shape.

    The tolerance is twice the rounding of a layer norm's sums in float32.
    """
    eager, compiled = (triglot.build(framework, checkpoint, mode=each) for each in ("eager", mode))
    for lengths in batches:
        batch: Any = inputs.random_batch(checkpoint.config, lengths, np.random.default_rng(0))
        for ours, theirs in zip(answers(compiled, batch), answers(eager, batch), strict=True):
            bound = 2 * checkpoint.config.hidden_size * np.finfo(np.float32).eps * np.abs(theirs).max()
            np.testing.assert_allclose(ours, theirs, rtol=0, atol=bound)


def answers(model, batch):
    if model.config.kind == "attention":
        return model.attend(batch.query, batch.source, batch.value, batch.allowed, batch.valid, batch.bias)
    encoded = model.encode(batch.source, batch.valid)
    if model.config.kind == "encoder":
        return encoded, *model.heads(batch.source, batch.valid).values()
    return encoded, model.forward(batch.source, batch.target, batch.valid, batch.target_valid)


def executed_code(call):
    """Return the code of every Python function that a call executes."""
    seen = set()
    sys.setprofile(lambda frame, event, _: seen.add(frame.f_code) if event == "call" else None)
    try:
        call()
    finally:
        sys.setprofile(None)
    return seen


@pytest.mark.usefixtures("without_cpp")
@pytest.mark.parametrize("mode", impls.MODES)
def test_compiled_models_do_not_run_the_model_code(framework, mode, make_checkpoint):
    """Only eager models do."""
    model: Any = triglot.build(framework, make_checkpoint(SMALL_ENCODER), mode=mode)
    ids = np.arange(1, 6)[None]
    model_code = type(model.backend.transformer).encode.__code__
    model.encode(ids)
    assert (model_code in executed_code(lambda: model.encode(ids))) == (mode == "eager")


@pytest.mark.long
@pytest.mark.usefixtures("without_cpp")
@pytest.mark.parametrize("tried_in", ["torch"])
def test_many_configurations_are_compiled_in_one_process(tried_in, make_checkpoint):
    """By default PyTorch refuses to compile the same code a ninth time."""
    for length in range(1, 10):
        checkpoint = make_checkpoint(replace(SMALL_ENCODER, norm_eps=length * 1e-12))
        model, batch = triglot.build(tried_in, checkpoint, mode="jit"), random_batch(checkpoint.config, [length])
        output = model.encode(batch.source, batch.valid, batch.segment_ids)
        assert_within_noise({"output": output}, truth_of(checkpoint, batch))


def test_training_is_refused_in_mode_compiled(framework, make_checkpoint):
    model = triglot.build(framework, make_checkpoint(SMALL), mode="compiled")
    with pytest.raises(TrainingError, match=r"mode 'compiled' cannot train"):
        model.begin_training(triglot.Plan())


@pytest.mark.parametrize("name", ["bert-base-tiny", "prenorm-tiny", "translation-tiny"])
def test_compiled_paddle_does_not_broadcast_masks_by_adding_zeros(name, make_checkpoint):
    """``paddle.where`` on different shapes would add five tensors as large as the scores, a third of the time."""
    model: Any = triglot.build("paddle", make_checkpoint(name), mode="jit")
    batch: Any = inputs.random_batch(model.config, [9, 1, 4], np.random.default_rng(0))
    model.prepare("forward", batch)()
    program = model.backend.run.forward.concrete_program.main_program
    operations = {operation.name() for operation in program.global_block().ops}
    assert "pd_op.softmax" in operations
    assert "pd_op.full_like" not in operations


def test_reference_refuses_to_be_compiled(make_checkpoint):
    for mode in COMPILED:
        with pytest.raises(FrameworkError, match=rf"NumPy: .*no mode '{mode}'.*'eager'"):
            triglot.build("numpy", make_checkpoint("bert-base-tiny"), mode=mode)


def test_missing_compiler_is_refused(make_checkpoint, monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda _: None)
    for mode in COMPILED:
        with pytest.raises(FrameworkError, match=rf"^PyTorch: mode '{mode}' needs a C\+\+ compiler; install g\+\+"):
            triglot.build("torch", make_checkpoint("translation-tiny"), mode=mode)
    triglot.build("torch", make_checkpoint("translation-tiny"))


def test_the_packed_encoder_of_pytorch_needs_no_compiler(make_checkpoint, monkeypatch):
    """Nor does parity, which also asks for its named values."""
    monkeypatch.setattr(shutil, "which", lambda _: None)
    model = triglot.build("torch", make_checkpoint(SMALL_ENCODER), mode="compiled")
    batch: Any = inputs.random_batch(SMALL_ENCODER, [3, 2], np.random.default_rng(0))
    output = model.trace(batch)["output"]
    np.testing.assert_array_equal(output, triglot.build("torch", make_checkpoint(SMALL_ENCODER)).trace(batch)["output"])
