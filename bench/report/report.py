"""The outcome of a benchmark: ``triglot.bench/1`` as plain JSON types, and as a Markdown table."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from triglot.bench.machine import load as machine
from triglot.bench.run.arms import ARMS
from triglot.bench.run.cases import Case
from triglot.bench.run.results import Comparison, Known, Result
from triglot.bench.run.workloads import RAGGED_BATCHES

from . import statistics
from .statistics import Ratio

SCHEMA = "triglot.bench/1"

FIELDS = (
    *("import_s", "load_s", "compile_s", "latency_ms", "device_ms"),
    *("tokens_per_second", "sequences_per_second", "useful_gflops", "flops_per_byte"),
    *("peak_rss_mb", "peak_device_mb", "parity", "processors_used", "warm_up_calls"),
)


def to_dict(
    models: Mapping[str, Any],
    results: Sequence[Result],
    comparisons: Sequence[Comparison],
    rooflines: Sequence[Mapping[str, Any]],
    environment: Mapping[str, Any],
) -> dict[str, Any]:
    """The report. ``models``: weights_digest and config by name. ``rooflines``: what the hardware reached."""
    again, ratios = split(comparisons)
    return {
        "schema": SCHEMA,
        "models": dict(models),
        "environment": dict(environment),
        "roofline": list(rooflines),
        "noise_floor": statistics.floor_of(again) if again else None,
        "cases": [_case(result, rooflines) for result in results],
        "ratios": [_ratio(comparison) for comparison in [*comparisons] if comparison in ratios]
        + [{**_ratio(comparison), "again": True} for comparison in comparisons if comparison not in ratios],
    }


def split(comparisons: Sequence[Comparison]) -> tuple[dict[str, Ratio], list[Comparison]]:
    """The ratios of arms to themselves, by case, and those of different arms."""
    again = {one.a: one.ratio for one in comparisons if "*" in one.a.split("/")[0]}
    return again, [one for one in comparisons if one.a not in again]


def known(report: Mapping[str, Any]) -> Known:
    """What an earlier report says, to go on with."""
    results: dict[str, Result] = {}
    for row in report["cases"]:
        facts = {name: row.get(name) for name in (*FIELDS, "fill")}
        ends = np.cumsum(row["round_lengths"])[:-1]
        rounds = [part.tolist() for part in np.split(np.asarray(row["samples_ms"]), ends)] if len(ends) else []
        # Of sentences, the report holds the share that came out; none was asked for.
        case = Case.from_dict({**row, "fill": row["fill"] if row["order"] == "padded" else 1.0})
        results[row["id"]] = Result(case, row["status"], row["failure"] or "", facts, rounds, digest=row["digest"])
    comparisons = [
        Comparison(one["a"], one["b"], Ratio(one["median"], one["low"], one["high"])) for one in report["ratios"]
    ]
    return Known(results, comparisons, report["environment"].get("others", {}))


def exit_code(report: Mapping[str, Any]) -> int:
    """1 if an arm computes something else than the reference, 2 if nothing was timed.

    An arm that could not run does not count.
    """
    verdicts = [case["parity"]["verdict"] for case in report["cases"] if case["parity"]]
    if "diverged" in verdicts:
        return 1
    return 0 if any(case["status"] == "ok" and "*" not in case["id"] for case in report["cases"]) else 2


def roofline_of(case: Mapping[str, Any], rooflines: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """What the hardware reached in the dtype, on the device and with the threads of a case; empty: not measured."""
    same = ("dtype", "device", "threads")
    found = [one for one in rooflines if all(one[name] == case[name] for name in same)]
    return found[0] if found else {}


def _case(result: Result, rooflines: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    facts = {name: result.facts.get(name) for name in FIELDS}
    described = result.case.to_dict()
    best = roofline_of(described, rooflines).get("gflops")
    useful = facts["useful_gflops"]
    if result.case.cell.order != "padded":
        described["fill"] = result.facts.get("fill")
    return {
        **described,
        "status": result.status,
        "failure": result.failure or None,
        **facts,
        "roofline_fraction": useful / best if useful and best else None,
        "samples_ms": [sample for samples in result.rounds for sample in samples],
        "round_lengths": [len(samples) for samples in result.rounds],
        "digest": result.digest,
    }


def _ratio(comparison: Comparison) -> dict[str, Any]:
    ratio = comparison.ratio
    return {"a": comparison.a, "b": comparison.b, "median": ratio.median, "low": ratio.low, "high": ratio.high}


def rows(report: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The cases with their ratio to the reference arm of their cell, fastest first in each cell, the failed ones last.

    Arms that were timed a second time, to see the noise, are left out, and so are ratios to another reference than that
    of the others.
    """
    found: list[dict[str, Any]] = []
    cells = list(dict.fromkeys(cell_of(case) for case in report["cases"]))
    for cell in cells:
        base = f"{ratio_base(report, cell)}/{cell}"
        ratios = {one["a"]: one for one in report["ratios"] if not one.get("again") and one["b"] == base}
        members = [case for case in report["cases"] if cell_of(case) == cell and "*" not in case["id"]]
        shown: list[dict[str, Any]] = [
            {**case, "ratio": ratios.get(case["id"]), "is_reference": case["id"] == base} for case in members
        ]
        halves = [case["latency_ms"]["p50"] for case in shown if case["is_reference"] and case["status"] == "ok"]
        found += sorted(shown, key=lambda case: _place(case, halves[0] if halves else 1.0))
    return found


def cell_of(case: Mapping[str, Any]) -> str:
    """The id of the cell that a case belongs to."""
    return case["id"].split("/", 1)[1]


def title(case: Mapping[str, Any]) -> str:
    """The cell of a case in words."""
    if case["order"] == "padded":
        shape = f"batch {case['batch']}, length {case['length']}, {case['fill']:.0%} of the tokens real"
    else:
        order = "as they come" if case["order"] == "arrival" else "sorted by length"
        shape = f"{RAGGED_BATCHES} batches of {case['batch']} sentences, {order}, up to {case['length']} tokens"
    return f"{case['model']}, {case['workload']}, {shape}, {where(case)}"


def where(case: Mapping[str, Any]) -> str:
    """What a case runs on, in words."""
    threads = "1 thread" if case["threads"] == 1 else f"{case['threads']} threads"
    return f"{case['dtype']}, {case['device']}, {threads}"


def cells(case: Mapping[str, Any]) -> list[str]:
    """The columns of a row: arm, verdict, milliseconds, tokens a second, GFLOP/s, share, ratio, cold start, memory."""
    if case["status"] != "ok":
        return [case["arm"], f"{case['status']}: {case['failure']}", *[""] * 7]
    ratio = case["ratio"]
    spread = "1" if case["is_reference"] else ""
    if ratio:
        spread = f"{ratio['median']:.2f} ({ratio['low']:.2f} to {ratio['high']:.2f})"
    share = case["roofline_fraction"]
    device = case.get("device_ms")
    cold = sum(case[part] for part in ("import_s", "load_s", "compile_s"))
    return [
        case["arm"],
        case["parity"]["verdict"],
        f"{case['latency_ms']['p50']:.2f}" + (f" (GPU {device['p50']:.2f})" if device else ""),
        f"{case['tokens_per_second']:,.0f}" if case["tokens_per_second"] else "",
        _number(case["useful_gflops"]) if case["useful_gflops"] else "",
        f"{_number(100 * share)}%" if share else "",
        spread,
        f"{cold:.1f}",
        f"{case['peak_rss_mb']:,.0f}",
    ]


def _number(value: float) -> str:
    """Whole, or with three digits where that would be one."""
    return f"{value:.0f}" if value >= 10 else f"{value:.3g}"


COLUMNS = ("arm", "parity", "ms", "tokens/s", "GFLOP/s", "of roofline", "times the baseline", "cold start, s", "MiB")


def table(members: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """The columns that say something of these cases, and a row for each of them."""
    found = [cells(case) for case in members]
    used = [place for place in range(len(COLUMNS)) if any(row[place] for row in found)]
    return [COLUMNS[place] for place in used], [[row[place] for place in used] for row in found]


def markdown(report: Mapping[str, Any]) -> str:
    """A table for each cell."""
    lines: list[str] = []
    for cell, members in by_cell(report).items():
        columns, shown = table(members)
        lines += [f"**{title(members[0])}**", "", f"| {' | '.join(columns)} |", f"|{'---|' * len(columns)}"]
        lines += [f"| {' | '.join(row)} |" for row in shown]
        lines += ["", notes(report, cell), ""]
    return "\n".join(lines)


def by_cell(report: Mapping[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """The rows of each cell."""
    found: dict[str, list[dict[str, Any]]] = {}
    for case in rows(report):
        found.setdefault(cell_of(case), []).append(case)
    return found


def notes(report: Mapping[str, Any], cell: str) -> str:
    """What has to be known to read the numbers of a cell."""
    base = ratio_base(report, cell)
    again = _again(report, cell)
    parts = [f"Ratios are to {base}; under 1 is faster."] if base else []
    if len({one["b"] for one in report["ratios"] if one["b"].split("/", 1)[1] == cell}) > 1:
        parts.append("Those to another reference are in the JSON alone.")
    parts += [
        f"The same arm against itself: {one['median']:.3f} ({one['low']:.3f} to {one['high']:.3f})." for one in again
    ]
    if any(case.get("device_ms") for case in report["cases"] if cell_of(case) == cell):
        parts.append("GPU: from its first work to its last, by the clock of the device.")
    if switches := _told_variables(report["environment"]):
        parts.append(f"Set in the environment: {switches}.")
    others = report["environment"].get("others", {}).get(cell)
    if others is not None:
        parts.append(f"Other processes used {others:.2f} processors.")
    if others is not None and others > machine.BUSY:
        parts.append("The machine was busy: time it again when it is not.")
    if (spread := unsteadiness(report, cell)) > machine.STEADY:
        told = (
            f"The machine's speed itself varied by a factor of {spread:.2f} (10th to 90th percentile of the rounds of"
        )
        parts.append(f"{told} {base}); single times mean little then, ratios are of the same moments.")
    return " ".join(parts)


def unsteadiness(report: Mapping[str, Any], cell: str) -> float:
    """How many times as long the reference arm of a cell took in its slow rounds as in its fast ones; 1: not known."""
    base = ratio_base(report, cell)
    for case in report["cases"]:
        if case["id"] == f"{base}/{cell}" and len(case["round_lengths"]) > 1:
            ends = np.cumsum(case["round_lengths"])[:-1]
            medians = [float(np.median(part)) for part in np.split(np.asarray(case["samples_ms"]), ends)]
            fast, slow = np.percentile(medians, [10, 90])
            return float(slow / fast)
    return 1.0


def floor_of_cell(report: Mapping[str, Any], cell: str) -> float | None:
    """The noise floor of one cell: what its reference arm differs from itself by, at most; None: not measured."""
    ratios = {one["a"]: Ratio(one["median"], one["low"], one["high"]) for one in _again(report, cell)}
    return statistics.floor_of(ratios) if ratios else None


def _told_variables(environment: Mapping[str, Any]) -> str:
    """What was set where it was measured; empty if nothing that changes a framework."""
    return ", ".join(f"{name}={value}" for name, value in environment.get("variables", {}).items())


def _again(report: Mapping[str, Any], cell: str) -> list[Mapping[str, Any]]:
    """What the reference of a cell differs from itself by, if that was measured."""
    base = f"{ratio_base(report, cell)}/{cell}"
    return [one for one in report["ratios"] if one.get("again") and one["b"] == base]


def ratio_base(report: Mapping[str, Any], cell: str) -> str | None:
    """The arm that the ratios of a cell are to; None if there are none. If it died, another took its place."""
    bases = [one["b"] for one in report["ratios"] if one["b"].split("/", 1)[1] == cell]
    failed = {case["id"] for case in report["cases"] if case["status"] != "ok"}
    return min(bases, key=lambda name: name in failed).split("/")[0] if bases else None


def _place(case: Mapping[str, Any], reference_ms: float) -> tuple[bool, float, int]:
    # By the ratio, which is of the same moments; what has none, by what it took on its own.
    order = list(ARMS).index(case["arm"])
    if case["status"] != "ok":
        return True, 0.0, order
    return False, case["ratio"]["median"] if case["ratio"] else case["latency_ms"]["p50"] / reference_ms, order
