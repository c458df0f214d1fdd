"""The rounds: who takes part, in which ones, and which rounds a ratio comes from."""

import itertools
from dataclasses import replace

import pytest

from triglot.bench.report.statistics import Ratio
from triglot.bench.run import rounds
from triglot.bench.run.cases import Settings
from triglot.bench.run.pool import Workers
from triglot.bench.run.rounds import ExtraTime
from triglot.shared.worker import Worker


def test_a_cell_with_few_arms_has_more_extra_time(monkeypatch):
    """What remains of 240 seconds at the pace so far."""
    now = [0.0]
    monkeypatch.setattr(rounds, "monotonic", lambda: now[0])
    time = ExtraTime()
    now[0] = 40.0
    assert time.share_of_group(started=2, remaining=0, groups=1) == 200
    assert time.share_of_group(started=4, remaining=6, groups=2) == 70
    assert time.share_of_group(started=4, remaining=20, groups=3) == 0


def test_a_slow_arm_has_fewer_rounds():
    """As many calls as fit into the requested seconds, and at least six."""
    settings = Settings(seconds=3, rounds=48)
    assert [rounds.planned_rounds(call, settings) for call in (0, 1 / 16, 0.07, 0.35, 10)] == [48, 48, 43, 9, 6]
    assert rounds.planned_rounds(10, replace(settings, rounds=2)) == 2


@pytest.mark.parametrize(("wanted", "planned"), [(1, 1), (6, 6), (6, 10), (6, 48), (47, 48)])
def test_the_rounds_of_a_slow_arm_are_spread_evenly(wanted, planned):
    numbers = [number for number in range(planned) if rounds.takes_part(number, wanted, planned)]
    assert len(numbers) == wanted
    gaps = [after - before for before, after in itertools.pairwise(numbers)]
    assert not gaps or max(gaps) - min(gaps) <= 1


@pytest.mark.long
def test_rounds_are_spread_over_processes(swept, monkeypatch):
    """Each process is warmed up. Only the outputs of the first are judged."""
    judged, warmed, compared = [], [], []
    send, warm_up, paired_ratio = Worker.send, Workers._warm_up, rounds.paired_ratio

    def sent(self, kind, request):
        if kind == "build":
            judged.append(request["outputs"] is not None)
        send(self, kind, request)

    def compare(numerator, denominator, process_of_round):
        compared.append([process_of_round(number) for number in range(8)])
        return paired_ratio(numerator, denominator, process_of_round)

    monkeypatch.setattr(Worker, "send", sent)
    monkeypatch.setattr(Workers, "_warm_up", lambda self, case: (warmed.append(case), warm_up(self, case))[1])
    monkeypatch.setattr(rounds, "paired_ratio", compare)
    _, results = swept(["fake-a", "fake-b"], rounds=8, processes=4)
    for result in results.values():
        assert result.processes == [0, 0, 1, 1, 2, 2, 3, 3]
    assert sorted(judged) == [False] * 9 + [True] * 3, "four processes of the baseline, its twin and fake-b"
    assert len(warmed) == 12
    assert compared == 4 * [[0, 0, 1, 1, 2, 2, 3, 3]], "two ratios, after the planned rounds and at the end"
    assert rounds.process_of_round(11, 8, 4) == 5, "rounds beyond the planned ones have further processes"


@pytest.mark.long(dying="fake-b")
@pytest.mark.parametrize(("dying", "baseline"), [("fake-a", "fake-b"), ("fake-b", "fake-a")])
def test_an_arm_that_dies_in_a_later_process_fails(dying, baseline, swept, monkeypatch):
    """Whether it is the baseline or not."""
    launch = Workers._launch

    def launched(self, case, folder, outputs):
        dies = outputs is None and case.arm == dying
        return launch(self, replace(case, arm="fake-crash") if dies else case, folder, outputs)

    monkeypatch.setattr(Workers, "_launch", launched)
    sweep, results = swept(["fake-a", "fake-b", "fake-c"], again=False, rounds=4, processes=2)
    failed = results.pop(dying)
    assert (failed.status, failed.latency_ms) == ("failed", None)
    assert "died by signal SIGSEGV" in failed.failure
    assert [result.processes for result in results.values()] == [[0, 0, 1, 1]] * 2
    (comparison,) = sweep.comparisons
    assert (comparison.a.split("/")[0], comparison.b.split("/")[0]) == ("fake-c", baseline)


def test_a_ratio_comes_only_from_shared_rounds(swept, monkeypatch):
    monkeypatch.setattr(Workers, "call_seconds", lambda _, case: 0.01 if case.arm == "fake-a" else 0.1)
    samples = {"fake-a": iter(range(1, 13)), "fake-b": iter((6, 12, 18, 24, 30, 36))}

    def sample(self, case, seconds):
        self.result(case).rounds.append([float(next(samples[case.arm]))])
        return self.result(case).rounds[-1]

    monkeypatch.setattr(Workers, "sample", sample)
    sweep, results = swept(list(samples), again=False, rounds=12, seconds=0.2)
    assert [len(result.rounds) for result in results.values()] == [12, 6]
    (comparison,) = sweep.comparisons
    assert comparison.ratio.median == pytest.approx(3.0)
    interval = (comparison.ratio.low, comparison.ratio.high)
    assert interval == pytest.approx((3 / 1.018, 3 * 1.018), rel=1e-3), "no round deviates"


@pytest.mark.long
@pytest.mark.parametrize(("dies_at", "shared_rounds"), [(5, {"fake-b": 6, "fake-c": 7}), (47, {})])
def test_a_late_baseline_has_ratios_only_from_enough_rounds(dies_at, shared_rounds, swept, monkeypatch):
    """Two slow arms share few rounds. The arm with most turns becomes the baseline."""
    calls = {"fake-a": 0.01, "fake-b": 0.3, "fake-c": 0.22, "fake-d": 0.1}
    monkeypatch.setattr(Workers, "call_seconds", lambda _, case: calls[case.arm])
    turns = dict.fromkeys(calls, 0)

    def sample(self, case, seconds):
        turns[case.arm] += 1
        if case.arm == "fake-a" and turns[case.arm] == dies_at:
            self.result(case).status = "failed"
            self.close([case])
            return None
        self.result(case).rounds.append([calls[case.arm]])
        return self.result(case).rounds[-1]

    lengths = []

    def paired_ratio(numerator, denominator, _):
        lengths.append(len(numerator.keys() & denominator.keys()))
        return Ratio(1.0, 0.9, 1.1)

    monkeypatch.setattr(rounds, "paired_ratio", paired_ratio)
    monkeypatch.setattr(Workers, "sample", sample)
    sweep, _ = swept(list(calls), again=False, rounds=48, seconds=1.5)
    baselines = {comparison.a.split("/")[0]: comparison.b.split("/")[0] for comparison in sweep.comparisons}
    assert baselines == dict.fromkeys(shared_rounds, "fake-d")
    assert lengths == 2 * list(shared_rounds.values()), "after the planned rounds, and at the end"
