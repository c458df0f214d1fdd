"""The command line: what it prints and writes, its exit codes, and one line for each error."""

import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from importlib import metadata
from pathlib import Path

import numpy as np
import pytest

import triglot
from triglot.shared.environment import environment
from triglot.shared.model.recipes import recipe

PRE_TRAINING = ("pooler", "masked_lm", "next_sentence")


def run(*arguments, **options):
    command = [sys.executable, "-m", "triglot", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=300, **options)


def complaints(result):
    """Return what a command wrote to standard error, except for its progress, which a slow machine shows."""
    return [line for line in result.stderr.splitlines() if not line.startswith("parity of ")]


@pytest.fixture
def checkpoint_file(tmp_path, make_checkpoint):
    path = tmp_path / "model.npz"
    triglot.save(make_checkpoint("bert-base-tiny"), path)
    return path


@pytest.fixture
def small(tmp_path):
    """A small batch."""
    path = tmp_path / "batch.npz"
    np.savez(path, token_ids=np.random.default_rng(0).integers(0, 101, (4, 24)))
    return "--inputs", path, "--threads", 1


def test_parity_prints_and_writes_the_same_verdict(checkpoint_file, small, tmp_path):
    target = tmp_path / "report.json"
    arguments = "--framework", "torch", "--dtype", "float64", *small
    result = run("parity", checkpoint_file, *arguments, "--json", target)
    assert (result.returncode, complaints(result)) == (0, [])
    lines = result.stdout.splitlines()
    assert lines[2] == "number format float64, mode eager"
    assert lines[-1] == "verdict: pass"
    for check in ("masks", "output", "every value, end to end", "every step alone", "every step on probes"):
        (line,) = [line for line in lines if line.split("  ")[0].strip() == "torch" and f" {check} " in line]
        assert line.split()[-1] == "pass"
    report = json.loads(target.read_text())
    assert report["schema"] == "triglot.parity/1"
    assert report["verdict"] == "pass"
    assert report["model"] == str(checkpoint_file)
    assert report["weights_digest"] == triglot.load(checkpoint_file).digest
    assert {(row["framework"], row["dtype"]) for row in report["checks"]} == {("torch", "float64")}


@pytest.mark.parametrize("redirected", [">", ">>", "|"])
def test_json_can_be_printed(redirected, checkpoint_file, tmp_path):
    """Standard output may be a pipe or a file; a file that is appended to keeps its content."""
    (tmp_path / "log").write_text("[1]\n")
    target = "cat >> log" if redirected == "|" else "log"
    command = f"{sys.executable} -m triglot inspect {checkpoint_file} --json - --quiet {redirected} {target}"
    subprocess.run(command, shell=True, check=True, cwd=tmp_path)
    *before, printed = (tmp_path / "log").read_text().split("\n", 0 if redirected == ">" else 1)
    assert before == ([] if redirected == ">" else ["[1]"])
    assert json.loads(printed)["config"]["layers"] == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["log", checkpoint_file.name]


def test_a_device_is_writable_although_its_folder_is_not(checkpoint_file, monkeypatch):
    from triglot.shared import files

    monkeypatch.setattr(os, "access", lambda *_: False)
    files.check_writable(Path("/dev/null"))
    with pytest.raises(triglot.OutputError, match="not writable"):
        files.check_writable(checkpoint_file)


def test_parity_of_a_wrong_model_exits_with_1(tmp_path, checkpoint_file):
    """The worker process loads a module that replaces the exact GELU of PyTorch by the tanh approximation."""
    patch = tmp_path / "sitecustomize.py"
    patch.write_text(
        "import sys\n"
        "if 'triglot.parity.worker' in sys.orig_argv:\n"
        "    import functools, torch.nn.functional as functional\n"
        "    right = functional.gelu\n"
        "    functional.gelu = lambda x, approximate: right(x, approximate='tanh')\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    result = run("parity", checkpoint_file, "--framework", "torch", "--threads", 1, env=environment)
    assert result.returncode == 1
    assert "first divergence of torch: encoder.layers.0.feed_forward.activation (local): the error is" in result.stdout
    assert result.stdout.splitlines()[-1] == "verdict: diverged"


def test_quiet_prints_nothing(checkpoint_file):
    result = run("parity", checkpoint_file, "--framework", "torch", "--check", "forward", "--threads", 1, "--quiet")
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")


@pytest.mark.long
def test_the_seed_changes_the_weights_of_a_recipe():
    command = ("parity", "dygraph-tiny", "--framework", "torch", "--check", "forward", "--threads", 1, "--seed")
    first, second = (run(*command, seed).stdout for seed in (0, 1))
    assert first.splitlines()[1].startswith("weights ")
    assert first.splitlines()[1] != second.splitlines()[1]


def test_inspect_shows_configuration_tensors_sizes_and_digest(checkpoint_file, tmp_path):
    target = tmp_path / "contents.json"
    result = run("inspect", checkpoint_file, "--json", target)
    assert (result.returncode, result.stderr) == (0, "")
    checkpoint = triglot.load(checkpoint_file)
    assert f"digest {checkpoint.digest}" in result.stdout
    assert "39 tensors, 12,968 parameters, 51,872 bytes" in result.stdout
    assert "embeddings.token.weight" in result.stdout
    assert "vocabulary, hidden" in result.stdout
    contents = json.loads(target.read_text())
    assert contents["config"] == checkpoint.config.to_dict()
    assert contents["digest"] == checkpoint.digest
    assert contents["tensors"].keys() == checkpoint.tensors.keys()
    assert contents["tensors"]["heads.pooler.bias"] == {
        "dtype": "float32",
        "shape": [24],
        "axes": ["hidden"],
        "bytes": 96,
        "source": None,
    }


def test_set_and_config_correct_a_configuration(checkpoint_file, tmp_path):
    first, second = tmp_path / "first.json", tmp_path / "second.json"
    result = run("inspect", "bert-base-tiny", "--set", "layers=1", "--set", "norm_eps=1e-5", "--json", first)
    assert (result.returncode, result.stderr) == (0, "")
    expected = {**triglot.recipes()["bert-base-tiny"].to_dict(), "layers": 1, "norm_eps": 1e-5}
    assert json.loads(first.read_text())["config"] == expected
    # --config reads what inspect writes, and --set wins.
    result = run("inspect", "bert-base-tiny", "--config", first, "--set", "layers=2", "--json", second)
    assert (result.returncode, result.stderr) == (0, "")
    assert json.loads(second.read_text())["config"] == {**expected, "layers": 2}
    corrected = triglot.port(checkpoint_file, config={"norm_eps": 1e-5}).digest
    assert f"digest {corrected}" in run("inspect", checkpoint_file, "--set", "norm_eps=1e-5").stdout


def test_port_round_trip_through_bare_weights(checkpoint_file, tmp_path):
    digest = triglot.load(checkpoint_file).digest
    folder, back = tmp_path / "folder", tmp_path / "back.npz"
    result = run("port", checkpoint_file, folder, "--target-dialect", "huggingface")
    assert (result.returncode, result.stderr) == (0, "")
    unproven = "checked for completeness, not against the original (--verify, or --example)"
    unproven += " the tokenizer is not part of a checkpoint; copy its files into the folder"
    shown = f"read as neutral, because it has manifest.json {unproven} {folder}: 39 tensors, digest {digest}"
    assert result.stdout.replace("\n", " ").split() == shown.split()
    weights = folder / "model.safetensors"
    result = run("port", weights, back, "--config", "bert-base-tiny")
    assert result.stdout.startswith("read as huggingface, because it has embeddings.word_embeddings.weight\n")
    result = run("port", weights, back, "--source-dialect", "huggingface", "--config", "bert-base-tiny", "--quiet")
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")
    assert triglot.load(back, "full").digest == digest


@pytest.mark.parametrize(
    ("heads", "kept"), [("none", ()), ("masked_lm,pooler", ("pooler", "masked_lm")), ("keep", PRE_TRAINING)]
)
def test_port_keeps_the_heads_that_are_named(heads, kept, make_checkpoint, tmp_path):
    source, target = tmp_path / "source.npz", tmp_path / "target.npz"
    triglot.save(make_checkpoint(replace(recipe("bert-base-tiny"), heads_on_top=PRE_TRAINING)), source)
    result = run("port", source, target, "--heads", heads)
    assert (result.returncode, result.stderr) == (0, "")
    ported = triglot.load(target)
    assert ported.config.heads_on_top == kept
    left_out = triglot.load(source).tensors.keys() - ported.tensors.keys()
    for name in left_out:
        assert f"left out {name}: it belongs to a head that is not kept" in result.stdout
    assert result.stdout.count("left out") == len(left_out)
    result = run("port", source, tmp_path / "other.npz", "--heads", "classifier")
    message = "triglot: the model has no head classifier; expected any of pooler, masked_lm, next_sentence"
    assert (result.returncode, result.stderr.startswith(message)) == (2, True)


@pytest.mark.long
def test_parity_on_inputs_from_a_file_and_in_another_python(checkpoint_file, tmp_path):
    ids = np.arange(12).reshape(3, 4)
    np.savez(tmp_path / "inputs.npz", token_ids=ids, valid=ids % 4 < 3, segment_ids=ids % 2)
    python = tmp_path / "python.sh"
    python.write_text(f'#!/bin/sh\necho used > {tmp_path / "used"}\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    options = ["--inputs", tmp_path / "inputs.npz", "--python", f"torch={python}", "--json", tmp_path / "report.json"]
    result = run("parity", checkpoint_file, "--framework", "torch", "--mode", "eager", "--threads", 1, *options)
    assert (result.returncode, complaints(result)) == (0, [])
    assert (tmp_path / "used").read_text() == "used\n"
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["verdict"] == "pass"
    assert report["inputs"] == f"3 rows of {tmp_path / 'inputs.npz'}"


def test_port_records_the_source_names(tmp_path):
    from triglot.models import resolve

    target = tmp_path / "minilm.npz"
    tokenizer = resolve("minilm").tokenizer
    assert tokenizer is not None
    result = run("port", tokenizer.parent, target, "--source-dialect", "huggingface")
    assert (result.returncode, result.stderr) == (0, "")
    checkpoint = triglot.load(target, verify="full")
    assert checkpoint.digest in result.stdout
    assert checkpoint.config == triglot.recipes()["minilm"]
    assert checkpoint.source_names["embeddings.token.weight"] == "embeddings.word_embeddings.weight"


def test_recipes_lists_every_recipe(tmp_path):
    result = run("recipes", "--json", tmp_path / "recipes.json")
    listed = [line.split()[0] for line in result.stdout.splitlines() if line.strip()]
    assert set(triglot.recipes()) <= set(listed)
    content = json.loads((tmp_path / "recipes.json").read_text())
    assert content == {name: config.to_dict() for name, config in triglot.recipes().items()}


def test_doctor_shows_versions_variables_and_frameworks(framework, monkeypatch):
    monkeypatch.setenv("FLAGS_use_mkldnn", "0")
    result = run("doctor")
    assert result.returncode == 0
    assert framework in result.stdout.splitlines()[-1]
    versions = dict(line.split()[:2] for line in result.stdout.splitlines() if " " in line)
    for package in ("numpy", "sentence-transformers"):
        assert versions[package] == metadata.version(package)
    assert "FLAGS_use_mkldnn=0" in result.stdout.splitlines()
    assert result.stdout.splitlines()[1] == f"instructions: {environment()['instructions']}"


@pytest.mark.parametrize(
    ("arguments", "pattern"),
    [
        (["parity"], "'MODEL'.*see triglot parity --help"),
        (["parity", "minilm", "--bogus"], "--bogus.*see triglot parity --help"),
        (["bogus"], "'bogus'.*see triglot --help"),
        (["parity", "minilm", "--dtype"], "'--dtype' requires an argument; see triglot parity --help"),
        (["recipes", "--json", "/"], "cannot write /.*folder"),
    ],
)
def test_a_usage_error_is_one_line_and_exit_code_2(arguments, pattern, tmp_path):
    """The refusals of the commands themselves are in test_refused_*.py."""
    result = run(*arguments, cwd=tmp_path)
    assert (result.returncode, result.stdout) == (2, "")
    (line,) = result.stderr.splitlines()
    assert re.search(f"^triglot: .*{pattern}", line)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("arguments", [["--debug", "parity", "nothing"], ["parity", "nothing", "--debug"]])
def test_debug_shows_the_traceback_in_any_position(arguments):
    result = run(*arguments)
    assert result.returncode == 2
    assert "Traceback" in result.stderr
    assert "ModelNotFoundError" in result.stderr


def test_without_a_command_the_help_is_shown():
    result = run()
    assert result.returncode == 0
    assert result.stdout.startswith("Usage: triglot")


def test_version():
    assert run("--version").stdout.strip() == metadata.version("triglot")


def test_port_and_inspect_use_the_trained_weights_of_a_recipe(tmp_path):
    assert triglot.port("minilm").digest in run("inspect", "minilm").stdout
    assert run("port", "minilm", tmp_path / "minilm.npz").returncode == 0
    assert triglot.load(tmp_path / "minilm.npz").digest == triglot.port("minilm").digest


def test_an_unexpected_error_is_not_a_divergence(tmp_path):
    """Exit code 1 means a divergence. Every other problem is exit code 2 and one line."""
    (tmp_path / "sitecustomize.py").write_text(
        "import triglot.models\ndef fail(*_, **o): raise RuntimeError('out of cheese')\ntriglot.models.resolve = fail\n"
    )
    result = run("parity", "minilm", env={**os.environ, "PYTHONPATH": str(tmp_path)})
    assert result.returncode == 2
    (line,) = result.stderr.splitlines()
    assert line.startswith("triglot: unexpected RuntimeError: out of cheese; run again with --debug")


def test_a_full_disk_is_one_line():
    result = subprocess.run(
        f"{sys.executable} -m triglot recipes > /dev/full", shell=True, capture_output=True, text=True, check=False
    )
    assert result.returncode == 2
    assert result.stderr.startswith("triglot: cannot write to standard output: No space left on device")
    assert result.stderr.count("\n") == 1


def test_a_report_to_a_device_or_link_keeps_it(tmp_path):
    result = run("recipes", "--quiet", "--json", "/dev/stdout")
    assert json.loads(result.stdout).keys() == triglot.recipes().keys()
    link = tmp_path / "link.json"
    link.symlink_to(tmp_path / "real.json")
    assert run("recipes", "--quiet", "--json", link).returncode == 0
    assert link.is_symlink()
    assert json.loads((tmp_path / "real.json").read_text())


@pytest.mark.long(framework="paddle")
@pytest.mark.long(framework="jax")
def test_a_missing_gpu_is_reported(checkpoint_file, framework):
    result = run("parity", checkpoint_file, "--framework", framework, "--device", "cuda", "--threads", 1)
    assert result.returncode == 2
    assert re.search("no cuda device.*'cpu'", result.stderr)
    assert not result.stdout  # there is nothing to show but the reason


def test_a_reader_that_stops_early_does_not_change_the_exit_code(checkpoint_file):
    command = f"{sys.executable} -m triglot inspect {checkpoint_file} | head -1; exit ${{PIPESTATUS[0]}}"
    result = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False, timeout=60)
    assert (result.returncode, result.stderr) == (0, "")
