"""The report of a benchmark: what became of each case, the ratios between cases, and what they were measured with.

``document.py`` writes and reads it as JSON.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from triglot.bench.machine.load import MachineState
from triglot.bench.machine.roofline import Roofline
from triglot.bench.run.arms import ARMS
from triglot.bench.run.cases import Case, Cell
from triglot.parity.report import Judgement

from .statistics import Percentiles, Ratio

Status = Literal["ok", "failed", "skipped"]


@dataclass
class Result:
    """What became of a case. A number that was not measured, or does not apply, is None.

    ``rounds`` holds the milliseconds of each call, round by round, and ``processes`` the number of the process that
    computed each round. ``device_ms`` is measured by a GPU's own clock.
    The cold start has three parts: ``import_s``, ``load_s`` and ``compile_s``. ``fill`` is the measured share of real
    tokens. ``new_shapes_ms`` is how long a call took that computed other sentences for the first time. ``digest``
    covers everything that the result depends on.
    """

    case: Case
    status: Status = "ok"
    failure: str = ""
    rounds: list[list[float]] = field(default_factory=list[list[float]])
    digest: str = ""
    fill: float | None = None
    import_s: float | None = None
    load_s: float | None = None
    compile_s: float | None = None
    latency_ms: Percentiles | None = None
    device_ms: Percentiles | None = None
    new_shapes_ms: float | None = None
    tokens_per_second: float | None = None
    sequences_per_second: float | None = None
    useful_gflops: float | None = None
    flops_per_byte: float | None = None
    peak_rss_mb: float | None = None
    peak_device_mb: float | None = None
    parity: Judgement | None = None
    processors_used: float | None = None
    warm_up_calls: int | None = None
    processes: list[int] = field(default_factory=list[int])

    def fail(self, reason: str) -> None:
        """Record why there is no result."""
        self.status, self.failure = "failed", reason

    @property
    def cold_start(self) -> tuple[float, float, float]:
        """Seconds for import, load and compile."""
        return self.import_s or 0.0, self.load_s or 0.0, self.compile_s or 0.0


@dataclass(frozen=True)
class Comparison:
    """How many times as long case ``a`` takes as case ``b``, the baseline. Both are named by id."""

    a: str
    b: str
    ratio: Ratio

    @property
    def is_twin(self) -> bool:
        """Whether this is the ratio of a baseline's twin to the baseline."""
        return "*" in self.a.split("/")[0]

    @property
    def cell(self) -> str:
        """The id of the cell of both cases."""
        return self.b.split("/", 1)[1]


@dataclass(frozen=True)
class ModelRecord:
    """What a report says about a model. ``config`` is in plain JSON types."""

    weights_digest: str
    config: Mapping[str, Any]


@dataclass
class Surroundings:
    """What a report was measured with.

    ``environment`` is that of the main process (``shared/environment.py``) and ``workers`` holds that of each arm.
    ``settings`` are those of the sweep. ``others`` says how many processors other processes used in each cell.
    """

    environment: Mapping[str, Any]
    machine: MachineState = field(default_factory=MachineState)
    settings: Mapping[str, Any] = field(default_factory=dict[str, Any])
    workers: dict[str, Any] = field(default_factory=dict[str, Any])
    others: dict[str, float | None] = field(default_factory=dict[str, "float | None"])


@dataclass(frozen=True)
class Row:
    """A line of a table: a result, and its ratio to the baseline of its cell."""

    result: Result
    ratio: Ratio | None
    is_baseline: bool
    roofline_share: float | None


@dataclass(frozen=True)
class Table:
    """The results in a cell, and the baseline of their ratios: preferably an arm that did not fail.

    ``twin`` is the ratio of the baseline's twin to the baseline; None if it was not measured. With
    ``has_other_baselines``, some ratios are relative to a baseline that was replaced.
    """

    cell: Cell
    rows: list[Row]
    baseline: str | None
    twin: Ratio | None
    has_other_baselines: bool

    @property
    def unsteadiness(self) -> float:
        """How many times as long the baseline took in its slow rounds as in its fast ones; 1 if not known.

        Rounds are compared within a process, because two processes can differ on a steady machine too.
        """
        for row in self.rows:
            if row.is_baseline and len(row.result.rounds) > 1:
                medians = np.array([np.median(samples) for samples in row.result.rounds])
                processes = np.array(row.result.processes)
                for process in set(row.result.processes):
                    medians[processes == process] /= np.exp(np.log(medians[processes == process]).mean())
                fast, slow = np.percentile(medians, [10, 90])
                return float(slow / fast)
        return 1.0


@dataclass
class Report:
    """Everything that a benchmark found."""

    models: Mapping[str, ModelRecord]
    surroundings: Surroundings
    rooflines: Sequence[Roofline]
    results: Sequence[Result]
    comparisons: Sequence[Comparison]

    @property
    def noise_floor(self) -> float | None:
        """The largest difference between a baseline and its twin, as a share of 1; None if there was no twin."""
        return max((comparison.ratio.noise for comparison in self.comparisons if comparison.is_twin), default=None)

    @property
    def has_processes(self) -> bool:
        """Whether an arm had several processes."""
        return any(any(result.processes) for result in self.results)

    @property
    def diverged(self) -> list[Result]:
        """The results of arms that compute something other than the reference."""
        return [result for result in self.results if result.parity is not None and result.parity.verdict == "diverged"]

    @property
    def has_times(self) -> bool:
        """Whether any case was timed."""
        return any(result.status == "ok" and not result.case.is_twin for result in self.results)

    def roofline_of(self, cell: Cell) -> Roofline | None:
        """Return what the hardware reached in the dtype, on the device and with the threads of ``cell``."""
        where = (cell.dtype, cell.device, cell.threads)
        same = (roof for roof in self.rooflines if (roof.dtype, roof.device, roof.threads) == where)
        return next(same, None)

    def roofline_share(self, result: Result) -> float | None:
        """Return the share of the roofline that a result reaches; None if either is not known."""
        roof = self.roofline_of(result.case.cell)
        return roof.share(result.useful_gflops) if roof is not None else None

    def tables(self) -> list[Table]:
        """Return the table of each cell, without twins: the fastest by ratio first, and those without times last.

        A ratio to a baseline other than that of the table is left out.
        """
        cells = dict.fromkeys(result.case.cell for result in self.results if not result.case.is_twin)
        return [self._table(cell) for cell in cells]

    def _table(self, cell: Cell) -> Table:
        comparisons = [comparison for comparison in self.comparisons if comparison.cell == cell.id]
        failed = {result.case.id for result in self.results if result.status != "ok"}
        baseline = min((comparison.b for comparison in comparisons), key=lambda case: case in failed, default=None)
        ratios = {comparison.a: comparison.ratio for comparison in comparisons if comparison.b == baseline}
        rows = [
            Row(result, ratios.get(result.case.id), result.case.id == baseline, self.roofline_share(result))
            for result in self.results
            if result.case.cell == cell and not result.case.is_twin
        ]
        latencies = [row.result.latency_ms.p50 for row in rows if row.is_baseline and row.result.latency_ms is not None]
        baseline_ms = latencies[0] if latencies else 1.0
        arm = baseline.split("/")[0] if baseline else None
        return Table(
            cell,
            sorted(rows, key=lambda row: _position(row, baseline_ms)),
            arm,
            twin=ratios.get(Case(arm, cell, is_twin=True).id) if arm else None,
            has_other_baselines=any(comparison.b != baseline for comparison in comparisons),
        )


def _position(row: Row, baseline_ms: float) -> tuple[bool, float, int]:
    """Return a sort key: the ratio, which both arms' rounds determine together, or else the median alone."""
    order = list(ARMS).index(row.result.case.arm)
    latency = row.result.latency_ms
    if row.result.status != "ok" or latency is None:
        return True, 0.0, order
    return False, row.ratio.median if row.ratio else latency.p50 / baseline_ms, order
