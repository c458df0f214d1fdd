"""What the PyPI package padiff says of two implementations of a model, one in PyTorch and one in PaddlePaddle."""

import contextlib
import importlib.util
import io
import os
import sys
import tempfile
from collections.abc import Generator, Mapping
from functools import cache
from typing import Any

from triglot import impls
from triglot.impls.model import Model
from triglot.shared.checkpoint import Checkpoint
from triglot.shared.inputs import Batch

FRAMEWORKS = ("torch", "paddle")

# The options of each rule. By default padiff compares only the mean of each output, within 1e-7 relative.
RULES: Mapping[str, Mapping[str, Any]] = {
    "padiff, default options": {},
    "padiff, every entry within 1e-5": {"compare_mode": "strict", "atol": 1e-5, "rtol": 1e-5},
}

# By default padiff replaces functions of both frameworks in the whole process, to name those that differ.
_LEAVE_FRAMEWORKS_ALONE = {"PADIFF_API_CHECK": "OFF", "PADIFF_TENSOR_METHOD": "OFF"}

_DEFAULT_PRINT_OPTIONS: Mapping[str, Mapping[str, Any]] = {"torch": {"profile": "default"}, "paddle": {"precision": 8}}


def complaints(framework: str, model: Model, checkpoint: Checkpoint, batch: Batch) -> dict[str, bool]:
    """Return which rules complain about ``model``, the implementation of ``checkpoint`` in ``framework``.

    It is compared with our implementation in the other framework. The result is empty if padiff cannot run.
    """
    if not _can_run(framework, model):
        return {}
    (other,) = set(FRAMEWORKS) - {framework}
    implementations = {framework: model, other: impls.build(other, checkpoint)}
    paddle, torch = implementations["paddle"], implementations["torch"]
    inputs = tuple(
        {name: each.backend.to_tensor(array) for name, array in batch.arrays().items()} for each in (paddle, torch)
    )
    with _imported() as padiff:
        return {
            rule: _complains(padiff, paddle.transformer, torch.transformer, inputs, options)
            for rule, options in RULES.items()
        }


def _complains(padiff: Any, layer: Any, module: Any, inputs: Any, options: Mapping[str, Any]) -> bool:
    try:
        return not padiff.auto_diff(
            layer, module, inputs, auto_weights=False, options={"diff_phase": "forward", **options}
        )
    except Exception:  # padiff passes on what a model raises, and a user sees that
        return True


def _can_run(framework: str, model: Model) -> bool:
    """Return whether padiff can run. It supports only two frameworks and calls only whole models."""
    if importlib.util.find_spec("padiff") is None or not {*FRAMEWORKS} <= {*impls.installed()}:
        return False
    return framework in FRAMEWORKS and model.config.kind != "attention" and model.backend.dtype_name == "float32"


@contextlib.contextmanager
def _imported() -> Generator[Any]:
    """Import padiff and suppress its output. It writes its logs to the first folder of ``sys.path``."""
    os.environ.update(_LEAVE_FRAMEWORKS_ALONE)
    folder = _folder_for_logs().name
    sys.path.insert(0, folder)
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            is_new = "padiff" not in sys.modules
            padiff = importlib.import_module("padiff")
            if is_new:  # its import makes both frameworks print ten digits
                for framework, options in _DEFAULT_PRINT_OPTIONS.items():
                    importlib.import_module(framework).set_printoptions(**options)
            yield padiff
    finally:
        sys.path.remove(folder)


@cache
def _folder_for_logs() -> tempfile.TemporaryDirectory[str]:
    """Return a folder that is removed when the process ends."""
    return tempfile.TemporaryDirectory(prefix="triglot-")
