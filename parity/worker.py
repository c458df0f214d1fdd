"""The worker process of the parity harness: runs checks and computes gradients in one framework.

Requests, see ``shared/worker.py``:

``start``      framework, device, dtype and mode; the answer is the environment that the worker runs in
``check``      files with a checkpoint, a batch and replacements, where to write the results, and whether to call the
               public methods
``gradients``  files with a checkpoint, a batch and dropout masks, where to write the results, and a dtype
"""

import sys
from pathlib import Path
from typing import Any

from triglot.impls import build
from triglot.impls.model import Model
from triglot.shared import checkpoint as checkpoints
from triglot.shared.checkpoint import Checkpoint, npz
from triglot.shared.environment import environment
from triglot.shared.inputs import batch_from_arrays
from triglot.shared.worker import Message, WorkerError, serve

from .checks import run
from .output_names import name_gradients

_settings: Message = {}
_models: dict[str, tuple[Model, Checkpoint]] = {}


def main() -> None:
    """Answer requests until the input ends."""
    serve({"start": _start, "check": _check, "gradients": _derive})


def _start(request: Message) -> Message:
    _settings.update({name: request[name] for name in ("framework", "device", "dtype", "mode")})
    return {"environment": {**environment(), "executable": sys.executable}}


def _check(request: Message) -> Message:
    path = request["checkpoint"]
    if path not in _models:
        weights = checkpoints.load(path)
        _models[path] = build(checkpoint=weights, **_settings), weights
    try:
        model, weights = _models[path]
        batch = batch_from_arrays(weights.config, _arrays(request["batch"]))
        results = run(model, weights, batch, _arrays(request["replacements"]), methods=request["methods"])
        npz.write(Path(request["results"]), results)
    except Exception as error:
        raise WorkerError.of(error, fatal=False) from error
    return {}


def _derive(request: Message) -> Message:
    model = build(checkpoint=checkpoints.load(request["checkpoint"]), **{**_settings, "dtype": request["dtype"]})
    batch = batch_from_arrays(model.config, _arrays(request["batch"]))
    loss, gradients = model.loss_and_gradients(batch, _arrays(request["masks"]))
    npz.write(Path(request["results"]), name_gradients(loss, gradients))
    return {}


def _arrays(path: str) -> dict[str, Any]:
    return npz.read(Path(path))


if __name__ == "__main__":
    main()
