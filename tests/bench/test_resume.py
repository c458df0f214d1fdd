"""``--resume``: nothing that was measured is lost, and whatever failed or lacks a ratio is timed again."""

import json
import os
import signal
from pathlib import Path

import pytest

from triglot.bench.machine import roofline
from triglot.bench.machine.roofline import Roofline
from triglot.bench.report import document
from triglot.bench.run import resume
from triglot.bench.run import sweep as sweep_module
from triglot.bench.run.pool import Workers
from triglot.bench.run.work import BenchedModel
from triglot.shared.checkpoint import Checkpoint
from triglot.shared.environment import cores
from triglot.shared.errors import OutputError
from triglot.shared.model.initializers import initialize
from triglot.shared.model.recipes import recipe

OPTIONS = ("--batch", "2", "--length", "8", "--seconds", "0.1", "--rounds", "2", "--json", "bench.json", "--quiet")
BENCH = ("bench", "bert-base-tiny", *OPTIONS)


@pytest.fixture(autouse=True)
def _quick(monkeypatch, fakes):
    """Fake workers, a fixed roofline, and no extra rounds."""
    monkeypatch.setattr(roofline, "measure", lambda *_: roofline_of(300.0))
    monkeypatch.setattr(sweep_module, "WORKER", fakes)


def roofline_of(gflops):
    return Roofline("float32", "cpu", cores(), 2048, gflops, 3.0, {})


def options_for(*arms):
    return [part for arm in arms for part in ("--arm", arm)]


def written():
    """The JSON of the report, which must also be readable."""
    document.read(Path("bench.json"))
    return json.loads(Path("bench.json").read_text())


def rewrite(**changes):
    Path("bench.json").write_text(json.dumps({**written(), **changes}))


def rows():
    tables = document.read(Path("bench.json")).tables()
    return {row.result.case.arm: row for table in tables for row in table.rows}


def baselines():
    """The baseline of each arm that has a ratio."""
    return {ratio["a"].split("/")[0]: ratio["b"].split("/")[0] for ratio in written()["ratios"]}


def kill_in_turn(monkeypatch, arm, *, group=1):
    """Kill the first worker of an arm in its turn, in the group with this number."""
    sample, take_turns, groups = Workers.sample, sweep_module.take_turns, []

    def killing_sample(self, case, seconds):
        if case.arm == arm and not case.is_twin and len(groups) == group and case in self._alive:
            os.kill(self._alive[case]._process.pid, signal.SIGSEGV)
        return sample(self, case, seconds)

    def counting_turns(*arguments):
        groups.append(1)
        return take_turns(*arguments)

    monkeypatch.setattr(Workers, "sample", killing_sample)
    monkeypatch.setattr(sweep_module, "take_turns", counting_turns)


@pytest.mark.long
@pytest.mark.parametrize("others", [["fake-b"], ["fake-b", "fake-d"]])
def test_a_dead_baseline_is_timed_beside_the_others(others, workplace, command, monkeypatch):
    """The others are compared with each other. A single one becomes the baseline."""
    arms = options_for("fake-a", *others)
    with monkeypatch.context() as patched:
        kill_in_turn(patched, "fake-a")
        assert command(*BENCH, *arms) == (0, "", "")
    assert [case["status"] for case in written()["cases"]].count("failed") == 1
    assert baselines() == dict.fromkeys(others[1:], others[0])
    assert written()["noise_floor"] is None
    assert command(*BENCH, *arms, "--resume") == (0, "", "")
    assert rows()[others[0]].is_baseline
    assert all(row.ratio for arm, row in rows().items() if arm != others[0])
    assert [ratio["a"].split("/")[0] for ratio in written()["ratios"] if ratio.get("again")] == [f"{others[0]}*"]


def test_results_from_other_environment_variables_are_not_reused(workplace, command, monkeypatch):
    def measure(switch, *options):
        monkeypatch.setenv("NVIDIA_TF32_OVERRIDE", switch)
        monkeypatch.setattr(roofline, "measure", lambda *_: roofline_of(300.0 if switch == "0" else 200.0))
        assert command(*BENCH, *options_for("fake-a"), "--markdown", "bench.md", *options) == (0, "", "")
        assert written()["environment"]["variables"]["NVIDIA_TF32_OVERRIDE"] == switch
        assert f"NVIDIA_TF32_OVERRIDE={switch}" in Path("bench.md").read_text()
        return [case["samples_ms"] for case in written()["cases"]]

    first = measure("0")
    assert measure("0", "--resume") == first
    assert [each["gflops"] for each in written()["roofline"]] == [300.0]
    second = measure("1", "--resume")
    assert all(new != old for new, old in zip(second, first, strict=True))
    assert [each["gflops"] for each in written()["roofline"]] == [200.0]


@pytest.mark.long
@pytest.mark.parametrize("group", [1, 2])
def test_the_successor_of_a_baseline_stays_the_baseline(group, workplace, command, monkeypatch):
    """The baseline dies in the first group, or in the second. All later arms are compared with its successor."""
    arms = [f"fake-{name}" for name in "abcde"]
    with monkeypatch.context() as patched:
        kill_in_turn(patched, arms[0], group=group)
        patched.setattr(sweep_module, "group_size", lambda *_: 2)
        assert command(*BENCH, *options_for(*arms)) == (0, "", "")
    earlier = {f"{arms[0]}*": arms[0], arms[1]: arms[0]} if group == 2 else {}
    later = arms[3:] if group == 2 else arms[2:]
    successor = arms[2] if group == 2 else arms[1]
    before = {**earlier, **dict.fromkeys(later, successor), f"{successor}*": successor}
    assert baselines() == before
    assert command(*BENCH, *options_for(successor), "--resume") == (0, "", "")
    assert baselines() == before, "arms that are not asked for keep their ratios"
    assert command(*BENCH, *options_for(*arms), "--resume") == (0, "", "")
    assert [arm for arm, row in rows().items() if not row.ratio] == [successor]


@pytest.mark.long
def test_arms_without_a_ratio_are_timed_again(workplace, command):
    """A baseline that dies too late leaves such arms. A single arm needs no ratio."""
    assert command(*BENCH, *options_for("fake-b")) == (0, "", "")
    first = written()
    assert command(*BENCH, *options_for("fake-b"), "--resume") == (0, "", "")
    assert written()["cases"] == first["cases"]
    others = dict.fromkeys(first["environment"]["others"], 1.9)
    rewrite(environment={**first["environment"], "others": others})
    arms = options_for("fake-b", "fake-d")
    assert command(*BENCH, *arms, "--resume") == (0, "", "")
    assert written()["environment"]["others"] == others, "the machine was busy when the first arm was timed"
    rewrite(ratios=[])
    assert command(*BENCH, *arms, "--resume") == (0, "", "")
    assert baselines() == {"fake-b*": "fake-b", "fake-d": "fake-b"}


def test_cells_of_sentences_can_be_resumed(workplace, command):
    """With another order, and with another arm against the same baseline."""
    assert command(*BENCH, *options_for("fake-a"), "--order", "sorted") == (0, "", "")
    (case,) = [case for case in written()["cases"] if "*" not in case["id"]]
    assert 0.5 < case["fill"] < 1
    assert command(*BENCH, *options_for("fake-a"), "--order", "arrival", "--resume") == (0, "", "")
    assert command(*BENCH, *options_for("fake-b"), "--order", "sorted", "--resume") == (0, "", "")
    cases = {case["id"]: case for case in written()["cases"]}
    assert cases[case["id"]] == case
    assert {case["order"] for case in cases.values()} == {"sorted", "arrival"}
    (ratio,) = [ratio for ratio in written()["ratios"] if ratio["a"].startswith("fake-b")]
    assert ratio["b"] == case["id"]


@pytest.mark.long
def test_failures_stay_unless_they_are_asked_for_again(workplace, command):
    """Otherwise a wrong arm would be forgotten, and the exit code with it."""
    assert command(*BENCH, *options_for("fake-a", "fake-inaccurate"))[0] == 1
    assert command(*BENCH, *options_for("fake-b"), "--resume")[0] == 1
    statuses = {case["arm"]: case["status"] for case in written()["cases"] if "*" not in case["id"]}
    assert statuses == {"fake-a": "ok", "fake-inaccurate": "failed", "fake-b": "ok"}
    Path("old.json").write_bytes(Path("bench.json").read_bytes())
    code, _, err = command(*BENCH, *options_for("fake-inaccurate"), "--resume", "--compare", "old.json")
    assert (code, err.count("\n")) == (1, 1)
    assert err.startswith("triglot: diverged: fake-inaccurate/")
    assert [case["arm"] for case in written()["cases"]].count("fake-inaccurate") == 1


def test_an_interrupted_resumption_keeps_the_results_of_later_cells(workplace, command, monkeypatch):
    sizes = ("--batch", "3", *BENCH[1:])  # smaller batches come first
    assert command("bench", *sizes, *options_for("fake-a")) == (0, "", "")
    first = {case["id"]: case for case in written()["cases"]}
    assert {case["batch"] for case in first.values()} == {2, 3}
    start = Workers.start

    def start_in_first_cell(self, case):
        if case.cell.batch == 3:
            raise KeyboardInterrupt
        return start(self, case)

    monkeypatch.setattr(Workers, "start", start_in_first_cell)
    assert command("bench", *sizes, *options_for("fake-a", "fake-b"), "--resume")[0] == 130
    now = {case["id"]: case for case in written()["cases"]}
    assert first.items() < now.items()
    assert [case["arm"] for name, case in now.items() if name not in first] == ["fake-b"]


@pytest.mark.long
def test_a_cell_that_could_not_be_prepared_is_tried_again(workplace, command, monkeypatch):
    """For example, because the disk was full. What was timed before stays."""

    def fail(*_):
        raise OutputError("no space left")

    assert command(*BENCH, *options_for("fake-a")) == (0, "", "")
    first = written()["cases"]
    with monkeypatch.context() as patched:
        patched.setattr(sweep_module, "Work", fail)
        assert command(*BENCH, *options_for("fake-a", "fake-b"), "--resume") == (0, "", "")
    *others, skipped = written()["cases"]
    assert others == first
    assert (skipped["status"], skipped["failure"]) == ("skipped", "no space left")
    assert command(*BENCH, *options_for("fake-a", "fake-b"), "--resume") == (0, "", "")
    assert [case["status"] for case in written()["cases"]] == ["ok"] * 3


@pytest.mark.long
def test_limits_may_change_before_resuming(workplace, command):
    """Otherwise a case that took too long, or too much memory, could not have another try."""
    assert command(*BENCH, *options_for("fake-a"), "--time-limit", "100") == (0, "", "")
    first = {case["id"]: case for case in written()["cases"]}
    limits = ("--time-limit", "200", "--memory-limit", "4000")
    assert command(*BENCH, *options_for("fake-a", "fake-b"), *limits, "--resume") == (0, "", "")
    assert first.items() <= {case["id"]: case for case in written()["cases"]}.items()
    code, _, err = command(*BENCH, *options_for("fake-a"), "--rounds", "3", "--resume")
    assert code == 2
    assert "rounds 2, not 3" in err


@pytest.mark.long
def test_results_that_are_not_asked_for_stay(workplace, command, monkeypatch):
    assert command(*BENCH, *options_for("fake-a")) == (0, "", "")
    first = written()
    assert command(*BENCH, *options_for("fake-b"), "--resume") == (0, "", "")
    second = written()
    assert {case["arm"] for case in second["cases"]} == {"fake-a", "fake-b"}
    assert [case for case in second["cases"] if case["arm"] == "fake-a"] == first["cases"]
    assert second["noise_floor"] == first["noise_floor"] > 0
    assert baselines()["fake-b"] == "fake-a"
    monkeypatch.setattr(resume, "hash_of_code", lambda _: "other")
    code, _, err = command(*BENCH, *options_for("fake-a"), "--resume")
    assert code == 2
    assert "not asked for and was measured with different code" in err
    assert written() == second


def test_the_digest_of_a_model_depends_on_its_weights_and_its_tokenizer(tmp_path):
    """With another tokenizer, the sentences have other tokens."""
    config, tokenizer = recipe("bert-base-tiny"), tmp_path / "tokenizer.json"
    digests: list[str] = []
    for seed, content in ((0, None), (0, "{}"), (0, "[]"), (1, "[]")):
        if content is not None:
            tokenizer.write_text(content)
        checkpoint = Checkpoint(config, initialize(config, seed))
        model = BenchedModel("model", checkpoint, None if content is None else tokenizer)
        assert model.digest() == model.digest()
        digests.append(model.digest())
    assert len(set(digests)) == len(digests)


def test_a_report_with_other_settings_or_models_is_refused(workplace, command):
    assert command(*BENCH, *options_for("fake-a")) == (0, "", "")
    code, _, err = command(*BENCH, *options_for("fake-a"), "--seed", "1", "--resume")
    assert code == 2
    assert "seed 0, not 1" in err
    code, _, err = command("bench", "minilm-tiny", *OPTIONS, *options_for("fake-a"), "--resume")
    assert code == 2
    assert "bert-base-tiny, which is not asked for" in err


@pytest.mark.parametrize(
    ("model", "arm", "code", "error"),
    [
        ("translation-tiny", "nnx", 2, "nothing was timed; nnx: computes only BERT-like"),
        ("dygraph-tiny", "fake-a", 0, ""),
    ],
)
def test_sentences_are_described_even_if_no_arm_can_read_them(model, arm, code, error, workplace, command):
    """A model without a vocabulary gets as many random vectors as there are words."""
    options = ("--arm", arm, "--order", "sorted", *OPTIONS[:-1], "--html", "page.html")
    exit_code, out, err = command("bench", model, *options)
    assert exit_code == code
    assert error in err
    assert "8 batches of 2 sentences, sorted by length, up to 8 tokens" in out
    assert "sorted by length" in Path("page.html").read_text()
