"""The report as JSON, ``triglot.bench/1``. No other module knows the names of its fields."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, cast

import numpy as np

from triglot.bench.machine.load import MachineState
from triglot.bench.machine.roofline import FrameworkSpeed, Roofline
from triglot.bench.run.arms import ARMS
from triglot.bench.run.cases import Case, Cell
from triglot.parity.report import Judgement
from triglot.shared.errors import BenchError

from .report import Comparison, ModelRecord, Report, Result, Surroundings
from .statistics import Percentiles, Ratio

SCHEMA = "triglot.bench/1"

_PLAIN = (
    *("import_s", "load_s", "compile_s", "tokens_per_second", "sequences_per_second", "useful_gflops"),
    *("flops_per_byte", "peak_rss_mb", "peak_device_mb", "processors_used", "warm_up_calls"),
)  # fields of a result that a case holds unchanged
_CELL = tuple(Cell.__dataclass_fields__)
_JUDGED = ("error", "budget", "verdict", "name")


def to_json(report: Report) -> dict[str, Any]:
    """Return the report as plain JSON types."""
    surroundings = asdict(report.surroundings)
    comparisons = sorted(report.comparisons, key=lambda comparison: comparison.is_twin)
    return {
        "schema": SCHEMA,
        "models": {name: asdict(model) for name, model in report.models.items()},
        "environment": {**surroundings.pop("environment"), **surroundings},
        "roofline": [_roofline_to_json(roof) for roof in report.rooflines],
        "noise_floor": report.noise_floor,
        "cases": [_case_to_json(result, report.roofline_share(result)) for result in report.results],
        "ratios": [
            {"a": comparison.a, "b": comparison.b, **asdict(comparison.ratio)}
            | ({"again": True} if comparison.is_twin else {})
            for comparison in comparisons
        ],
    }


def _case_to_json(result: Result, roofline_share: float | None) -> dict[str, Any]:
    case, arm = result.case, ARMS[result.case.arm]
    fill = {} if case.cell.order == "padded" else {"fill": result.fill}
    return {
        **{"id": case.id, "arm": case.arm, **asdict(case.cell), "framework": arm.framework, "mode": arm.mode},
        **fill,
        "status": result.status,
        "failure": result.failure or None,
        **{name: getattr(result, name) for name in _PLAIN},
        "latency_ms": asdict(result.latency_ms) if result.latency_ms else None,
        "device_ms": asdict(result.device_ms) if result.device_ms else None,
        **({"new_shapes_ms": result.new_shapes_ms} if result.new_shapes_ms else {}),
        "parity": {name: getattr(result.parity, name) for name in _JUDGED} if result.parity else None,
        "roofline_fraction": roofline_share,
        "samples_ms": [sample for samples in result.rounds for sample in samples],
        "round_lengths": [len(samples) for samples in result.rounds],
        **({"round_processes": result.processes} if any(result.processes) else {}),
        "digest": result.digest,
    }


def _roofline_to_json(roof: Roofline) -> dict[str, Any]:
    content = asdict(roof)
    for name, speed in content["frameworks"].items():
        content["frameworks"][name] = {field: value for field, value in speed.items() if value not in (None, False)}
    return content


def read(path: Path) -> Report:
    """Read a report from a file.

    Raises:
        BenchError: the file cannot be read, or does not hold a report.
    """
    try:
        content: Any = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise BenchError(f"cannot read {path}: {error.strerror}; name a file that bench --json wrote") from error
    except (ValueError, RecursionError) as error:
        raise BenchError(f"cannot read {path}: it is not JSON; name a file that bench --json wrote") from error
    document = cast("dict[str, Any]", content) if isinstance(content, dict) else {}
    if document.get("schema") != SCHEMA:
        raise BenchError(f"{path} is not a {SCHEMA} report; name a file that bench --json wrote")
    try:
        return from_json(document)
    except (AttributeError, KeyError, TypeError, ValueError, IndexError) as error:
        reason = str(error) if isinstance(error, ValueError) else "a part has the wrong type"
        if isinstance(error, KeyError):
            reason = f"{error} is missing"
        raise BenchError(f"{path} is not a valid report: {reason}; measure again") from error


def from_json(document: Mapping[str, Any]) -> Report:
    """Return the report that ``to_json`` described. ``read`` turns the exceptions of Python into an error."""
    names: list[str] = [case["id"] for case in document["cases"]]
    if len(set(names)) < len(names):
        raise ValueError(f"{next(name for name in names if names.count(name) > 1)} occurs twice")
    _ = (document["noise_floor"] or 0.0) + 0.0  # computed again from the ratios
    environment: dict[str, Any] = dict(document["environment"])
    _ = environment["packages"].items()
    surroundings = {name: environment.pop(name, {}) for name in ("machine", "settings", "workers", "others")}
    machine = MachineState(**surroundings.pop("machine"))
    models = {
        name: ModelRecord(model["weights_digest"], dict(model["config"])) for name, model in document["models"].items()
    }
    rooflines: list[Roofline] = []
    for roof in document["roofline"]:
        speeds = {name: FrameworkSpeed(**speed) for name, speed in roof["frameworks"].items()}
        fields: dict[str, Any] = {"size": None, **roof, "frameworks": speeds}
        rooflines.append(Roofline(**fields))
    results = [_case_from_json(case) for case in document["cases"]]
    _ = [models[result.case.cell.model] for result in results]
    return Report(
        models=models,
        surroundings=Surroundings(environment, machine, **surroundings),
        rooflines=rooflines,
        results=results,
        comparisons=[
            Comparison(ratio["a"], ratio["b"], Ratio(ratio["median"], ratio["low"], ratio["high"]))
            for ratio in document["ratios"]
        ],
    )


def _case_from_json(case: Mapping[str, Any]) -> Result:
    if case["arm"] not in ARMS:
        raise ValueError(f"unknown arm {case['arm']!r}")
    cell = {name: case[name] for name in _CELL}
    if case["order"] != "padded":  # of sentences, the document holds the measured fill
        cell["fill"] = 1.0
    result = Result(
        Case(case["arm"], Cell(**cell), is_twin="*" in case["id"].split("/")[0]),
        case["status"],
        case["failure"] or "",
        _rounds(case),
        case["digest"],
        case["fill"],
        latency_ms=Percentiles(**case["latency_ms"]) if case.get("latency_ms") else None,
        device_ms=Percentiles(**case["device_ms"]) if case.get("device_ms") else None,
        new_shapes_ms=case.get("new_shapes_ms"),
        parity=Judgement(**case["parity"]) if case.get("parity") else None,
        processes=_processes(case),
        **{name: case.get(name) for name in _PLAIN},
    )
    if result.status == "ok":
        if result.latency_ms is None:
            raise TypeError("latency_ms")
        samples = case["samples_ms"]
        if not samples or not np.isclose(float(result.latency_ms.p50), np.median(samples)):
            raise ValueError(f"latency_ms of {case['id']} does not match its samples_ms")
    return result


def _processes(case: Mapping[str, Any]) -> list[int]:
    rounds = len(case["round_lengths"])
    processes: list[int] = case.get("round_processes", [0] * rounds)
    if len(processes) != rounds:
        raise ValueError(f"round_processes of {case['id']} does not match its round_lengths")
    return [int(process) for process in processes]


def _rounds(case: Mapping[str, Any]) -> list[list[float]]:
    samples = np.asarray(case["samples_ms"], np.float64)
    lengths: Sequence[int] = case["round_lengths"]
    if sum(lengths) != samples.size or not (samples > 0).all() or not np.isfinite(samples).all():
        raise ValueError(f"samples_ms of {case['id']} does not match its round_lengths")
    return [part.tolist() for part in np.split(samples, np.cumsum(lengths)[:-1])] if lengths else []
