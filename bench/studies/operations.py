"""Where the time of an encoder goes in mode "compiled": the milliseconds of each kind of operation in a call.

    python -m triglot.bench.studies.operations torch --model bert-base
    python -m triglot.bench.studies.operations paddle --batch 32 --order arrival

The profilers of PyTorch and PaddlePaddle name every operation, and say how long it takes. "between operations" is the
rest of the call: Python and the framework's own work. Profiling slows down short operations, so this part is
overestimated; the title of the table has the time of a call without the profiler. JAX is left out, because its program
is a single operation. Weights are random, and each word of a sentence counts as one token.
"""

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from enum import StrEnum
from statistics import median
from typing import Annotated, Any

import typer

from triglot.bench.report.tables import markdown_table, title
from triglot.bench.run import batches
from triglot.bench.run.arms import ARMS
from triglot.bench.run.cases import ORDERS, Case, Cell
from triglot.shared.checkpoint import Checkpoint
from triglot.shared.environment import limit_threads, threads
from triglot.shared.model.initializers import initialize
from triglot.shared.model.recipes import recipe

CALLS = 10  # under the profiler
WARM_UP = 2.0  # seconds
BETWEEN = "between operations"
CALL = "call"  # the name of the span around each call

# Kinds of operations, by parts of the names that the frameworks give them. The first match counts.
KINDS = {
    "linear layers": ("linear", "fc", "addmm", "::mm"),
    "products of attention": ("bmm", "scaled_dot_product", "fused_matmul", "matmul"),
    "softmax": ("softmax",),
    "norms": ("layer_norm",),
    "residuals": (":add", ".add"),
    "copies": (
        "copy",
        "gather",
        "index",
        "cat",
        "clone",
        "flatten",
        "reshape",
        "transpose",
        "scatter",
        "slice",
        "layout",
    ),
}

Framework = StrEnum("Framework", ("torch", "paddle"))
Order = StrEnum("Order", ORDERS)
PADDED = Order("padded")


def main(
    framework: Framework,
    model: Annotated[str, typer.Option(help="Profile this recipe.")] = "minilm",
    arm: Annotated[str, typer.Option(help="Profile this arm instead of mode compiled.")] = "",
    batch: Annotated[int, typer.Option(min=1, help="Rows of a batch.")] = 8,
    length: Annotated[int, typer.Option(min=1, help="Tokens of a row.")] = 128,
    order: Annotated[Order, typer.Option(help="Padded rows, or sentences.")] = PADDED,
) -> None:
    """Profile the calls of one arm, and print a table."""
    if arm and (arm not in ARMS or ARMS[arm].framework != str(framework)):
        raise typer.BadParameter(f"{arm} is not an arm of {framework}; see docs/benchmark.md")
    limit_threads(None)
    config = recipe(model)
    cell = Cell(model, "forward", str(order), "float32", "cpu", batch, length, 1.0, threads())
    case = Case(arm or f"triglot-{framework}-compiled", cell)
    inputs = batches.batches_of_cell(cell, config, None, 0)
    prepared = ARMS[case.arm].import_builder()(Checkpoint(config, initialize(config)), case, inputs)

    def call() -> None:
        prepared.wait(prepared.call())

    milliseconds = median(times(call))
    of_operations = PROFILERS[str(framework)](call)
    profiled = sum(duration for _, duration in of_operations.values())
    counts: dict[str, float] = defaultdict(float)
    spent: dict[str, float] = defaultdict(float)
    for name, (count, duration) in of_operations.items():
        counts[kind(name)] += count
        spent[kind(name)] += duration
    rows = [
        [name, "" if name == BETWEEN else f"{counts[name]:.0f}", f"{spent[name]:.2f}", f"{spent[name] / profiled:.0%}"]
        for name in sorted(spent, key=lambda name: -spent[name])
    ]
    table = markdown_table(["operations", "number", "ms", "of the call"], rows)
    print("\n".join([f"**{title(cell)}: {case.arm}, {milliseconds:.2f} ms a call**", "", *table, ""]))  # noqa: T201


def times(call: Callable[[], None]) -> Iterator[float]:
    """Warm up, and yield the milliseconds of some calls."""
    end = time.perf_counter() + WARM_UP
    while time.perf_counter() < end:
        call()
    for _ in range(CALLS):
        begin = time.perf_counter()
        call()
        yield 1000 * (time.perf_counter() - begin)


def kind(operation: str) -> str:
    """Return the kind of an operation; "others" if no kind matches."""
    matching = (name for name, parts in KINDS.items() if any(part in operation for part in parts))
    return next(matching, operation if operation == BETWEEN else "others")


def profile_torch(call: Callable[[], None]) -> Mapping[str, tuple[float, float]]:
    """Return the count and the milliseconds of each operation in a call, by name."""
    from torch.profiler import profile, record_function  # noqa: PLC0415

    with profile() as profiler:
        for _ in range(CALLS):
            with record_function(CALL):
                call()
    events: Any = profiler.key_averages()
    return {
        BETWEEN if event.key == CALL else event.key: (event.count / CALLS, event.self_cpu_time_total / CALLS / 1000)
        for event in events
    }


def profile_paddle(call: Callable[[], None]) -> Mapping[str, tuple[float, float]]:
    """Return the count and the milliseconds of each operation in a call, by name."""
    from paddle import profiler  # noqa: PLC0415

    # By default, it writes a file.
    recorder: Any = profiler.Profiler(targets=[profiler.ProfilerTarget.CPU], on_trace_ready=lambda _: None)
    recorder.start()
    for _ in range(CALLS):
        with profiler.RecordEvent(CALL):
            call()
    recorder.stop()
    numbers: dict[str, float] = defaultdict(float)
    nanoseconds: dict[str, float] = defaultdict(float)

    def add(span: Any, operation: str) -> None:
        """Add a span and those inside it. Parts of an operation, such as its kernel, count as the operation."""
        if span.type.name == "Operator":
            operation = span.name
            numbers[operation] += 1
        nanoseconds[operation] += (
            span.end_ns - span.start_ns - sum(one.end_ns - one.start_ns for one in span.children_node)
        )
        for one in span.children_node:
            add(one, operation)

    def add_calls(span: Any) -> None:
        if span.name == CALL:
            add(span, BETWEEN)
        else:
            for one in span.children_node:
                add_calls(one)

    for span in recorder.profiler_result.get_data().values():
        add_calls(span)
    return {name: (numbers[name] / CALLS, spent / CALLS / 1e6) for name, spent in nanoseconds.items()}


PROFILERS = {"torch": profile_torch, "paddle": profile_paddle}

if __name__ == "__main__":
    typer.run(main)
