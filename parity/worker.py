"""The worker process of the parity harness: runs checks in one framework. See ``shared/worker.py``.

The first line of its input says what to build: framework, device, dtype, mode; the answer is what the worker runs on.
Every further line names a checkpoint, a file with a batch, where to put the results, and a file with what is put in
the place of values; or one with dropout masks, and a dtype: then the results are the loss and its gradients.
"""

import json
import os
import queue
import sys
import threading
from io import FileIO
from pathlib import Path
from typing import Any, BinaryIO

from triglot.impls import build
from triglot.shared import checkpoint
from triglot.shared.checkpoint import Checkpoint, npz
from triglot.shared.environment import environment
from triglot.shared.inputs.validation import Batch
from triglot.shared.model.protocol import Model
from triglot.shared.worker import WorkerError

from .checks import run
from .gradients import named


def main() -> None:
    """Answer requests until the input ends."""
    # Frameworks print what they like; the answers need a channel of their own.
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    # Unbuffered: a buffer has a lock, and a thread that waits while it holds one makes the interpreter's end a crash.
    requests = _requests(open(0, "rb", buffering=0, closefd=False))  # noqa: SIM115 (open as long as the process)
    settings = requests.get()
    _answer(answers, {"environment": {**environment(), "executable": sys.executable}})
    models: dict[str, tuple[Model, Checkpoint]] = {}
    while True:
        request = requests.get()
        try:
            _serve(request, settings, models)
            answer = {}
        except WorkerError as error:
            answer = {"error": str(error), "fatal": error.fatal}
        _answer(answers, answer)


def _requests(source: FileIO) -> "queue.Queue[dict[str, Any]]":
    """The requests, read in a thread: when the harness is gone, so is the worker, whatever it is busy with."""
    requests: queue.Queue[dict[str, Any]] = queue.Queue()

    def read() -> None:
        for line in source:
            requests.put(json.loads(line))
        os._exit(0)

    threading.Thread(target=read, daemon=True).start()
    return requests


def _answer(answers: BinaryIO, answer: dict[str, Any]) -> None:
    answers.write(json.dumps(answer).encode() + b"\n")
    answers.flush()


def _serve(request: dict[str, Any], settings: dict[str, Any], models: dict[str, tuple[Model, Checkpoint]]) -> None:
    path = request["checkpoint"]
    if "masks" in request:
        _derive(request, settings)
        return
    if path not in models:
        try:
            weights = checkpoint.load(path)
            models[path] = build(checkpoint=weights, **settings), weights
        except Exception as error:
            raise WorkerError.of(error, fatal=True) from error
    try:
        results = run(*models[path], Batch(**_arrays(request["batch"])), _arrays(request["replacements"]))
        npz.write(Path(request["results"]), results)
    except Exception as error:
        raise WorkerError.of(error, fatal=False) from error


def _derive(request: dict[str, Any], settings: dict[str, Any]) -> None:
    try:
        model = build(checkpoint=checkpoint.load(request["checkpoint"]), **{**settings, "dtype": request["dtype"]})
        loss, gradients = model.loss_and_gradients(Batch(**_arrays(request["batch"])), _arrays(request["masks"]))
        npz.write(Path(request["results"]), named(loss, gradients))
    except Exception as error:
        raise WorkerError.of(error, fatal=True) from error


def _arrays(path: str) -> dict[str, Any]:
    return npz.read(Path(path))


if __name__ == "__main__":
    main()
