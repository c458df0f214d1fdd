"""The arms of ``triglot bench``: which take part in what, and that the stock encoders compute the same."""

import importlib
import json

import pytest

import triglot
from triglot import impls
from triglot.bench.run import arms, workloads
from triglot.bench.run.arms import ARMS
from triglot.bench.run.cases import Case, Cell, cells
from triglot.parity.outputs import ForwardTruth
from triglot.shared.errors import FrameworkError
from triglot.shared.model.recipes import recipe

CELL = Cell("bert-base-tiny", "forward", "padded", "float32", "cpu", 2, 8, 0.75, 1)


def test_an_arm_that_cannot_take_part_is_skipped_with_the_reason(monkeypatch):
    encoder, pair = recipe("bert-base-tiny"), recipe("translation-tiny")
    assert ARMS["triglot-torch-eager"].why_not(encoder, "forward", "float32", "cpu") is None
    assert (
        ARMS["triglot-torch-eager"].why_not(encoder, "generation", "float32", "cpu") == "an encoder does not generate"
    )
    assert ARMS["nnx"].why_not(pair, "forward", "float32", "cpu") == "computes BERTs alone"
    assert ARMS["nnx"].why_not(recipe("dygraph-tiny"), "forward", "float32", "cpu") is not None
    assert ARMS["triglot-paddle-jit"].why_not(encoder, "forward", "bfloat16", "cpu") == "has no bfloat16 here"
    assert ARMS["triglot-paddle-jit"].why_not(encoder, "forward", "bfloat16", "cuda") is None
    assert ARMS["triglot-paddle-compiled"].why_not(encoder, "forward", "bfloat16", "cpu") is None
    why = ARMS["triglot-paddle-compiled"].why_not(pair, "generation", "bfloat16", "cpu")
    assert why == "has bfloat16 in its inference engine alone, which does not generate"
    assert ARMS["triglot-paddle-compiled"].why_not(encoder, "forward", "float16", "cpu") == "has no float16 here"
    assert ARMS["onnxruntime"].why_not(encoder, "forward", "float32", "cuda") == "does not run on cuda here"
    assert ARMS["triglot-torch-jit"].why_not(encoder, "training", "float32", "cpu") is None
    for arm, config, dtype, reason in (
        ("triglot-torch-eager", recipe("multihead-tiny"), "float32", "attention alone has no loss"),
        ("onnxruntime", encoder, "float32", "is compiled with its weights, so it does not train"),
        ("triglot-jax-eager", encoder, "float32", "JAX compiles its training in every mode: see triglot-jax-jit"),
        ("triglot-torch-eager", encoder, "bfloat16", "trains in float32 and float64 alone"),
    ):
        for workload in arms.TRAINS:
            assert ARMS[arm].why_not(config, workload, dtype, "cpu") == reason
    monkeypatch.setattr(arms.importlib.util, "find_spec", lambda name: None)
    assert ARMS["nnx"].why_not(encoder, "forward", "float32", "cpu") == "jax, flax, optax not installed"


def test_which_arms_take_part():
    assert arms.selected([], [], []) == list(ARMS)
    assert arms.selected(["paddle"], ["compiled"], []) == ["triglot-paddle-compiled"]
    assert arms.selected([], [], ["nnx", "torch-nn"]) == ["torch-nn", "nnx"]
    with pytest.raises(FrameworkError, match=r"^unknown arm 'caffe'; expected one of triglot-torch-eager, "):
        arms.selected([], [], ["caffe"])
    with pytest.raises(
        FrameworkError,
        match=r"^there is no arm for jax and compiled; ask for less, or for one of triglot-torch-eager, ",
    ):
        arms.selected(["jax"], ["compiled"], [])


def test_every_framework_and_mode_has_an_arm():
    ours = {(arm.framework, arm.mode) for arm in ARMS.values() if not arm.peer}
    assert ours == {(name, mode) for name in impls.FRAMEWORKS for mode in impls.MODES} - {("jax", "compiled")}


def test_cases_span_every_combination_and_are_told_apart():
    options = {"batches": [4, 1], "lengths": [16, 8], "fills": [0.5, 1.0], "dtypes": ["float32"], "device": "cpu"}
    spanned = cells("m", "forward", orders=["padded", "sorted"], threads=2, **options)
    assert len(spanned) == len({cell.id for cell in spanned}) == 2 * 2 * 2 + 2 * 2
    for cell in spanned:
        for copy in (0, 1):
            case = Case("nnx", cell, copy)
            assert Case.from_dict(json.loads(json.dumps(case.to_dict()))) == case


@pytest.mark.filterwarnings("ignore")  # theirs, not ours
@pytest.mark.parametrize("name", [name for name, arm in ARMS.items() if arm.peer])
def test_peers_compute_the_same(name, make_checkpoint):
    """The stock encoders with the weights that they were given: one that is wrong would have no speed."""
    checkpoint = make_checkpoint("bert-base-tiny")
    batches = workloads.batches_of(CELL, checkpoint.config, None, 0)
    module, function = ARMS[name].builder.split(":")
    builder = getattr(importlib.import_module(module), function)
    prepared = builder(checkpoint, Case(name, CELL), batches)
    results = prepared.call()
    prepared.wait(results)
    outputs = prepared.outputs(results)
    assert outputs.keys() == {"output", "pooler"}
    found = ForwardTruth(checkpoint, batches[0], "float32").judge(outputs)
    assert found.verdict == "pass", found


def test_the_public_build_takes_every_mode_an_arm_has(make_checkpoint):
    with pytest.raises(FrameworkError, match="unknown mode 'turbo'"):
        triglot.build("torch", make_checkpoint("bert-base-tiny"), mode="turbo")
