"""``triglot bench`` when it is asked for what cannot be, or is interrupted: one line, and nothing lost."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import triglot
from triglot.bench.machine import roofline
from triglot.bench.report import comparison
from triglot.bench.run import benchmark
from triglot.commands import bench as commands_bench
from triglot.commands import output
from triglot.commands.bench import Kept
from triglot.shared.environment import cores

ROOT = Path(__file__).parents[2]
SHORT = ("--batch", "2", "--length", "8", "--seconds", "0.1", "--rounds", "2")
pytestmark = pytest.mark.usefixtures("no_more_rounds")
NO_ROOFLINE = {"dtype": "float32", "device": "cpu", "threads": cores(), "gflops": None, "copy_gb_per_s": None}
NO_ROOFLINE["frameworks"] = {}


def test_ctrl_c_names_no_file_that_was_there_before(workplace, capsys):
    """It has what another run measured, and --resume may refuse it."""
    Path("bench.json").write_text("{}")
    for there, told in ((True, "triglot: bench.json has what was timed; go on with --resume\n"), (False, "")):
        with pytest.raises(KeyboardInterrupt), Kept(Path("bench.json"), there=there):
            raise KeyboardInterrupt
        assert capsys.readouterr().err == told
    kept = Kept(Path("bench.json"), there=False)
    kept.write({})
    with pytest.raises(KeyboardInterrupt), kept:
        raise KeyboardInterrupt
    assert capsys.readouterr().err.startswith("triglot: bench.json has what was timed")


def test_ctrl_c_just_after_the_file_is_written_names_it(workplace, capsys, monkeypatch):
    def interrupted(file, content, **options):
        output.write_json(file, content, **options)
        raise KeyboardInterrupt

    monkeypatch.setattr(commands_bench, "write_json", interrupted)
    with pytest.raises(KeyboardInterrupt), Kept(Path("bench.json"), there=False) as kept:
        kept.write({})
    assert capsys.readouterr().err == "triglot: bench.json has what was timed; go on with --resume\n"


def test_ctrl_c_leaves_a_file_to_go_on_with_and_no_process(workplace):
    chosen = ("--arm", "triglot-torch-eager", "--arm", "triglot-paddle-eager", *SHORT, "--batch", "4")
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "triglot", "bench", "bert-base-tiny", *chosen, "--json", "bench.json"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    deadline = time.monotonic() + 120
    while not Path("bench.json").exists():
        assert process.poll() is None
        assert time.monotonic() < deadline, "nothing was written"
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    told = "triglot: bench.json has what was timed; go on with --resume\ntriglot: interrupted\n"
    assert (process.returncode, out, err) == (130, "", told)
    found = comparison.read(Path("bench.json"))
    assert found["roofline"][0]["gflops"] > 1
    assert {(case["batch"], case["arm"]) for case in found["cases"] if case["status"] == "ok"} == {
        (2, "triglot-torch-eager"),
        (2, "triglot-paddle-eager"),
    }
    listed = subprocess.run(["ps", "-o", "args=", "-A"], capture_output=True, text=True, check=True).stdout
    assert str(workplace) not in listed
    assert os.listdir() == ["bench.json"]


def test_a_sweep_in_which_nothing_was_timed_is_no_success(workplace, command, monkeypatch):
    monkeypatch.setattr(roofline, "measure", lambda *_: pytest.fail("there is nothing to measure it for"))
    code, out, err = command("bench", "bert-base-tiny", "--arm", "nnx", "--workload", "generation")
    assert (code, "skipped" in out) == (2, True)
    assert err == "triglot: nothing was timed; nnx: an encoder does not generate\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--arm", "caffe"), "unknown arm 'caffe'; expected one of"),
        (("--length", "1000"), "length 1000 is over the maximum 37 of the model; cut it"),
        (
            ("--fill", "0.01"),
            "fill 0.01 leaves too few of 8 x 37 tokens: one row has to be whole, and each has one; raise the fill, or",
        ),
        (("--threads", "10000"), "--threads 10000 is over the"),
        (("--seconds", "inf"), "Invalid value for '--seconds'"),
        (("--fill", "nan"), "fill nan is no share; expected more than 0, up to 1"),
        (("--fill", "1", "--fill", "nan"), "fill nan is no share; expected more than 0, up to 1"),
        (("--fill", "2"), "fill 2 is no share; expected more than 0, up to 1"),
        (("--rounds", "1000000000"), "Invalid value for '--rounds'"),
        (("--memory-limit", "99999999999999999999"), "Invalid value for '--memory-limit'"),
        (("--html", "-"), "only JSON can be printed (-); name a file"),
        (("--markdown", "-"), "only JSON can be printed (-); name a file"),
        (("--fill", "0"), "fill 0 is no share; expected more than 0, up to 1"),
        (("--fill", "0.5", "--order", "sorted"), "--fill is for --order padded: sentences are as long as they are"),
        (("--resume",), "--resume completes the file of --json; name a file"),
        (("--compare", "nothing.json"), "cannot read nothing.json: No such file or directory; give a file that"),
        (("--compare", "text.json"), "cannot read text.json: it is no JSON"),
        (("--compare", "list.json"), "list.json is no triglot.bench/1"),
        (("--compare", "part.json"), "part.json lacks a part, or has a wrong one"),
        (("--compare", "floor.json"), "floor.json lacks a part, or has a wrong one: no 'noise_floor'; make it anew"),
        (
            ("--compare", "twice.json"),
            "twice.json lacks a part, or has a wrong one: triglot-torch-eager/min",
        ),
        (("--compare", "none.json"), "none.json lacks a part, or has a wrong one: latency_ms of triglot"),
        (("--compare", "short.json"), "short.json lacks a part, or has a wrong one: samples_ms of triglot"),
        (("--compare", "below.json"), "below.json lacks a part, or has a wrong one: samples_ms of triglot"),
        (("--json", "median.json", "--resume"), "median.json lacks a part, or has a wrong one: latency_ms"),
        (
            ("--json", "null.json", "--resume"),
            "null.json lacks a part, or has a wrong one: a part of the wrong type; make it anew",
        ),
        (("--compare", "models.json"), "models.json lacks a part, or has a wrong one: no 'm'; make it anew"),
        (
            ("--compare", "unlike.json"),
            "unlike.json lacks a part, or has a wrong one: a part of the wrong type; make it anew",
        ),
        (("--json", "b.json", "--markdown", "b.json"), "b.json would be written twice"),
        (
            ("--mode", "compiled", "--framework", "jax"),
            "there is no arm for jax and compiled; ask for less, or for one of triglot-torch-eager, ",
        ),
    ],
)
def test_what_cannot_be_timed_is_refused_in_one_line(arguments, message, workplace, command):
    Path("text.json").write_text("no")
    Path("list.json").write_text("[]")
    kept = json.loads(next((ROOT / "bench" / "results").glob("*-bench.json")).read_text())
    Path("floor.json").write_text(json.dumps({name: value for name, value in kept.items() if name != "noise_floor"}))
    for name, changed in (
        ("twice", {"cases": [*kept["cases"], kept["cases"][0]]}),
        ("none", {"cases": [{**kept["cases"][0], "samples_ms": [], "round_lengths": []}]}),
        ("short", {"cases": [{**kept["cases"][0], "samples_ms": kept["cases"][0]["samples_ms"][1:]}]}),
        ("below", {"cases": [{**kept["cases"][0], "samples_ms": [-1.0], "round_lengths": [1]}]}),
        ("median", {"cases": [{**kept["cases"][0], "latency_ms": {"p50": 1.0}}]}),
        ("null", {"cases": [{**kept["cases"][0], "latency_ms": None}]}),
    ):
        Path(f"{name}.json").write_text(json.dumps({**kept, **changed}))
    kept["cases"][0]["model"] = "m"
    Path("models.json").write_text(json.dumps(kept))
    Path("unlike.json").write_text(json.dumps({**kept, "models": ["m"]}))
    Path("part.json").write_text('{"schema": "triglot.bench/1", "cases": [{}]}')
    code, out, err = command("bench", "bert-base-tiny", *arguments)
    assert (code, out) == (2, "")
    assert err.startswith(f"triglot: {message}")
    assert err.count("\n") == 1


def test_a_cell_that_does_not_fit_is_a_row(workplace, command, monkeypatch, fakes):
    monkeypatch.setattr(roofline, "measure", lambda *_: NO_ROOFLINE)
    monkeypatch.setattr(benchmark, "WORKER", fakes)
    asked = ("bench", "bert-base-tiny", "--arm", "triglot-torch-eager", *SHORT, "--batch", "1", "--fill", "0.6")
    code, out, _ = command(*asked, "--json", "bench.json", "--markdown", "bench.md")
    assert code == 0
    unfit, fit = json.loads(Path("bench.json").read_text())["cases"][:2]
    assert (unfit["batch"], unfit["status"], fit["batch"], fit["status"]) == (1, "skipped", 2, "ok")
    assert unfit["failure"].startswith("fill 0.6 leaves too few of 1 x 8 tokens")
    assert "triglot-torch-eager skipped: fill 0.6 leaves too few" in out
    # Columns in which nothing stands are not shown.
    _, first, second = Path("bench.md").read_text().split("| arm |")
    assert "ms" not in first.splitlines()[0]
    assert "| ms | tokens/s |" in second.splitlines()[0]
    assert "of roofline" not in second


def test_weights_that_do_not_fit_a_dtype_are_a_row(workplace, command, make_checkpoint, monkeypatch, fakes):
    """And the sweep goes on, with the next dtype and the next model."""
    monkeypatch.setattr(roofline, "measure", lambda *_: NO_ROOFLINE)
    monkeypatch.setattr(benchmark, "WORKER", fakes)
    checkpoint = make_checkpoint("bert-base-tiny")
    checkpoint.tensors["embeddings.token.weight"][1, 2] = 7e4
    triglot.save(checkpoint, "large.npz")
    asked = ("--arm", "triglot-torch-eager", *SHORT, "--dtype", "float16", "--dtype", "float32", "--json", "bench.json")
    assert command("bench", "large.npz", "bert-base-tiny", *asked)[0] == 0
    found = json.loads(Path("bench.json").read_text())["cases"]
    timed = [case for case in found if "*" not in case["id"]]
    said = {(case["model"], case["dtype"]): (case["status"], case["failure"]) for case in timed}
    assert said["large.npz", "float16"] == (
        "skipped",
        "embeddings.token.weight holds numbers that do not fit into float16; use dtype float32",
    )
    assert said["large.npz", "float32"] == ("ok", None)
    assert said["bert-base-tiny", "float32"] == ("ok", None)


def test_a_limit_of_memory_that_has_no_effect_is_refused(workplace, command, monkeypatch):
    monkeypatch.setattr(sys, "platform", "darwin")
    code, _, err = command("bench", "bert-base-tiny", "--memory-limit", "1000")
    assert (code, err) == (2, "triglot: --memory-limit has no effect here, on Linux alone; leave it out\n")
