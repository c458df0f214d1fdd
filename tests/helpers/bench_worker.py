"""A worker of the benchmark whose arms are not what they say: they compute by the reference, or fail in some way.

``python bench_worker.py`` in the place of ``python -m triglot.bench.run.worker``.
"""

import os
import signal
import sys
import time
from dataclasses import replace

import numpy as np

from triglot import impls
from triglot.bench.run import arms, worker
from triglot.bench.run import triglot_arm as ours


class Fake:
    """The reference in float32, with a fault that the name of the arm stands for."""

    calls = 0

    def __init__(self, checkpoint, case, batches):
        self.arm, self.cell = case.arm, case.cell
        self.model = impls.build("numpy", checkpoint, dtype="float32")
        self.prepared = [self.model.prepare(case.cell.workload, batch) for batch in batches]
        if self.arm == "nnx":
            raise MemoryError("Unable to allocate 100 TiB")
        if self.arm == "onnxruntime":
            raise ImportError("no module named torchonnx")
        if self.arm == "torch-nn":
            os.kill(os.getpid(), signal.SIGSEGV)
        if self.arm == "triglot-torch-jit":
            time.sleep(100)

    def call(self):
        self.calls += 1
        if self.arm == "triglot-torch-compiled" and self.calls == 31:
            self.hoard = np.ones(2**28)  # 2 GiB
        if self.arm == "paddle-nn" and self.calls > 30:
            os.kill(os.getpid(), signal.SIGKILL)
        if self.arm == "triglot-paddle-jit" and self.calls > 30:
            sys.stdout.flush()
            os._exit(3)
        return [call() for call in self.prepared]

    def wait(self, results):
        pass

    def outputs(self, results):
        if self.cell.workload == "generation":
            (ids,) = results
            ids[1, -1] = (ids[1, -1] + 1) % 7  # an ordinary word, and not the best
            return {"ids": ids, "generated": np.array(ids.size)}
        output, heads = results[0]
        if self.arm == "transformers-eager":
            output = output * np.float32(1.001)
        if self.arm == "transformers-sdpa":
            output = output[:, :-1]
        if self.arm == "transformers-compiled":
            output = output * np.float32("nan")
        return {"output": output, **heads}


if __name__ == "__main__":
    # A framework that computes nothing need not be imported, which takes seconds each time.
    arms.ARMS.update({name: replace(arm, packages=()) for name, arm in arms.ARMS.items()})
    ours.prepare = Fake
    build = worker.build
    worker.build = lambda request: build({**request, "builder": "triglot.bench.run.triglot_arm:prepare"})
    worker.main()
