"""The worker process that runs an original.

Requests, see ``shared/worker.py``:

``run``   the original, a dtype, files with batches, and files for the results of each
"""

import importlib
from pathlib import Path

from triglot.shared.checkpoint import npz
from triglot.shared.inputs import batch_from_arrays
from triglot.shared.model.config import ModelConfig
from triglot.shared.worker import Message, WorkerError, serve

from . import Original


def _run(request: Message) -> Message:
    config = ModelConfig.from_dict(request["config"])
    original = Original(Path(request["path"]), request["dialect"], config)
    batches = [batch_from_arrays(config, npz.read(Path(path))) for path in request["batches"]]
    try:
        library = importlib.import_module(f"triglot.parity.originals.libraries.{original.library.module}")
        results = library.run(original, batches, request["dtype"])
    except Exception as error:
        raise WorkerError.of(error, fatal=True) from error
    for path, values in zip(request["results"], results, strict=True):
        npz.write(Path(path), values)
    return {}


if __name__ == "__main__":
    serve({"run": _run})
