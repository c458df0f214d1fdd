"""The worker process of the benchmark: one case, built, timed and measured. See ``workers.py``.

Requests, see ``shared/worker.py``:

``build``   the case, its files and where to write the outputs; the answer has the durations of the cold start
            and the memory it needed
``sample``  seconds and the least number of calls; the answer holds the milliseconds of each call, on a GPU also by the
            clock of the device

Every answer has the processor time since the one before. Between requests the process sleeps.
"""

import importlib
import os
import resource
import sys
import time
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from triglot.bench.machine import gpu, memory
from triglot.shared.environment import environment
from triglot.shared.errors import BenchError
from triglot.shared.worker import Message, serve

if TYPE_CHECKING:
    from .arms import Prepared  # imported for real after the idle worker's memory is measured


def main() -> None:
    """Answer requests until the input ends."""
    arm: Prepared | None = None
    clock: gpu.DeviceClock | None = None
    used = 0.0

    def on_build(request: Message) -> Message:
        nonlocal arm, clock
        arm, answer = build(request)
        memory.give_back()  # what its outputs took, and the weights before they were converted
        clock = gpu.clock(request["case"]["framework"], request["case"]["device"], sys.modules)
        return with_processor_seconds(answer)

    def on_sample(request: Message) -> Message:
        assert arm is not None
        return with_processor_seconds(sample(arm, clock, request["seconds"], request["least"]))

    def with_processor_seconds(answer: Message) -> Message:
        nonlocal used
        before, used = used, time.process_time()
        return {**answer, "processor_seconds": used - before}

    serve({"build": on_build, "sample": on_sample})


def build(request: dict[str, Any]) -> "tuple[Prepared, dict[str, Any]]":
    """What is to be timed, and what it took to make it."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, request["processors"])
    if request["memory_limit_mb"]:
        # All private memory that a process may write to, touched or not: what its allocator sets aside counts as well.
        limit = request["memory_limit_mb"] * memory.MEBIBYTE
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    idle = memory.resident()
    from triglot.shared import checkpoint  # noqa: PLC0415 (after what the idle worker is measured by)
    from triglot.shared.checkpoint import npz  # noqa: PLC0415 (after what the idle worker is measured by)
    from triglot.shared.inputs import batch_from_arrays  # noqa: PLC0415

    from .arms import ARMS  # noqa: PLC0415
    from .cases import Case  # noqa: PLC0415

    case = Case.from_dict(request["case"])
    times = [time.perf_counter()]
    for package in ARMS[case.arm].packages:
        importlib.import_module(package)
    gpu.check(ARMS[case.arm].framework, case.cell.device, sys.modules)
    module, function = request["builder"].split(":")
    prepare = getattr(importlib.import_module(module), function)
    times.append(time.perf_counter())
    weights = checkpoint.load(request["checkpoint"])
    batches = [batch_from_arrays(weights.config, npz.read(Path(path))) for path in request["batches"]]
    prepared = prepare(weights, case, batches)
    times.append(time.perf_counter())
    results = prepared.call()
    prepared.wait(results)
    times.append(time.perf_counter())
    _check_threads(case.cell.threads, sys.modules)
    peak = (memory.most_resident() - idle) / memory.MEBIBYTE
    device_peak = gpu.peak_mb(ARMS[case.arm].framework, case.cell.device, sys.modules)
    judged = prepared
    if request["judged"]:  # less than what is timed
        judged = prepare(weights, case, [batch_from_arrays(weights.config, npz.read(Path(request["judged"])))])
        results = judged.call()
        judged.wait(results)
    npz.write(Path(request["outputs"]), dict(judged.outputs(results)))
    imported, loaded, first = (after - before for before, after in pairwise(times))
    return prepared, {
        "environment": {**environment(), "executable": sys.executable},
        "import_s": imported,
        "load_s": loaded,
        "first_s": first,
        "peak_rss_mb": peak,
        "judged_rss_mb": (memory.most_resident() - idle) / memory.MEBIBYTE,
        "peak_device_mb": device_peak,
    }


def sample(prepared: "Prepared", device: gpu.DeviceClock | None, seconds: float, least: int) -> dict[str, Any]:
    """Milliseconds of each call, as often as comes nearest to so many seconds, and the processors that were used.

    ``device``: its clock, where there is one; then "device_ms" is what each call took by it.
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
        del results  # or the next call would find less memory
        samples.append(1000 * (clock() - start))
        if device is not None:
            device_samples.append(device.milliseconds())
    used = (processor() - busy) / (clock() - begin)
    return {"samples_ms": samples, "device_ms": device_samples, "processors_used": used}


def _check_threads(asked: int, loaded: Mapping[str, Any]) -> None:
    """Refuse to be timed on another number of threads than was asked for.

    Raises:
        BenchError: says who has how many.
    """
    found = {"the process": len(os.sched_getaffinity(0))} if hasattr(os, "sched_getaffinity") else {}
    if "torch" in loaded:
        found["PyTorch"] = loaded["torch"].get_num_threads()
    if wrong := [f"{name} has {count}" for name, count in found.items() if count != asked]:
        raise BenchError(f"{' and '.join(wrong)} threads, not {asked}")


if __name__ == "__main__":
    main()
