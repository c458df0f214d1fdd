"""The worker process of the benchmark: it builds one case, times its calls, and measures its memory.

Requests, see ``shared/worker.py``:

``build``       the arm and its name, the cell, its files and where to write the outputs, if anywhere; the answer has
                the durations of the cold start and the memory it needed
``sample``      seconds, the least number of calls and the seconds of calls before them that do not count; the answer
                has the milliseconds of each call, on a GPU also by the clock of the device
``new_shapes``  the configuration, and files of other batches or texts; the answer has the milliseconds of the first
                call that computes them
``settle``      nothing; the answer comes when the idle threads of the process sleep

Every answer has the processor time since the one before. Between requests the process sleeps.
"""

import os
import resource
import sys
import time
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

from triglot.bench.machine import gpu, load
from triglot.shared import checkpoint
from triglot.shared.checkpoint import npz
from triglot.shared.environment import environment
from triglot.shared.errors import BenchError
from triglot.shared.memory import return_freed_memory
from triglot.shared.model.config import ModelConfig
from triglot.shared.worker import Message, serve

from . import parts
from .arms import ARMS, Arm, Prepared
from .cases import Case, Cell

# After a call, idle threads wait for more work on a core that the next arm needs: in GNU's OpenMP (PyTorch) for 0.01
# seconds, in ONNX Runtime for 0.03 to 0.05, and in Intel's OpenMP (Paddle) for 0.2. In JAX they sleep at once.
SETTLE_WINDOW, SETTLE_LIMIT = 0.01, 2.0  # seconds
IDLE = 0.1  # processors


def main() -> None:
    """Answer requests until the input ends."""
    prepared: Prepared | None = None
    clock: gpu.DeviceClock | None = None
    used = 0.0

    def on_build(request: Message) -> Message:
        nonlocal prepared, clock
        prepared, answer = build(request)
        return_freed_memory()  # what the outputs took, and the weights before they were converted
        clock = gpu.clock(request["arm"]["framework"], request["cell"]["device"], sys.modules)
        return with_processor_seconds(answer)

    def on_sample(request: Message) -> Message:
        assert prepared is not None
        if request["uncounted"]:  # not in a request of its own, because the main process would use a core in between
            sample(prepared, None, request["uncounted"], 1)
        return with_processor_seconds(sample(prepared, clock, request["seconds"], request["least"]))

    def on_new_shapes(request: Message) -> Message:
        assert prepared is not None
        return with_processor_seconds({"milliseconds": time_new_shapes(prepared, request)})

    def with_processor_seconds(answer: Message) -> Message:
        nonlocal used
        before, used = used, time.process_time()
        return {**answer, "processor_seconds": used - before}

    def on_settle(_: Message) -> Message:
        settle()
        return with_processor_seconds({})

    serve({"build": on_build, "sample": on_sample, "new_shapes": on_new_shapes, "settle": on_settle})


def build(request: Message) -> tuple[Prepared, Message]:
    """Build an arm, run it once, and write its outputs if they are wanted. Return it with the answer."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, request["processors"])
    if request["memory_limit_mb"]:
        # The limit counts all private memory that the process may write to, used or only reserved.
        limit = request["memory_limit_mb"] * load.MEBIBYTE
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    idle = load.resident()  # with NumPy and the parts of Triglot that this module imports
    arm = Arm(**request["arm"])
    case = Case(request["name"], Cell(**request["cell"]))
    ARMS[case.arm] = arm  # a test or a study may have added it in the main process alone
    times = [time.perf_counter()]
    builder = arm.import_builder(case.cell.workload)
    gpu.check_device(arm.framework, case.cell.device, sys.modules)
    times.append(time.perf_counter())
    weights = checkpoint.load(request["checkpoint"])
    prepared = builder(weights, case, [parts.read(Path(path), weights.config) for path in request["parts"]])
    times.append(time.perf_counter())
    results = prepared.call()
    prepared.wait(results)
    times.append(time.perf_counter())
    _check_threads(case.cell.threads, sys.modules)
    peak = (load.peak_resident() - idle) / load.MEBIBYTE
    device_peak = gpu.peak_mb(arm.framework, case.cell.device, sys.modules)
    if request["outputs"] is not None:
        judged = prepared
        if request["judged"]:  # part of what is timed
            judged = builder(weights, case, [parts.read(Path(request["judged"]), weights.config)])
            results = judged.call()
            judged.wait(results)
        npz.write(Path(request["outputs"]), dict(judged.outputs(results)))
    imported, loaded, first = (after - before for before, after in pairwise(times))
    return prepared, {
        "environment": {**environment(), "executable": sys.executable},
        "import_s": imported,
        "load_s": loaded,
        "first_call_s": first,
        "peak_rss_mb": peak,
        "judged_rss_mb": (load.peak_resident() - idle) / load.MEBIBYTE,
        "peak_device_mb": device_peak,
    }


def sample(prepared: Prepared, device: gpu.DeviceClock | None, seconds: float, least: int) -> Message:
    """Time repeated calls for about ``seconds``, at least ``least`` calls.

    Return the milliseconds of each call, those by the clock of the device if it has one, and the mean number of
    processors that were used.
    """
    samples: list[float] = []
    device_samples: list[float] = []
    clock, processor = time.perf_counter, time.process_time
    busy, begin = processor(), clock()
    while len(samples) < max(least, 1) or (1 + 0.5 / len(samples)) * (clock() - begin) < seconds:
        start = clock()
        if device is not None:
            device.start()
        results = prepared.call()
        if device is not None:
            device.stop()
        prepared.wait(results)
        del results  # or the next call would have less memory
        samples.append(1000 * (clock() - start))
        if device is not None:
            device_samples.append(device.milliseconds())
    used = (processor() - busy) / (clock() - begin)
    return {"samples_ms": samples, "device_ms": device_samples, "processors_used": used}


def time_new_shapes(prepared: Prepared, request: Message) -> float:
    """Time the first call on other batches or texts, in milliseconds. Later calls compute these too."""
    config = ModelConfig.from_dict(request["config"])
    prepared.use([parts.read(Path(path), config) for path in request["parts"]])
    begin = time.perf_counter()
    prepared.wait(prepared.call())
    return 1000 * (time.perf_counter() - begin)


def settle() -> None:
    """Wait until the idle threads of this process sleep. Their spinning would slow down the next arm.

    Raises:
        BenchError: they still spin after ``SETTLE_LIMIT``.
    """
    end, used = time.perf_counter() + SETTLE_LIMIT, 1.0
    while used > IDLE:
        if time.perf_counter() > end:
            raise BenchError(
                f"its threads still use {used:.1f} processors {SETTLE_LIMIT:g} s after a call, which would slow down "
                "the other arms; unset OMP_WAIT_POLICY and KMP_BLOCKTIME"
            )
        begin, busy = time.perf_counter(), time.process_time()
        time.sleep(SETTLE_WINDOW)
        used = (time.process_time() - busy) / (time.perf_counter() - begin)


def _check_threads(expected: int, loaded: Mapping[str, Any]) -> None:
    """Refuse to be timed on a different number of threads.

    Raises:
        BenchError: the process, or PyTorch, has another number.
    """
    counts = {"the process": len(os.sched_getaffinity(0))} if hasattr(os, "sched_getaffinity") else {}
    if "torch" in loaded:
        counts["PyTorch"] = loaded["torch"].get_num_threads()
    if wrong := [f"{name} has {count}" for name, count in counts.items() if count != expected]:
        raise BenchError(f"{' and '.join(wrong)} threads, expected {expected}; choose another number for --threads")


if __name__ == "__main__":
    main()
