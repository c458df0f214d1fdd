"""The arms: which of them can do what, and that the stock encoders compute the same as the reference."""

import re
import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest

import triglot
from triglot import impls
from triglot.bench.run import arms, batches
from triglot.bench.run.arms import ARMS
from triglot.bench.run.cases import Case, Cell, cells_of_grid
from triglot.parity.outputs import ForwardTruth
from triglot.shared.choices import WITH_GRADIENTS
from triglot.shared.errors import FrameworkError
from triglot.shared.model.recipes import recipe

CELL = Cell("bert-base-tiny", "forward", "padded", "float32", "cpu", 2, 8, 0.75, 1)


@pytest.mark.parametrize(
    ("arm", "model", "workload", "dtype", "device", "reason"),
    [
        ("triglot-torch-eager", "bert-base-tiny", "forward", "float32", "cpu", None),
        ("triglot-torch-eager", "bert-base-tiny", "generation", "float32", "cpu", "does not generate"),
        ("triglot-torch-eager", "annotated-tiny", "generation", "float32", "cpu", "no start, end and pad id"),
        ("nnx", "translation-tiny", "forward", "float32", "cpu", "only BERT-like"),
        ("nnx", "dygraph-tiny", "forward", "float32", "cpu", "only BERT-like"),
        ("triglot-jax-compiled", "bert-base-tiny", "forward", "float32", "cpu", None),
        ("triglot-jax-compiled", "bert-base-tiny", "forward", "float64", "cpu", "are the same.*see triglot-jax-jit"),
        ("triglot-jax-compiled", "prenorm-tiny", "forward", "float32", "cpu", "are the same.*see triglot-jax-jit"),
        ("triglot-paddle-jit", "bert-base-tiny", "forward", "bfloat16", "cpu", "does not support bfloat16"),
        ("triglot-paddle-jit", "bert-base-tiny", "forward", "bfloat16", "cuda", None),
        ("triglot-paddle-compiled", "bert-base-tiny", "forward", "bfloat16", "cpu", None),
        ("triglot-paddle-compiled", "translation-tiny", "generation", "bfloat16", "cpu", "inference engine"),
        ("triglot-paddle-compiled", "bert-base-tiny", "forward", "float16", "cpu", "does not support float16"),
        ("onnxruntime", "bert-base-tiny", "forward", "float32", "cuda", "does not run on cuda"),
        ("onnxruntime", "bert-base-tiny", "embed", "float32", "cpu", "does not turn texts into vectors"),
        ("sentence-transformers", "bert-base-tiny", "forward", "float32", "cpu", "only turns texts into vectors"),
        ("sentence-transformers", "prenorm-tiny", "embed", "bfloat16", "cuda", None),
        ("triglot-jax-compiled", "bert-base-tiny", "embed", "float64", "cpu", "float64 is unsupported"),
        *(
            (arm, model, workload, dtype, "cpu", reason)
            for workload in WITH_GRADIENTS
            for arm, model, dtype, reason in (
                ("triglot-torch-jit", "bert-base-tiny", "float32", None),
                ("triglot-torch-eager", "multihead-tiny", "float32", "has no loss"),
                ("onnxruntime", "bert-base-tiny", "float32", "compiled with its weights"),
                ("triglot-jax-eager", "bert-base-tiny", "float32", "see triglot-jax-jit"),
                ("triglot-torch-eager", "bert-base-tiny", "bfloat16", "only in float32 and float64"),
            )
        ),
    ],
)
def test_an_arm_says_what_it_does_not_support(arm, model, workload, dtype, device, reason):
    why = ARMS[arm].why_unsupported(recipe(model), workload, dtype, device)
    assert why is None if reason is None else re.search(reason, why or "")


@pytest.mark.parametrize(
    ("changes", "stock", "transformers"),
    [
        ({}, None, None),
        ({"positions_skip_padding": True}, None, "only BERT itself"),  # RoBERTa
        ({"position_offset": 2}, None, "only BERT itself"),
        ({"segments": 0}, None, "only BERT itself"),  # DistilBERT
        ({"embedding_size": 12}, "only BERT-like", "only BERT-like"),  # ELECTRA
        ({"embedding_scale": True}, "only BERT-like", "only BERT-like"),
        ({"embedding_process": "d"}, "only BERT-like", "only BERT-like"),
        ({"pooler_activation": "relu"}, "only BERT-like", "only BERT-like"),
        ({"attention_output_activation": "relu"}, "only BERT-like", "only BERT-like"),
    ],
)
def test_peers_compute_only_what_their_encoder_computes(changes, stock, transformers):
    config = replace(recipe("bert-base-tiny"), **changes)
    for arms_of_kind, reason in (
        (("torch-nn", "nnx", "paddle-nn"), stock),
        (("transformers-sdpa", "onnxruntime", "ctranslate2"), transformers),
    ):
        for arm in arms_of_kind:
            why = ARMS[arm].why_unsupported(config, "forward", "float32", "cpu")
            assert why is None if reason is None else reason in (why or ""), arm


@pytest.mark.long
def test_ctranslate2_is_imported_before_pytorch():
    """In the other order, its short calls take 1.8 times as long."""
    code = (
        "import sys; from triglot.bench.run.arms import ARMS; ARMS['ctranslate2'].import_builder(); print(*sys.modules)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    names = run.stdout.split()
    assert names.index("ctranslate2") < names.index("torch")


@pytest.mark.parametrize(
    ("arm", "model", "workload", "dtype", "device", "compiles"),
    [
        ("triglot-torch-compiled", "bert-base-tiny", "forward", "float32", "cpu", False),  # runs on packed tokens
        ("triglot-torch-compiled", "bert-base-tiny", "embed", "float32", "cpu", False),
        ("triglot-torch-jit", "bert-base-tiny", "embed", "float32", "cpu", True),
        ("triglot-torch-compiled", "bert-base-tiny", "forward", "bfloat16", "cpu", True),  # if it lacks the kernels
        ("triglot-torch-compiled", "bert-base-tiny", "forward", "float64", "cpu", True),
        ("triglot-torch-compiled", "translation-tiny", "forward", "float32", "cpu", True),
        ("triglot-torch-compiled", "translation-tiny", "generation", "float32", "cpu", True),
        ("triglot-torch-compiled", "translation-tiny", "forward", "float32", "cuda", False),
        ("triglot-torch-jit", "bert-base-tiny", "forward", "float32", "cpu", True),
        ("triglot-torch-eager", "bert-base-tiny", "forward", "float32", "cpu", False),
        ("triglot-jax-jit", "bert-base-tiny", "forward", "float32", "cpu", False),
        ("transformers-compiled", "bert-base-tiny", "forward", "float32", "cpu", True),
    ],
)
def test_which_arms_pytorch_compiles_to_cpp(arm, model, workload, dtype, device, compiles):
    assert ARMS[arm].compiles_cpp(recipe(model), workload, dtype, device) == compiles


def test_an_arm_whose_packages_are_missing_says_so(monkeypatch):
    monkeypatch.setattr(arms.importlib.util, "find_spec", lambda name: None)
    why = ARMS["nnx"].why_unsupported(recipe("bert-base-tiny"), "forward", "float32", "cpu")
    assert why == "jax, flax, optax not installed"


def test_arms_are_selected_by_framework_mode_and_name():
    own = [name for name, arm in ARMS.items() if not arm.peer]
    assert arms.select([], [], []) == [name for name in ARMS if name != "sentence-transformers"]
    assert arms.select([], [], [], "embed") == [*own, "sentence-transformers"]
    assert arms.select(["paddle"], ["compiled"], []) == ["triglot-paddle-compiled", "paddle-nn-compiled"]
    assert arms.select([], [], ["nnx", "torch-nn"]) == ["torch-nn", "nnx"]
    with pytest.raises(FrameworkError, match=r"^unknown arm 'caffe'; expected.*triglot-torch-eager, "):
        arms.select([], [], ["caffe"])
    with pytest.raises(FrameworkError, match=r"^unknown arm 'openvno'; did you mean 'openvino'"):
        arms.select([], [], ["openvno"])
    with pytest.raises(FrameworkError, match=r"onnxruntime and eager.*triglot-torch-eager, "):
        arms.select(["onnxruntime"], ["eager"], [])


def test_every_framework_and_mode_has_an_arm():
    covered = {(arm.framework, arm.mode) for arm in ARMS.values() if not arm.peer}
    assert covered == {(name, mode) for name in impls.FRAMEWORKS for mode in impls.MODES}


def test_a_grid_has_a_cell_for_every_combination():
    grid = {"batches": [4, 1], "lengths": [16, 8], "fills": [0.5, 1.0], "dtypes": ["float32"], "device": "cpu"}
    cells = cells_of_grid("m", "forward", orders=["padded", "sorted"], threads=2, **grid)
    assert len(cells) == len({cell.id for cell in cells}) == 2 * 2 * 2 + 2 * 2
    assert Case("nnx", cells[0]).id != Case("nnx", cells[0], is_twin=True).id


PEERS = [name for name, arm in ARMS.items() if arm.peer and arm.builder]


@pytest.mark.filterwarnings("ignore")  # of the frameworks
@pytest.mark.usefixtures("without_cpp")
@pytest.mark.parametrize("name", PEERS)
def test_peers_compute_the_same(name, make_checkpoint):
    checkpoint = make_checkpoint("bert-base-tiny")
    inputs = batches.batches_of_cell(CELL, checkpoint.config, None, 0)
    prepared = ARMS[name].import_builder()(checkpoint, Case(name, CELL), inputs)
    results = prepared.call()
    prepared.wait(results)
    outputs = prepared.outputs(results)
    assert outputs.keys() == {"output", "pooler"}
    judgement = ForwardTruth(checkpoint, inputs[0], "float32").judge(outputs)
    assert judgement.verdict == "pass", judgement


@pytest.mark.filterwarnings("ignore")  # of the frameworks
@pytest.mark.usefixtures("without_cpp")
@pytest.mark.parametrize("name", PEERS)
def test_peers_compute_other_shapes(name, make_checkpoint):
    checkpoint = make_checkpoint("bert-base-tiny")
    cell = replace(CELL, order="arrival", length=16)
    inputs = batches.batches_of_cell(cell, checkpoint.config, None, 0)
    first = inputs[0]
    other = next(batch for batch in inputs if batch.valid.shape != first.valid.shape)
    prepared = ARMS[name].import_builder()(checkpoint, Case(name, cell), [first, other])
    for used, expected in (([first, other], first), ([other], other)):
        prepared.use(used)
        results = prepared.call()
        prepared.wait(results)
        assert len(results) == len(used)
        judgement = ForwardTruth(checkpoint, expected, "float32").judge(prepared.outputs(results))
        assert judgement.verdict == "pass", judgement


@pytest.mark.filterwarnings("ignore")  # of the frameworks
def test_onnx_runtime_gets_the_model_that_its_tool_can_optimise(make_checkpoint, tmp_path):
    """The tool leaves a model that it does not recognise as it is, which is up to a fifth slower."""
    from triglot.bench.peers import onnx_export, onnx_session

    checkpoint = make_checkpoint("bert-base-tiny")
    inputs: Any = batches.batches_of_cell(CELL, checkpoint.config, None, 0)
    (example,) = onnx_export.inputs_of(inputs)
    fused = onnx_session.optimized(checkpoint, example, tmp_path).get_fused_operator_statistics()
    assert [fused[name] for name in ("Attention", "BiasGelu")] == [checkpoint.config.layers] * 2


def test_build_refuses_an_unknown_mode(make_checkpoint):
    with pytest.raises(FrameworkError, match="mode 'turbo'"):
        triglot.build("torch", make_checkpoint("bert-base-tiny"), mode="turbo")
