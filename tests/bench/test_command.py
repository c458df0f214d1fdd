"""The command ``triglot bench``: what it refuses, how it is interrupted, and its exit codes."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from fake_arms import COMPILE_SECONDS

import triglot
from triglot.bench.machine import roofline
from triglot.bench.machine.roofline import Roofline
from triglot.bench.report import document
from triglot.bench.report.report import Report, Surroundings
from triglot.bench.run import arms, sweep
from triglot.bench.run.cases import Settings
from triglot.bench.run.pool import Workers
from triglot.commands import bench as bench_command
from triglot.commands import output
from triglot.commands.bench import JsonFile
from triglot.shared import console
from triglot.shared.environment import cores
from triglot.shared.model.recipes import recipe

SHORT = ("--batch", "2", "--length", "8", "--seconds", "0.1", "--rounds", "2")
EMPTY = Report({}, Surroundings({"packages": {}}), [], [], [])
pytestmark = pytest.mark.usefixtures("no_more_rounds")


@pytest.fixture
def faked(monkeypatch, fakes):
    """Fake workers, and no roofline."""
    no_roofline = Roofline("float32", "cpu", cores(), 2048, None, None, {})
    monkeypatch.setattr(roofline, "measure", lambda *_: no_roofline)
    monkeypatch.setattr(sweep, "WORKER", fakes)


UNWRITTEN = "triglot: bench.json was not written, because no group of arms was complete\n"


def interrupt(file, *, update):
    with file:
        if update:
            file.update(EMPTY)
        raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("is_resumed", "update", "named"), [(True, False, True), (False, False, False), (False, True, True)]
)
def test_ctrl_c_names_only_a_file_of_this_sweep(is_resumed, update, named, workplace, capsys):
    """A file that another run wrote may not be resumable."""
    Path("bench.json").write_text("{}")
    with pytest.raises(KeyboardInterrupt):
        interrupt(JsonFile(Path("bench.json"), is_resumed=is_resumed), update=update)
    message = capsys.readouterr().err
    assert ("bench.json has the results so far; continue with --resume" in message) == named
    assert (UNWRITTEN in message) == (not named)


def test_ctrl_c_names_no_file_if_there_is_none(capsys):
    with pytest.raises(KeyboardInterrupt):
        interrupt(JsonFile(None, is_resumed=False), update=False)
    assert not capsys.readouterr().err


def test_ctrl_c_right_after_the_file_was_replaced_names_it(workplace, capsys, monkeypatch):
    def interrupted_write(file, content, **options):
        output.write_json(file, content, **options)
        raise KeyboardInterrupt

    monkeypatch.setattr(bench_command, "write_json", interrupted_write)
    with pytest.raises(KeyboardInterrupt):
        interrupt(JsonFile(Path("bench.json"), is_resumed=False), update=True)
    assert "continue with --resume" in capsys.readouterr().err


# One process for each arm. Two rounds never give a narrow interval, and many more processes would be started.
SHORT_PROGRAM = """
from functools import partial
from triglot import cli, impls
from triglot.bench.run import rounds
from triglot.commands import bench

bench.Settings = partial(bench.Settings, processes=1)
rounds.MOST_EXTENDED = 1
impls.installed = lambda: ("torch",)  # measures the roofline in one framework only
cli.main()
"""


@pytest.mark.long
def test_ctrl_c_leaves_a_resumable_file_and_no_process(workplace):
    arguments = ("--arm", "triglot-torch-eager", *SHORT, "--batch", "4", "--json", "bench.json")
    process = subprocess.Popen(
        [sys.executable, "-P", "-c", SHORT_PROGRAM, "bench", "bert-base-tiny", *arguments],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    deadline = time.monotonic() + 120
    while not Path("bench.json").exists():
        assert process.poll() is None
        assert time.monotonic() < deadline, "nothing was written"
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "bert-base-tiny, forward, batch 2, length 8" in out
    assert "batch 4" not in out, "it was not timed"
    assert "continue with --resume" in err
    assert err.endswith("triglot: interrupted\n")
    report = document.read(Path("bench.json"))
    assert (report.rooflines[0].gflops or 0) > 1
    assert {(result.case.cell.batch, result.status) for result in report.results} == {(2, "ok")}
    listed = subprocess.run(["ps", "-o", "args=", "-A"], capture_output=True, text=True, check=True).stdout
    assert str(workplace) not in listed
    assert os.listdir() == ["bench.json"]


def test_ctrl_c_shows_the_rounds_of_the_group_that_it_ends(workplace, command, faked, monkeypatch):
    """They are only shown: a file that keeps them would be resumed without the other rounds."""
    sample, turns = Workers.sample, []

    def interrupted_sample(self, case, seconds):
        turns.append(case)
        if len(turns) > 25:
            raise KeyboardInterrupt
        return sample(self, case, seconds)

    monkeypatch.setattr(Workers, "sample", interrupted_sample)
    options = ("--arm", "fake-a", "--arm", "fake-b", *SHORT, "--rounds", "20", "--json", "bench.json")
    code, out, err = command("bench", "bert-base-tiny", *options)
    assert (code, err) == (130, f"{UNWRITTEN}triglot: interrupted\n")
    assert re.search(r"^fake-b +pass +\d+\.\d+ \(.*\)", out, re.MULTILINE), "eight rounds are enough for a ratio"
    assert re.search(r"^fake-a +pass +1 ", out, re.MULTILINE)
    assert not Path("bench.json").exists()


@pytest.mark.long
def test_ctrl_c_shows_the_rounds_before_a_new_process(workplace, command, faked, monkeypatch):
    monkeypatch.setattr(bench_command, "Settings", Settings)  # several processes
    monkeypatch.setattr(Workers, "restart", interrupt_now)
    options = ("--arm", "fake-a", "--arm", "fake-b", *SHORT, "--rounds", "40", "--json", "bench.json")
    code, out, err = command("bench", "bert-base-tiny", *options)
    assert (code, err) == (130, f"{UNWRITTEN}triglot: interrupted\n")
    assert re.search(r"^fake-b +pass +\d+\.\d+ \(.*\)", out, re.MULTILINE), "eight rounds are enough for a ratio"
    assert not Path("bench.json").exists()


def test_ctrl_c_before_the_first_round_shows_no_table(workplace, command, faked, monkeypatch):
    monkeypatch.setattr(Workers, "_warm_up", interrupt_now)
    code, out, err = command("bench", "bert-base-tiny", "--arm", "fake-a", *SHORT)
    assert (code, out, err) == (130, "", "triglot: interrupted\n")


def interrupt_now(*_):
    raise KeyboardInterrupt


def test_progress_is_shown_as_lines_where_there_is_no_terminal(workplace, command, faked, monkeypatch):
    monkeypatch.setattr(console, "LINE_SECONDS", 0)
    options = ("--arm", "fake-a", "--arm", "fake-b", "--order", "arrival", *SHORT)
    _, _, err = command("bench", "bert-base-tiny", *options)
    lines = err.splitlines()
    assert "bench of bert-base-tiny: 0 of 2 done: building fake-a" in lines
    shares = [int(line.removeprefix("bench of bert-base-tiny: ").split(" of 2 done")[0]) for line in lines]
    assert shares == sorted(shares)
    assert any(line.endswith("new shapes for fake-b") for line in lines)
    assert any(re.search(r"about \d+:\d\d left: round 2 of 2: fake-a, fake-a, fake-b", line) for line in lines)
    assert command("bench", "bert-base-tiny", *options, "--quiet") == (0, "", "")


def test_progress_lines_are_seconds_apart(monkeypatch, capsys):
    now = [0.0]
    monkeypatch.setattr(console, "monotonic", lambda: now[0])
    with console.progress("work", quiet=False, in_lines=True) as update:
        assert update is not None
        for second in range(100):
            now[0] = float(second)
            update(second / 10, 10, f"step {second}")
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 19
    assert lines[:2] == ["work: 0 of 10 done: step 5", "work: 1 of 10 done, about 1:30 left: step 10"]


def test_a_full_disk_does_not_hide_what_was_measured(command, faked):
    options = ("--quick", "--arm", "fake-a", "--batch", "2", "--length", "8", "--json", "/dev/full")
    code, out, err = command("bench", "bert-base-tiny", *options)
    assert code == 2
    assert "fake-a" in out
    assert err.startswith("triglot: cannot write /dev/full: No space left on device")


def test_a_quick_look_says_what_it_leaves_out(workplace, command, faked, monkeypatch):
    monkeypatch.setattr(roofline, "measure", lambda *_: pytest.fail("no roofline is needed"))
    options = ("--quick", "--arm", "fake-a", "--arm", "fake-b", "--batch", "2", "--length", "8")
    code, out, err = command("bench", "bert-base-tiny", *options, "--json", "bench.json", "--markdown", "bench.md")
    assert (code, err) == (0, "")
    for text in (out, Path("bench.md").read_text()):
        assert re.search(r"A quick look.*Not timed: \d+ arms \(triglot-torch-eager, .*the twin.*the roofline", text)
    content = json.loads(Path("bench.json").read_text())
    assert content["environment"]["settings"]["quick"]
    assert [len(case["round_lengths"]) for case in content["cases"]] == [8, 8], "no twin, and no more rounds"


@pytest.mark.parametrize(
    ("model", "workload", "dtype", "mode"),
    [
        ("minilm", "forward", "float32", "compiled"),
        ("minilm", "forward", "float64", "jit"),
        ("minilm", "forward+backward", "float32", "jit"),
        ("minilm", "training", "float32", "jit"),
        ("minilm", "embed", "float32", "compiled"),
        ("translation", "forward", "float32", "jit"),
        ("translation", "generation", "float32", "jit"),
    ],
)
def test_a_quick_look_times_arms_that_do_the_work(model, workload, dtype, mode):
    """The baseline, and an arm of each framework. ``mode`` is that of JAX's arm."""
    names = arms.quick_arms([recipe(model)], workload, [dtype], "cpu")
    assert names[:1] == ["triglot-torch-eager"]
    assert f"triglot-jax-{mode}" in names
    assert all(arms.ARMS[name].builder_of(workload) for name in names)
    own = [name for name in names if not arms.ARMS[name].peer]
    assert [arms.ARMS[name].framework for name in own] == ["torch", "torch", "paddle", "jax"]
    assert [arms.ARMS[name].why_unsupported(recipe(model), workload, dtype, "cpu") for name in own] == [None] * 4


def test_a_quick_look_takes_the_mode_that_does_more_of_the_work():
    """On a CPU, Paddle has bfloat16 only in ``compiled``. JAX has float16 only in ``jit``, and bfloat16 in both."""
    names = arms.quick_arms([recipe("minilm")], "forward", ["bfloat16", "float16"], "cpu")
    assert {"triglot-paddle-compiled", "triglot-jax-jit"} <= {*names}


def test_a_result_is_shown_without_measuring(workplace, command, faked, monkeypatch):
    options = ("--arm", "fake-a", "--arm", "fake-b", *SHORT)
    written = ("--json", "bench.json", "--markdown", "then.md", "--html", "then.html")
    _, then, _ = command("bench", "bert-base-tiny", *options, *written)
    monkeypatch.setattr(sweep, "Sweep", lambda *_, **__: pytest.fail("nothing should be measured"))
    code, out, err = command("bench", "--show", "bench.json", "--markdown", "now.md", "--html", "now.html")
    assert (code, out, err) == (0, then, "")
    for kind in ("md", "html"):
        assert Path(f"now.{kind}").read_text() == Path(f"then.{kind}").read_text()
    code, out, err = command("bench", "--show", "bench.json", "--compare", "bench.json")
    assert (code, err, out.count("  same")) == (0, "", 2)


def test_new_shapes_are_timed_apart(workplace, command, faked):
    """An arm that compiles for each shape is fast only on those that it has seen."""
    options = ("--arm", "fake-a", "--arm", "fake-slow-compiler", "--batch", "4", "--length", "36", *SHORT[4:])
    code, out, err = command("bench", "bert-base-tiny", "--order", "arrival", *options, "--json", "bench.json")
    assert (code, err) == (0, "")
    assert "ms, new shapes" in out
    report = document.read(Path("bench.json"))
    for result in report.results:
        assert result.latency_ms is not None
        if result.case.is_twin:
            assert result.new_shapes_ms is None
        elif result.case.arm == "fake-slow-compiler":
            assert (result.new_shapes_ms or 0) > 1000 * COMPILE_SECONDS > result.latency_ms.p50
        else:
            assert 0 < (result.new_shapes_ms or 0) < 1000 * COMPILE_SECONDS


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--show", "bench.json", "minilm"), "MODEL has no effect; leave it out"),
        (("--show", "bench.json", "--batch", "4"), "--batch has no effect; leave it out"),
        (("--show", "bench.json", "--json", "now.json"), "--json has no effect; leave it out"),
        (("--show", "nothing.json"), "nothing.json: No such file"),
        (("--show", "bench.json", "--markdown", "bench.json"), "bench.json: it is also an input"),
        ((), "MODEL is missing; name a recipe"),
    ],
)
def test_what_cannot_be_shown_is_refused(arguments, words, workplace, command):
    Path("bench.json").write_text(json.dumps(document.to_json(EMPTY)))
    code, out, err = command("bench", *arguments)
    assert (code, out) == (2, "")
    assert re.search(words, err), err


def test_a_sweep_that_times_nothing_fails(workplace, command, monkeypatch):
    monkeypatch.setattr(roofline, "measure", lambda *_: pytest.fail("no roofline is needed"))
    code, out, err = command("bench", "bert-base-tiny", "--arm", "nnx", "--workload", "generation")
    assert (code, "skipped" in out) == (2, True)
    assert re.match("triglot: nothing was timed; nnx: .*does not generate", err)


def test_a_reason_is_given_once_for_all_arms(workplace, command):
    code, out, err = command("bench", "bert-base-tiny", "--workload", "generation")
    assert (code, out.count("does not generate"), out.count("openvino")) == (2, 1, 1)
    able = [name for name, arm in arms.ARMS.items() if arm.builder_of("generation")]
    arms_in_words = f"{', '.join(able[:3])} and {len(able) - 3} more"
    assert err == f"triglot: nothing was timed; {arms_in_words}: a model of kind encoder does not generate\n"


def test_a_reason_names_up_to_three_arms(workplace, command):
    peers = [word for name in ("nnx", "torch-nn", "openvino") for word in ("--arm", name)]
    err = command("bench", "bert-base-tiny", "--workload", "generation", *peers, "--quiet")[2]
    assert err.startswith("triglot: nothing was timed; torch-nn, nnx, openvino: a model"), err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--arm", "caffe"), "arm 'caffe'.*expected"),
        (("--length", "1000"), "length is 1000.*up to 37"),
        (("--fill", "0.01"), "fill is 0.01.*8 x 37 tokens.*raise"),
        (("--threads", "10000"), "--threads is 10000.*expected up to"),
        (("--seconds", "inf"), "Invalid value for '--seconds'"),
        (("--fill", "nan"), "fill is nan.*expected a share"),
        (("--fill", "1", "--fill", "nan"), "fill is nan.*expected a share"),
        (("--fill", "2"), "fill is 2.*expected a share"),
        (("--fill", "0"), "fill is 0.*expected a share"),
        (("--fill", "0.5", "--order", "sorted"), "--fill applies only to --order padded"),
        (("--rounds", "1000000000"), "Invalid value for '--rounds'"),
        (("--memory-limit", "99999999999999999999"), "Invalid value for '--memory-limit'"),
        (("--html", "-"), "only JSON.*name a file"),
        (("--markdown", "-"), "only JSON.*name a file"),
        (("--json", "b.json", "--markdown", "b.json"), "b.json.*twice"),
        (("--resume",), "--resume continues the report in the --json file"),
        (("--compare", "nothing.json"), "nothing.json: No such file.*name a file"),
        (("--compare", "text.json"), "text.json: it is not JSON"),
        (("--compare", "damaged.json"), "damaged.json is not a valid report"),
        (("--json", "damaged.json", "--resume"), "damaged.json is not a valid report"),
        (("--mode", "eager", "--arm", "onnxruntime"), "no arm is eager and onnxruntime.*triglot-torch-eager"),
    ],
)
def test_impossible_requests_are_refused_in_one_line(arguments, words, workplace, command):
    Path("text.json").write_text("no")
    Path("damaged.json").write_text(json.dumps({"schema": document.SCHEMA, "cases": [{}]}))
    code, out, err = command("bench", "bert-base-tiny", *arguments)
    assert (code, out) == (2, "")
    assert re.match(f"triglot: .*{words}", err), err
    assert err.count("\n") == 1


def test_memory_limit_is_refused_where_it_has_no_effect(workplace, command, monkeypatch):
    monkeypatch.setattr(sys, "platform", "darwin")
    code, _, err = command("bench", "bert-base-tiny", "--memory-limit", "1000")
    assert code == 2
    assert "--memory-limit is only supported on Linux" in err


@pytest.mark.long
def test_a_cell_that_does_not_fit_is_a_skipped_row(workplace, command, faked):
    options = ("--arm", "fake-a", *SHORT, "--batch", "1", "--fill", "0.6")
    code, out, _ = command("bench", "bert-base-tiny", *options, "--json", "bench.json", "--markdown", "bench.md")
    assert code == 0
    unfit, fit = json.loads(Path("bench.json").read_text())["cases"][:2]
    assert (unfit["batch"], unfit["status"], fit["batch"], fit["status"]) == (1, "skipped", 2, "ok")
    assert "fill is 0.6" in unfit["failure"]
    assert "fake-a skipped: fill is 0.6" in out
    # Empty columns are not shown.
    _, first, second = Path("bench.md").read_text().split("| arm |")
    assert "ms" not in first.splitlines()[0]
    assert "| ms per batch | tokens/s |" in second.splitlines()[0]
    assert "of roofline" not in second


@pytest.mark.long
def test_weights_that_do_not_fit_a_dtype_are_a_skipped_row(workplace, command, make_checkpoint, faked):
    """The sweep continues with the next dtype and the next model."""
    checkpoint = make_checkpoint("bert-base-tiny")
    checkpoint.tensors["embeddings.token.weight"][1, 2] = 7e4
    triglot.save(checkpoint, "large.npz")
    options = ("--arm", "fake-a", *SHORT, "--dtype", "float16", "--dtype", "float32", "--json", "bench.json")
    assert command("bench", "large.npz", "bert-base-tiny", *options)[0] == 0
    cases = [case for case in json.loads(Path("bench.json").read_text())["cases"] if "*" not in case["id"]]
    by_cell = {(case["model"], case["dtype"]): case for case in cases}
    assert by_cell["large.npz", "float16"]["status"] == "skipped"
    assert re.search("embeddings.token.weight.*float16", by_cell["large.npz", "float16"]["failure"])
    assert by_cell["large.npz", "float32"]["status"] == "ok"
    assert by_cell["bert-base-tiny", "float32"]["status"] == "ok"
