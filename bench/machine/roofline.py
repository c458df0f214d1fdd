"""What the hardware can do here: the fastest matrix product and memory copy that any framework reaches on the threads.

Measured in the same run as the cases, in one process per framework: ``python -m triglot.bench.machine.roofline``.
Useful work over the best product is the share of the roofline that a case reaches.
"""

import importlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from triglot import impls
from triglot.bench.run.settings import ALLOCATORS, SHARED_DEVICE, Settings
from triglot.shared.environment import thread_settings

from . import gpu
from . import load as machine

# Rows and columns of the matrices: large enough that the product is all that counts. A GPU multiplies those of a CPU in
# the time that it takes to ask for it.
SIZES = {"cpu": 2048, "cuda": 8192}
COPIED = {"cpu": 64 * 2**20, "cuda": 256 * 2**20}  # numbers that are copied: more than any cache holds
SECONDS = 0.4
FEWEST = 2


def measure(frameworks: Sequence[str], dtype: str, device: str, threads: int, settings: Settings) -> dict[str, Any]:
    """The best of every framework: {"gflops", "copy_gb_per_s"}, and what each reached, or why it could not.

    In the surroundings of an arm: the same processors, the same allocator, the same limit of time.
    """
    found: dict[str, Any] = {}
    surroundings = {**os.environ, **thread_settings(threads), **ALLOCATORS[settings.allocator], **SHARED_DEVICE}
    where = json.dumps(machine.processors(threads))
    for framework in frameworks:
        command = [sys.executable, "-P", "-m", "triglot.bench.machine.roofline", framework, dtype, device, where]
        limit = settings.time_limit
        try:
            result = subprocess.run(
                command, check=False, capture_output=True, text=True, env=surroundings, timeout=limit
            )
        except subprocess.TimeoutExpired:
            found[framework] = {"failure": f"no answer within {limit:g} s"}
            continue
        try:
            reached = json.loads(result.stdout.splitlines()[-1])
            if reached.get("missing"):
                found[framework] = reached
                continue
            found[framework] = {name: float(reached[name]) for name in ("gflops", "copy_gb_per_s")}
        except (AttributeError, LookupError, ValueError, TypeError):
            words = result.stderr.strip().splitlines() or [f"exit code {result.returncode}"]
            found[framework] = {"failure": words[-1]}
    reached = [one for one in found.values() if "failure" not in one]
    return {
        "dtype": dtype,
        "device": device,
        "threads": threads,
        "size": SIZES[device],
        "gflops": max((one["gflops"] for one in reached), default=None),
        "copy_gb_per_s": max((one["copy_gb_per_s"] for one in reached), default=None),
        "frameworks": found,
    }


def better(before: dict[str, Any] | None, after: dict[str, Any]) -> dict[str, Any]:
    """The best of two measurements, of products and of copies: a slow moment is not what the hardware can do."""
    if before is None:
        return after
    best = {
        name: max((one[name] for one in (before, after) if one[name]), default=None)
        for name in ("gflops", "copy_gb_per_s")
    }
    return {**after, **best, "frameworks": before["frameworks"] | after["frameworks"]}


def fastest(measured: dict[str, Any]) -> list[str]:
    """The frameworks that reached most, in products or in copies."""
    reached = {name: one for name, one in measured["frameworks"].items() if "failure" not in one}
    names = ("gflops", "copy_gb_per_s")
    return sorted({max(reached, key=lambda name: reached[name][what]) for what in names}) if reached else []


def _best(call: Callable[[], Any]) -> float:
    """The shortest of the calls of ``SECONDS``, in seconds."""
    call()
    seconds: list[float] = []
    end = time.perf_counter() + SECONDS
    while len(seconds) < FEWEST or time.perf_counter() < end:
        start = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - start)
    return min(seconds)


def _torch(dtype: str, device: str) -> tuple[Callable[[], Any], Callable[[], Any]]:
    torch: Any = importlib.import_module("torch")

    a, b = (torch.randn(SIZES[device], SIZES[device], device=device).to(getattr(torch, dtype)) for _ in range(2))
    source = torch.ones(COPIED[device], device=device)
    target = torch.empty_like(source)

    def waiting(compute: Callable[[], Any]) -> Callable[[], Any]:
        def call() -> None:
            compute()
            if device == "cuda":
                torch.cuda.synchronize()

        return call

    return waiting(lambda: a @ b), waiting(lambda: target.copy_(source))


def _paddle(dtype: str, device: str) -> tuple[Callable[[], Any], Callable[[], Any]]:
    paddle: Any = importlib.import_module("paddle")

    paddle.set_device("gpu" if device == "cuda" else "cpu")
    a, b = (paddle.randn([SIZES[device], SIZES[device]]).astype(dtype) for _ in range(2))
    source = paddle.ones([COPIED[device]])

    def waiting(compute: Callable[[], Any]) -> Callable[[], Any]:
        def call() -> None:
            compute()
            if device == "cuda":
                paddle.device.synchronize()

        return call

    return waiting(lambda: paddle.matmul(a, b)), waiting(lambda: paddle.assign(source))


def _jax(dtype: str, device: str) -> tuple[Callable[[], Any], Callable[[], Any]]:
    jax: Any = importlib.import_module("jax")
    jnp: Any = jax.numpy

    jax.config.update("jax_enable_x64", dtype == "float64")
    on = jax.devices(device)[0]
    shape = (SIZES[device], SIZES[device])
    a, b = (jax.device_put(jax.random.normal(jax.random.key(i), shape).astype(dtype), on) for i in range(2))
    source = jax.device_put(jnp.ones(COPIED[device], jnp.float32), on)
    product, copy = jax.jit(partial(jnp.matmul, precision="highest")), jax.jit(jnp.negative)
    return (lambda: jax.block_until_ready(product(a, b))), (lambda: jax.block_until_ready(copy(source)))


_CALLS = dict(zip(impls.FRAMEWORKS, (_torch, _paddle, _jax), strict=True))


def main() -> None:
    """Print what the framework, the dtype and the device that are asked for reach."""
    framework, dtype, device, processors = sys.argv[1:]
    importlib.import_module(framework)
    try:
        gpu.check(framework, device, sys.modules)
    except gpu.DeviceMissingError as error:
        print(json.dumps({"failure": str(error), "missing": True}))  # noqa: T201
        return
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, json.loads(processors))
    product, copy = _CALLS[framework](dtype, device)
    # A copy reads and writes each of its four bytes.
    work, moved = 2 * SIZES[device] ** 3, 2 * 4 * COPIED[device]
    found = {"gflops": work / _best(product) / 1e9, "copy_gb_per_s": moved / _best(copy) / 1e9}
    print(json.dumps(found))  # noqa: T201


if __name__ == "__main__":
    main()
