"""Is it slower than it was? Two reports, case by case."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np

from triglot.bench.run.arms import ARMS
from triglot.shared.errors import BenchError

from . import report, statistics
from .statistics import Ratio

Verdict = Literal["slower", "faster", "same", "gone"]

# Two runs differ by more than the arms of one: the machine was another one meanwhile. The same report made twice on an
# idle machine was seen to differ by 3 % in its worst case.
LEAST = 0.05

COLUMNS = ("case", "times as long as before", "verdict")


@dataclass(frozen=True)
class Change:
    """How many times as long a case takes now.

    "same": what differs lies below the noise floor of the two runs. "gone": it was timed, and now it could not be, so
    that there is no ratio; ``why`` says what it says.
    """

    id: str
    ratio: Ratio | None
    verdict: Verdict
    why: str = ""


def read(path: Path) -> dict[str, Any]:
    """The report in a file.

    Raises:
        BenchError: it cannot be read, or is no report of a benchmark.
    """
    try:
        content: Any = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise BenchError(f"cannot read {path}: {error.strerror}; give a file that bench --json wrote") from error
    except (ValueError, RecursionError) as error:
        raise BenchError(f"cannot read {path}: it is no JSON; give a file that bench --json wrote") from error
    found = cast("dict[str, Any]", content) if isinstance(content, dict) else {}
    if found.get("schema") != report.SCHEMA:
        raise BenchError(f"{path} is no {report.SCHEMA}; give a file that bench --json wrote")
    try:
        if unknown := [case["arm"] for case in found["cases"] if case["arm"] not in ARMS]:
            raise ValueError(f"there is no arm {unknown[0]!r}")
        _check_cases(found["cases"])
        report.known(found)
        _ = [(one["dtype"], one["device"], one["threads"], one["frameworks"]) for one in found["roofline"]]
        _ = (found["noise_floor"] or 0.0) + 0.0, dict(found["environment"]["packages"])
        named: dict[str, Any] = {case["model"]: found["models"][case["model"]] for case in found["cases"]}
        _ = [(model["config"], model["weights_digest"]) for model in (*named.values(), *dict(found["models"]).values())]
    except (AttributeError, KeyError, TypeError, ValueError, IndexError) as error:
        what = str(error) if isinstance(error, ValueError) else "a part of the wrong type"
        if isinstance(error, KeyError):
            what = f"no {error}"
        raise BenchError(f"{path} lacks a part, or has a wrong one: {what}; make it anew") from error
    return found


def _check_cases(cases: Sequence[Mapping[str, Any]]) -> None:
    """Refuse a report that contradicts itself: what was timed has samples, and its median is theirs.

    Raises:
        ValueError: names the case.
        KeyError, TypeError: one lacks a part, or has one of the wrong type.
    """
    names = [case["id"] for case in cases]
    if len(set(names)) < len(names):
        raise ValueError(f"{next(name for name in names if names.count(name) > 1)} is there twice")
    for case in cases:
        samples = np.asarray(case["samples_ms"], np.float64)
        if sum(case["round_lengths"]) != samples.size or not (samples > 0).all() or not np.isfinite(samples).all():
            raise ValueError(f"samples_ms of {case['id']} are not the times of its round_lengths")
        if case["status"] != "ok":
            continue
        if not samples.size or not np.isclose(float(case["latency_ms"]["p50"]), np.median(samples)):
            raise ValueError(f"latency_ms of {case['id']} is not that of its samples_ms")


def check_comparable(old: Mapping[str, Any], configurations: Mapping[str, Any], ids: Iterable[str]) -> None:
    """Find out, before anything is timed, whether there will be something to compare.

    ``configurations``: of each model, as plain JSON types. ``ids``: of the cases that are to be timed.

    Raises:
        BenchError: the old report is of another configuration, or of none of the cases.
    """
    for name in old["models"].keys() & configurations.keys():
        before, now = old["models"][name]["config"], configurations[name]
        if wrong := sorted(field for field in before.keys() | now.keys() if before.get(field) != now.get(field)):
            raise BenchError(
                f"the earlier result is of a {name} with another configuration ({wrong[0]} {before.get(wrong[0])!r}, "
                f"not {now.get(wrong[0])!r}); compare with one of this model"
            )
    timed = [name for name, one in report.known(old).results.items() if one.rounds and "*" not in name]
    asked = list(ids)
    if not set(asked) & set(timed):
        raise BenchError(
            f"none of these cases was timed in the earlier result (it has {timed[0] if timed else 'none'}, and not "
            f"{asked[0]}); compare with one of the same cases"
        )


def changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[Change]:
    """The cases of the new report that were timed in the old one, the worst first.

    One has changed if the whole interval of its ratio lies beyond the noise floor: the larger one of the two runs, and
    ``LEAST`` at least.

    Raises:
        BenchError: see ``check_comparable``.
    """
    configurations = {name: model["config"] for name, model in new["models"].items()}
    check_comparable(old, configurations, [case["id"] for case in new["cases"]])
    floor = max(old["noise_floor"] or 0.0, new["noise_floor"] or 0.0, LEAST)
    before, after = (report.known(one).results for one in (old, new))
    found: list[Change] = []
    for case in new["cases"]:
        name = case["id"]
        if "*" in name or name not in before or not before[name].rounds:
            continue
        if case["status"] != "ok" or not after[name].rounds:
            found.append(Change(name, None, "gone", f"{case['status']}: {case['failure']}"))
            continue
        ratio = statistics.unpaired(after[name].rounds, before[name].rounds)
        verdict: Verdict = "same"
        if ratio.low > 1 + floor:
            verdict = "slower"
        if ratio.high < 1 / (1 + floor):
            verdict = "faster"
        found.append(Change(name, ratio, verdict))
    return sorted(found, key=lambda change: -change.ratio.median if change.ratio else float("-inf"))


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """What else is not the same, in words: a ratio may come from there."""
    both = old["models"].keys() & new["models"].keys()
    facts = [
        {
            **{name: one["environment"].get(name) for name in ("processor", "cores")},
            **one["environment"]["packages"],
            **one["environment"].get("settings", {}),
            **one["environment"].get("variables", {}),
            **{f"weights of {name}": one["models"][name]["weights_digest"] for name in both},
        }
        for one in (old, new)
    ]
    names = sorted(facts[0].keys() | facts[1].keys())
    found = [(name, facts[0].get(name), facts[1].get(name)) for name in names]
    return [
        f"{name} was {_told(name, before)}, is {_told(name, after)}" for name, before, after in found if before != after
    ]


def row(change: Change) -> list[str]:
    """The columns of a change, as text."""
    ratio = change.ratio
    spread = f"{ratio.median:.2f} ({ratio.low:.2f} to {ratio.high:.2f})" if ratio else change.why
    return [change.id, spread, change.verdict]


def markdown(found: Sequence[Change], others: Sequence[str]) -> str:
    """A table of changes, and below it what else has changed."""
    lines = ["**Since the earlier result**", "", f"| {' | '.join(COLUMNS)} |", f"|{'---|' * len(COLUMNS)}"]
    lines += [f"| {' | '.join(row(change))} |" for change in found]
    lines += ["", *(f"- also, {line}" for line in others)]
    return "\n".join(lines).rstrip() + "\n"


def _told(name: str, value: object) -> str:
    told = "nothing" if value is None else str(value)
    return told[:12] if name.startswith("weights of ") else told  # a digest
