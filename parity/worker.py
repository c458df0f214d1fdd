"""The worker process of the parity harness: does jobs in one framework.

Requests, see ``shared/worker.py``:

``start``      framework, device, dtype and mode; the answer is the environment that the worker runs in
``job``        the kind of job, files with a checkpoint, a batch and further arrays, and where to write the results
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
from triglot.shared.memory import keep_freed_memory
from triglot.shared.worker import Message, WorkerError, serve

from .jobs import Runner
from .output_names import name_gradients

_settings: Message = {}
_runners: list[Runner] = []
_weights: dict[str, Checkpoint] = {}


def main() -> None:
    """Answer requests until the input ends."""
    keep_freed_memory()
    serve({"start": _start, "job": _do, "gradients": _derive})


def _start(request: Message) -> Message:
    _settings.update({name: request[name] for name in ("framework", "device", "dtype", "mode")})
    _runners.append(Runner(_build, request["dtype"], request["mode"]))
    return {"environment": {**environment(), "executable": sys.executable}}


def _build(checkpoint: Checkpoint, dtype: str, mode: str) -> Model:
    return build(checkpoint=checkpoint, **{**_settings, "dtype": dtype, "mode": mode})


def _do(request: Message) -> Message:
    path = request["checkpoint"]
    if path not in _weights:
        _weights[path] = checkpoints.load(path)
    _runners[0].model(_weights[path])  # if it cannot be built, nothing else can be done
    try:
        batch = batch_from_arrays(_weights[path].config, _arrays(request["batch"]))
        results = _runners[0].run(request["job"], _weights[path], batch, _arrays(request["arrays"]))
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
