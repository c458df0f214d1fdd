"""Fake arms of the benchmark: they run the reference in float32, correctly or with the fault that they are named after.

Run as a script, this is the worker process for them: it finds ``FakeArm`` in ``__main__``.
"""

import os
import signal
import sys
import time

import numpy as np

from triglot import impls
from triglot.bench.run import worker
from triglot.bench.run.arms import Arm

COMPILE_SECONDS = 0.2


class FakeArm:
    """The reference in float32, with the fault that the name of the arm stands for."""

    calls = 0

    def __init__(self, checkpoint, case, batches):
        self.arm, self.cell = case.arm, case.cell
        self.model = impls.build("numpy", checkpoint, dtype="float32")
        self.known_shapes = set()
        self.use(batches)
        if self.arm == "fake-memory-error":
            raise MemoryError("Unable to allocate 100 TiB")
        if self.arm == "fake-import-error":
            raise ImportError("no module named torchonnx")
        if self.arm == "fake-crash":
            os.kill(os.getpid(), signal.SIGSEGV)
        if self.arm == "fake-hang":
            time.sleep(100)

    def use(self, batches):
        self.new_shapes = {batch.source.shape for batch in batches} - self.known_shapes
        self.known_shapes |= self.new_shapes
        if self.arm == "fake-fixed-shapes" and self.calls:
            raise ValueError("the shapes of the first batches are compiled in")
        self.prepared = [self.model.prepare(self.cell.workload, batch) for batch in batches]

    def call(self):
        self.calls += 1
        if self.arm == "fake-slow-compiler":
            time.sleep(COMPILE_SECONDS * len(self.new_shapes))
            self.new_shapes = set()
        if self.arm == "fake-hoard" and self.calls == 31:
            self.hoard = np.ones(2**27)  # 1 GiB
        if self.arm == "fake-killed" and self.calls > 30:
            os.kill(os.getpid(), signal.SIGKILL)
        if self.arm == "fake-exit" and self.calls > 30:
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
        if self.arm == "fake-inaccurate":
            output = output * np.float32(1.001)
        if self.arm == "fake-wrong-shape":
            output = output[:, :-1]
        if self.arm == "fake-nan":
            output = output * np.float32("nan")
        return {"output": output, **heads}


_EAGER = (
    "a",
    "b",
    "c",
    "d",
    "e",
    "memory-error",
    "import-error",
    "crash",
    "killed",
    "exit",
    "hang",
    "hoard",
    "slow-compiler",
    "fixed-shapes",
)
_WRONG = ("inaccurate", "wrong-shape", "nan")
FAKE_ARMS = {
    **{f"fake-{name}": Arm("torch", "eager", "__main__:FakeArm") for name in (*_EAGER, *_WRONG)},
    "fake-compiled": Arm("torch", "jit", "__main__:FakeArm"),
}
WORKER = (sys.executable, "-P", __file__)

if __name__ == "__main__":
    worker.main()
