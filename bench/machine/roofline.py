"""The roofline: the fastest matrix product and memory copy that any framework reaches on this machine.

Both are measured in the same run as the cases, in one process per framework:
``python -m triglot.bench.machine.roofline``.
"""

import importlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from triglot.bench.run.cases import Settings
from triglot.shared.environment import SHARED_GPU, thread_settings
from triglot.shared.errors import BenchError

from . import gpu, load

# Rows and columns of the matrices, large enough that the product dominates. A GPU multiplies matrices of the CPU's size
# in less time than it takes to launch the product.
SIZES = {"cpu": 2048, "cuda": 8192}
COPIED = {"cpu": 64 * 2**20, "cuda": 256 * 2**20}  # numbers that are copied, more than any cache holds
SECONDS = 0.4
FEWEST_CALLS = 2


@dataclass(frozen=True)
class FrameworkSpeed:
    """What one framework reached, or why it did not. ``missing``: it does not find the device."""

    gflops: float | None = None
    copy_gb_per_s: float | None = None
    failure: str | None = None
    missing: bool = False


@dataclass(frozen=True)
class Roofline:
    """What the hardware can do: the best of all frameworks, or None where none gave a number."""

    dtype: str
    device: str
    threads: int
    size: int | None
    gflops: float | None
    copy_gb_per_s: float | None
    frameworks: Mapping[str, FrameworkSpeed]

    def share(self, useful_gflops: float | None) -> float | None:
        """Return the share of the roofline that useful work reaches; None if either is not known."""
        return useful_gflops / self.gflops if useful_gflops and self.gflops else None

    def fastest(self) -> list[str]:
        """Return the frameworks that were fastest, at products or at copies."""
        speeds = {name: speed for name, speed in self.frameworks.items() if speed.failure is None}
        if not speeds:
            return []
        products = max(speeds, key=lambda name: speeds[name].gflops or 0.0)
        copies = max(speeds, key=lambda name: speeds[name].copy_gb_per_s or 0.0)
        return sorted({products, copies})

    def check_device_found(self) -> None:
        """Refuse a device that no framework finds, before every arm is started only to fail.

        Raises:
            BenchError: no framework finds the device.
        """
        if self.frameworks and all(speed.missing for speed in self.frameworks.values()):
            raise BenchError(f"{', '.join(self.frameworks)} find no {self.device} device; choose --device cpu")

    def combined_with(self, earlier: "Roofline | None") -> "Roofline":
        """Return the best of two measurements. A slow moment does not show what the hardware can do."""
        if earlier is None:
            return self
        return replace(
            self,
            gflops=_largest((earlier.gflops, self.gflops)),
            copy_gb_per_s=_largest((earlier.copy_gb_per_s, self.copy_gb_per_s)),
            frameworks={**earlier.frameworks, **self.frameworks},
        )


def measure(frameworks: Sequence[str], dtype: str, device: str, threads: int, settings: Settings) -> Roofline:
    """Measure every framework under the conditions of an arm: the same processors, allocator and time limit."""
    variables = {**os.environ, **SHARED_GPU, **thread_settings(threads), **settings.worker_variables()}
    processors = json.dumps(load.processors(threads))
    speeds: dict[str, FrameworkSpeed] = {}
    for framework in frameworks:
        command = [sys.executable, "-P", "-m", __spec__.name, framework, dtype, device, processors]
        try:
            process = subprocess.run(
                command, check=False, capture_output=True, text=True, env=variables, timeout=settings.time_limit
            )
        except subprocess.TimeoutExpired:
            speeds[framework] = FrameworkSpeed(failure=f"no answer within {settings.time_limit:g} s")
            continue
        try:
            speeds[framework] = _parse(json.loads(process.stdout.splitlines()[-1]))
        except (AttributeError, LookupError, ValueError, TypeError):
            errors = process.stderr.strip().splitlines() or [f"exit code {process.returncode}"]
            speeds[framework] = FrameworkSpeed(failure=errors[-1])
    return Roofline(
        dtype,
        device,
        threads,
        SIZES[device],
        gflops=_largest(speed.gflops for speed in speeds.values()),
        copy_gb_per_s=_largest(speed.copy_gb_per_s for speed in speeds.values()),
        frameworks=speeds,
    )


def _parse(answer: Mapping[str, Any]) -> FrameworkSpeed:
    if answer.get("missing"):
        return FrameworkSpeed(failure=str(answer["failure"]), missing=True)
    return FrameworkSpeed(float(answer["gflops"]), float(answer["copy_gb_per_s"]))


def _largest(values: Iterable[float | None]) -> float | None:
    return max((value for value in values if value), default=None)


def _shortest_call(call: Callable[[], Any], wait: Callable[[Any], Any]) -> float:
    """Return the seconds of the shortest call, of those that fit into ``SECONDS``."""
    wait(call())
    seconds: list[float] = []
    end = time.perf_counter() + SECONDS
    while len(seconds) < FEWEST_CALLS or time.perf_counter() < end:
        start = time.perf_counter()
        wait(call())
        seconds.append(time.perf_counter() - start)
    return min(seconds)


# Ways to compute a matrix product, a memory copy, and what waits for their result.
_Calls = tuple[Sequence[Callable[[], Any]], Callable[[], Any], Callable[[Any], Any]]


def _no_wait() -> None:
    """Do nothing: on a CPU, a call returns when its result is finished."""


def _torch_calls(dtype: str, device: str) -> _Calls:
    torch: Any = importlib.import_module("torch")
    packed: Any = importlib.import_module("triglot.impls.pytorch.packed")
    a, b = (torch.randn(SIZES[device], SIZES[device], device=device).to(getattr(torch, dtype)) for _ in range(2))
    source = torch.ones(COPIED[device], device=device)
    target = torch.empty_like(source)
    wait = torch.cuda.synchronize if device == "cuda" else _no_wait
    products: list[Callable[[], Any]] = [lambda: a @ b]
    if device == "cpu" and dtype in ("float32", "bfloat16") and packed.has_kernels(dtype):
        # MKL, which computes a @ b, is slow on processors that Intel did not make. oneDNN, with the matrix laid out for
        # its kernels, was 2.6 times as fast on an AMD EPYC of 2024.
        matrix = torch.ops.mkldnn._reorder_linear_weight(b, None)
        products.append(lambda: torch.ops.mkldnn._linear_pointwise(a, matrix, None, "none", [], ""))
    return products, (lambda: target.copy_(source)), lambda _: wait()


def _paddle_calls(dtype: str, device: str) -> _Calls:
    paddle: Any = importlib.import_module("paddle")
    paddle.set_device("gpu" if device == "cuda" else "cpu")
    a, b = (paddle.randn([SIZES[device], SIZES[device]]).astype(dtype) for _ in range(2))
    source = paddle.ones([COPIED[device]])
    wait = paddle.device.synchronize if device == "cuda" else _no_wait
    return [lambda: paddle.matmul(a, b)], (lambda: paddle.assign(source)), lambda _: wait()


def _jax_calls(dtype: str, device: str) -> _Calls:
    jax: Any = importlib.import_module("jax")
    jnp: Any = jax.numpy
    jax.config.update("jax_enable_x64", dtype == "float64")
    target = jax.devices(device)[0]
    shape = (SIZES[device], SIZES[device])
    a, b = (jax.device_put(jax.random.normal(jax.random.key(i), shape).astype(dtype), target) for i in range(2))
    source = jax.device_put(jnp.ones(COPIED[device], jnp.float32), target)
    product, copy = jax.jit(partial(jnp.matmul, precision="highest")), jax.jit(jnp.negative)
    return [lambda: product(a, b)], (lambda: copy(source)), jax.block_until_ready


_CALLS: dict[str, Callable[[str, str], _Calls]] = {"torch": _torch_calls, "paddle": _paddle_calls, "jax": _jax_calls}


def main() -> None:
    """Measure one framework and print the fields of its ``FrameworkSpeed`` as JSON."""
    framework, dtype, device, processors = sys.argv[1:]
    importlib.import_module(framework)
    try:
        gpu.check_device(framework, device, sys.modules)
    except gpu.DeviceMissingError as error:
        print(json.dumps({"failure": str(error), "missing": True}))  # noqa: T201
        return
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, json.loads(processors))
    products, copy, wait = _CALLS[framework](dtype, device)
    operations, copied_bytes = 2 * SIZES[device] ** 3, 2 * 4 * COPIED[device]  # a copy reads and writes float32
    speeds = {
        "gflops": operations / min(_shortest_call(product, wait) for product in products) / 1e9,
        "copy_gb_per_s": copied_bytes / _shortest_call(copy, wait) / 1e9,
    }
    print(json.dumps(speeds))  # noqa: T201


if __name__ == "__main__":
    main()
