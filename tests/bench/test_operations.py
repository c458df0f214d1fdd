"""The study of operations: names belong to the right kind, and every linear layer is seen."""

import pytest

from triglot.bench.run import batches
from triglot.bench.run.arms import ARMS
from triglot.bench.run.cases import Case, Cell
from triglot.bench.studies import operations


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("mkldnn::_linear_pointwise", "linear layers"),
        ("aten::addmm", "linear layers"),
        ("onednn_op.fc", "linear layers"),
        ("aten::baddbmm", "products of attention"),
        ("onednn_op.fused_matmul", "products of attention"),
        ("aten::_softmax", "softmax"),
        ("aten::native_layer_norm", "norms"),
        ("aten::add", "residuals"),
        ("onednn_op.add", "residuals"),
        ("aten::copy_", "copies"),
        ("pd_op.gather_nd", "copies"),
        ("pd_op.onednn_to_paddle_layout", "copies"),
        ("aten::empty", "others"),
        ("between operations", "between operations"),
    ],
)
def test_every_operation_has_a_kind(name, expected):
    assert operations.kind(name) == expected


@pytest.mark.parametrize(("name", "products"), [("torch", 4), ("paddle", 6)])
def test_every_linear_layer_is_seen(name, products, make_checkpoint, workplace):
    """PyTorch computes query, key and value in one product, and Paddle in three."""
    checkpoint = make_checkpoint("bert-base-tiny")
    cell = Cell("bert-base-tiny", "forward", "padded", "float32", "cpu", 2, 8, 1.0, 1)
    case = Case(f"triglot-{name}-compiled", cell)
    prepared = ARMS[case.arm].import_builder()(
        checkpoint, case, batches.batches_of_cell(cell, checkpoint.config, None, 0)
    )
    found = operations.PROFILERS[name](prepared.call)
    linear = [number for operation, (number, _) in found.items() if operations.kind(operation) == "linear layers"]
    assert sum(linear) == products * checkpoint.config.layers + 1  # the pooler
    assert all(spent > 0 for operation, (_, spent) in found.items() if operations.kind(operation) == "linear layers")
    assert not list(workplace.iterdir()), "the profiler wrote a file"
