"""``triglot train`` and ``triglot translate``: what they write, refuse and survive."""

import json
import os
import re
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

import triglot
from triglot import training
from triglot.shared.checkpoint import Checkpoint
from triglot.shared.model.recipes import recipe
from triglot.shared.training import translation

TINY = ("train", "translation-tiny", "--batch-size", "2", "--samples-per-epoch", "4", "--quiet")


def training_state(path):
    training = triglot.load(path, verify="full").training
    assert training is not None
    return training


@pytest.fixture
def run(command):
    """A command that has to succeed; returns its standard output."""

    def succeed(*arguments):
        code, out, err = command(*arguments)
        assert code == 0, err
        return out

    return succeed


@pytest.mark.long(framework="jax")
def test_it_trains_and_writes_a_checkpoint_a_report_and_curves(run, framework, workplace):
    arguments = (*TINY[:-1], "--framework", framework, "--steps", "3", "--json", "report.json", "--plot", "curves.png")
    out = run(*arguments)
    assert sorted(os.listdir()) == ["curves.png", "report.json", "translation-tiny.npz"]
    training = training_state("translation-tiny.npz")
    assert training.moments.steps == 3
    assert (training.plan.batch_size, training.plan.samples_per_epoch, training.plan.dropout) == (2, 4, True)
    report = json.loads((workplace / "report.json").read_text())
    assert report["schema"] == "triglot.train/1"
    assert report["framework"] == framework
    assert report["weights_digest"] == triglot.load("translation-tiny.npz").digest
    np.testing.assert_array_equal(np.float32(report["loss"]), training.history.loss)
    assert set(report["unseen"]) == {"tokens", "sequences"}
    first, second = out.splitlines()
    assert first.startswith(f"translation-tiny.npz: 3 steps, the last in {framework}; ")
    assert re.fullmatch(r"unseen sentences.*: \d+\.\d\d% of tokens correct, \d+\.\d% of sentences .*", second)
    assert (workplace / "curves.png").read_bytes().startswith(b"\x89PNG")


def test_a_training_is_the_same_in_one_go_and_in_two(run, workplace):
    run(*TINY, "--framework", "torch", "--steps", "5", "--target", "once.npz")
    run(*TINY, "--framework", "torch", "--steps", "2", "--target", "twice.npz")
    run("train", "translation-tiny", "--framework", "torch", "--steps", "5", "--resume", "twice.npz", "--quiet")
    assert (workplace / "once.npz").read_bytes() == (workplace / "twice.npz").read_bytes()


def test_a_training_resumes_in_another_framework(run, workplace):
    run(*TINY, "--framework", "torch", "--steps", "2", "--target", "run.npz")
    resumed = ("--resume", "run.npz", "--target", "later.npz", "--quiet")
    run("train", "translation-tiny", "--framework", "jax", "--steps", "4", *resumed)
    assert training_state("run.npz").moments.steps == 2
    assert training_state("later.npz").moments.steps == 4
    np.testing.assert_array_equal(training_state("later.npz").history.loss[:2], training_state("run.npz").history.loss)


def test_the_seed_decides_weights_and_sentences(run, workplace):
    for seed in (0, 0, 1):
        run(*TINY, "--framework", "torch", "--steps", "1", "--seed", str(seed), "--target", f"{len(os.listdir())}.npz")
    losses = [training_state(name).history.loss[0] for name in ("0.npz", "1.npz", "2.npz")]
    assert losses[0] == losses[1] != losses[2]


def test_a_training_starts_from_the_weights_of_a_checkpoint(run, workplace):
    triglot.save(triglot.initialize("translation-tiny", seed=9), "begun.npz")
    run("train", "begun.npz", "--framework", "torch", "--steps", "1", "--target", "run.npz", "--quiet")
    run(*TINY[:2], "--framework", "torch", "--steps", "1", "--target", "other.npz", "--quiet")
    assert training_state("run.npz").history.loss[0] != training_state("other.npz").history.loss[0]


@pytest.mark.parametrize(
    ("arguments", "pattern"),
    [
        (("bert-base-tiny",), "kind 'encoder'.*translation task.*expected"),
        (("nothing",), "'nothing'.*neither a recipe nor an existing path"),
        (("translation-tiny", "--steps", "0"), "'--steps'.*greater than or equal to 1"),
        (("translation-tiny", "--rate", "7"), r"rate.*7\.0.*expected a number above 0"),
        (("translation-tiny", "--samples-per-epoch", "3"), "samples_per_epoch.*3.*expected at least"),
        (("translation-tiny", "--dtype", "bfloat16"), "dtype.*'bfloat16'.*expected one of"),
        (("translation-tiny", "--target", "trained.npz"), "trained.npz already exists.*--target.*--resume"),
        (("translation-tiny", "--target", "no/where.npz"), "cannot write no/where.npz"),
        (("translation-tiny", "--plot", "curves.txt"), "cannot draw curves.txt.*expected.*png"),
        (("translation-tiny", "--resume", "plain.npz"), "plain.npz holds no training run.*MODEL"),
        (("translation-tiny", "--resume", "missing.npz"), "missing.npz.*checkpoint"),
        (("nonsense", "--resume", "trained.npz"), "'nonsense'.*neither a recipe nor an existing path"),
        (("translation", "--resume", "trained.npz"), "trained.npz was not trained from translation.*recipe"),
        (("translation-tiny", "--resume", "trained.npz", "--rate", "0.1"), r"rate 0\.002, not 0\.1.*plan"),
        (("translation-tiny", "--resume", "trained.npz", "--steps", "1"), "steps is 1.*expected more than"),
        (("translation-tiny", "--target", "t.npz", "--json", "./t.npz"), "t.npz would be written twice"),
        (("translation-tiny", "--json", "t.png", "--plot", "t.png"), "t.png would be written twice"),
    ],
    ids=str,
)
def test_an_impossible_training_is_refused_in_one_line(command, workplace, arguments, pattern):
    trained = triglot.train(triglot.initialize("translation-tiny"), "torch", "trained.npz", steps=1)
    triglot.save(Checkpoint(trained.config, trained.tensors), "plain.npz")
    before = {name: (workplace / name).read_bytes() for name in os.listdir()}
    code, out, err = command("train", *arguments, "--framework", "torch")
    assert (code, out) == (2, "")
    assert re.search(pattern, err)
    assert err.count("\n") == 1
    assert {name: (workplace / name).read_bytes() for name in os.listdir()} == before, "a file was written or lost"


def test_plots_need_matplotlib(command, workplace, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    code, _, err = command("train", "translation-tiny", "--plot", "curves.png")
    assert code == 2
    assert re.search(r"matplotlib.*not installed.*triglot\[report\]", err)


def test_the_help_states_the_defaults(command, workplace):
    """The options of a plan default to None, so their help texts spell out the defaults of ``Plan``."""
    _, out, _ = command("train", "--help")
    plan = triglot.Plan()
    for field in ("rate", "decay", "epochs_per_decay", "samples_per_epoch", "batch_size", "seed"):
        assert re.search(
            rf"--{field.replace('_', '-')}\b.*?Default: {getattr(plan, field):g}\.", " ".join(out.split())
        ), field
    for option, default in (("steps", training.STEPS), ("save-every", training.SAVE_EVERY)):
        assert re.search(rf"--{option}\b.*?\[default: {default};", " ".join(out.split())), option


def test_a_resumed_training_accepts_its_own_plan(run, workplace):
    run(*TINY, "--framework", "torch", "--steps", "1", "--rate", "0.001", "--target", "run.npz")
    run("train", "run.npz", "--framework", "torch", "--steps", "2", "--rate", "0.001", "--target", "on.npz", "--quiet")
    assert training_state("on.npz").plan == training_state("run.npz").plan
    assert training_state("on.npz").moments.steps == 2


def test_a_training_keeps_the_checkpoint_that_it_starts_from(run, workplace):
    run(*TINY, "--framework", "torch", "--steps", "1", "--target", "run.npz")
    before = (workplace / "run.npz").read_bytes()
    run("train", "run.npz", "--framework", "torch", "--steps", "2", "--quiet")
    assert (workplace / "run.npz").read_bytes() == before
    assert training_state("run-trained.npz").moments.steps == 2


@pytest.mark.parametrize("ending", ["svg", "png", "pdf"])
def test_the_same_training_gives_the_same_picture(workplace, ending):
    from triglot.plots import draw_training

    training = triglot.train(triglot.initialize("translation-tiny"), "torch", steps=3).training
    assert training is not None
    pictures = []
    for name in ("one", "two"):
        draw_training(training, workplace / f"{name}.{ending}", "a title")
        pictures.append((workplace / f"{name}.{ending}").read_bytes())
    assert pictures[0] == pictures[1]
    assert len(pictures[0]) > 5_000
    if ending == "svg":
        assert pictures[0].count(b"<path") > 10


def start_training(*arguments):
    """Start a training run in a separate process, and return it once it has written its first checkpoint."""
    path = arguments[arguments.index("--target") + 1]
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "triglot", "train", "translation-tiny", "--framework", "torch", *arguments],
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    for _ in range(600):
        if os.path.exists(path) or process.poll() is not None:
            return process
        time.sleep(0.1)
    process.kill()
    pytest.fail("no checkpoint within a minute")


@pytest.mark.long(number=signal.SIGTERM)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_stops_after_a_step_and_writes_the_checkpoint(workplace, number):
    process = start_training("--steps", "100000", "--save-every", "5", "--target", "run.npz", "--json", "run.json")
    process.send_signal(number)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    steps = training_state("run.npz").moments.steps
    assert 5 <= steps < 100_000
    assert err.splitlines() == [
        "triglot: stopping after this step; press Ctrl-C again to stop now and lose unsaved steps",
        f"triglot: run.npz holds {steps} steps; resume with --resume run.npz",
        "triglot: interrupted",
    ]
    assert sorted(os.listdir()) == ["run.json", "run.npz"]
    report = json.loads((workplace / "run.json").read_text())
    assert (report["steps"], len(report["loss"]), report["unseen"]) == (steps, steps, None)
    resumed = triglot.train(triglot.load("run.npz"), "torch", steps=steps + 1)
    straight = triglot.train(triglot.initialize("translation-tiny"), "torch", steps=steps + 1)
    assert resumed.digest == straight.digest, "part of a step was lost or made twice"


def test_a_killed_training_leaves_its_last_checkpoint(workplace):
    process = start_training("--steps", "100000", "--save-every", "1", "--target", "run.npz")
    time.sleep(0.5)
    process.kill()
    process.communicate(timeout=60)
    assert training_state("run.npz").moments.steps >= 1


def test_translate_prints_the_translation_and_whether_it_is_right(run, command, workplace):
    """The model ends every translation at once, so it is always wrong."""
    checkpoint = triglot.initialize("translation")
    bias = checkpoint.tensors["heads.logits.bias"].copy()
    bias[recipe("translation").special_ids[1]] = 1e4
    triglot.save(Checkpoint(checkpoint.config, {**checkpoint.tensors, "heads.logits.bias": bias}), "translation.npz")
    assert run("translate", "q w e 1", "--framework", "torch").splitlines() == ["", "wrong: it should be 8 8 E W Q"]
    assert run("translate", "qwe1", "--framework", "jax", "--json", "result.json", "--quiet") == ""
    result = json.loads((workplace / "result.json").read_text())
    assert result == {"text": "qwe1", "translation": "", "expected": "8 8 E W Q", "framework": "jax"}
    for text, message in (("Q", "'Q'"), ("", "empty"), ("q" * 49, "49 words")):
        code, out, err = command("translate", text)
        assert (code, out) == (2, "")
        assert message in err
    assert "nothing.npz" in command("translate", "q", "--model", "nothing.npz")[2]
    (workplace / "translation.npz").unlink()
    assert "triglot train translation" in command("translate", "q")[2]


def test_score_counts_correct_tokens_and_sentences(framework):
    """Compared with the task's own score of what the model generates for unseen sentences."""
    checkpoint = triglot.initialize("translation-tiny")
    task = translation.TranslationTask.for_model(checkpoint.config, seed=3)
    sources, targets = task.pairs(1 << 40, 4)
    generated = triglot.build(framework, checkpoint).generate(sources, max_length=task.length)
    expected = translation.score(generated, targets[:, : task.length])
    assert triglot.score(checkpoint, framework, seed=3, count=4) == expected


@pytest.mark.long(framework="jax")
@pytest.mark.long(framework="torch")
def test_quiet_is_quiet(framework, workplace):
    """Messages that a framework prints when it is imported are not errors."""
    command = [sys.executable, "-P", "-m", "triglot", *TINY, "--framework", framework, "--steps", "1"]
    result = subprocess.run([*command, "--target", "run.npz", "--quiet"], capture_output=True, text=True, check=False)
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")
