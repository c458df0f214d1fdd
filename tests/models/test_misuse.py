"""Wrong arguments and unlucky machines: what the public API and the command line answer."""

import json
import os
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

import triglot
from triglot import impls
from triglot.shared.checkpoint import checksums, npz
from triglot.shared.model.recipes import recipe

TINY = recipe("bert-base-tiny")
untyped = cast("Any", triglot)  # for calls that a type checker would refuse
CHECKPOINT = "expected a Checkpoint; make one with triglot.load"


def refused(error, message):
    """Expect an error that begins with these words."""
    return pytest.raises(error, match=f"^{re.escape(message)}")


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: untyped.build("torch", "a.npz"), triglot.CheckpointError, f"checkpoint is a str; {CHECKPOINT}"),
        (lambda: untyped.check("a.npz", ["torch"]), triglot.CheckpointError, f"checkpoint is a str; {CHECKPOINT}"),
        (lambda: untyped.save({}, "a.npz"), triglot.CheckpointError, f"checkpoint is a dict; {CHECKPOINT}"),
        (lambda: untyped.load(None), triglot.InputError, "path is a NoneType; expected a path"),
        (lambda: untyped.load(""), triglot.InputError, "path is empty; expected a path"),
        (
            lambda: triglot.load("minilm"),
            triglot.ModelNotFoundError,
            "minilm is a recipe; expected a checkpoint (.npz); call triglot.port('minilm')",
        ),
        (lambda: untyped.port(5), triglot.InputError, "source is a int; expected a path"),
        (lambda: untyped.port("minilm", 5), triglot.InputError, "target is a int; expected a path"),
        (lambda: untyped.initialize(None), triglot.ConfigError, "configuration: missing field activation"),
        (lambda: untyped.initialize(["layers"]), triglot.ConfigError, "config is a list; expected a recipe, a"),
        (lambda: untyped.initialize("minilm", 1.5), triglot.ConfigError, "seed is 1.5; expected a whole number, 0 or"),
        (lambda: untyped.initialize("minilm", True), triglot.ConfigError, "seed is True; expected a whole number"),
        (
            lambda: untyped.Checkpoint(TINY, {name: [1] for name in triglot.initialize(TINY).tensors}),
            triglot.CheckpointError,
            "the tensors do not match the configuration: embeddings.token.weight is a list, expected a NumPy array",
        ),
        (
            lambda: triglot.port("minilm", source_dialect="huggingface"),
            triglot.PortingError,
            "minilm is a recipe, and recipes have no dialect; omit the dialect",
        ),
    ],
)
def test_arguments_of_wrong_types_are_refused(call, error, message):
    with refused(error, message):
        call()


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"threads": 0}, triglot.ConfigError, "threads is 0; expected a whole number, 1 or more"),
        ({"threads": -1}, triglot.ConfigError, "threads is -1; expected a whole number, 1 or more"),
        ({"seed": 1.5}, triglot.ConfigError, "seed is 1.5; expected a whole number, 0 or more"),
        ({"time_limit": 0}, triglot.ConfigError, "time_limit is 0; expected a number of seconds, 1 or more"),
        ({"time_limit": float("nan")}, triglot.ConfigError, "time_limit is nan; expected a number of seconds, 1 or"),
        ({"time_limit": "5"}, triglot.ConfigError, "time_limit is '5'; expected a number of seconds, 1 or more"),
        ({"batches": [np.zeros((1, 2))]}, triglot.InputError, "batches is not a list of batches"),
        ({"frameworks": []}, triglot.FrameworkError, "frameworks is empty; name one"),
        ({"checks": "masks"}, triglot.ConfigError, "checks is 'masks'; expected a list of names"),
        ({"frameworks": "torch"}, triglot.FrameworkError, "frameworks is 'torch'; expected a list of names"),
    ],
)
def test_check_refuses_wrong_arguments(arguments, error, message, make_checkpoint):
    with refused(error, message):
        untyped.check(make_checkpoint(TINY), **arguments)


@pytest.mark.long
def test_infinite_time_limit_is_accepted(make_checkpoint):
    report = triglot.check(make_checkpoint(TINY), ["torch"], time_limit=float("inf"), threads=1)
    assert report.verdict == "pass"


def test_check_accepts_batches(make_checkpoint):
    batch = triglot.batch(TINY, [[5, 6, 7], [8, 9, 0]], [[True] * 3, [True, True, False]])
    assert isinstance(batch, triglot.Batch)
    assert triglot.check(make_checkpoint(TINY), ["torch"], batches=[batch], isolate=False).verdict == "pass"


def test_tensors_that_numpy_cannot_read_are_refused(implementation, make_checkpoint):
    import torch

    model = impls.build(implementation, make_checkpoint("dygraph-tiny"))
    with refused(triglot.InputError, "token_ids is a Tensor that NumPy cannot read"):
        model.encode(torch.zeros(1, 2, 24, requires_grad=True))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_weights_beyond_the_dtype_are_refused(dtype, framework, make_checkpoint):
    """In float64 the model can be built."""
    tensors = {name: tensor.astype(np.float64) for name, tensor in make_checkpoint(TINY).tensors.items()}
    tensors["encoder.layers.0.attention.key.bias"][2] = 1e39
    checkpoint = triglot.Checkpoint(TINY, tensors)
    if dtype == "float64":
        assert impls.build(framework, checkpoint, dtype=dtype).config == TINY
        return
    message = "encoder.layers.0.attention.key.bias holds numbers that do not fit into float32"
    with refused(triglot.CheckpointError, message):
        impls.build(framework, checkpoint, dtype=dtype)
    with refused(triglot.CheckpointError, message):
        triglot.check(checkpoint, [framework])


@pytest.mark.long(framework="jax")
def test_epsilon_that_a_kernel_refuses(framework, make_checkpoint, check_small):
    """Paddle's kernel accepts at most 0.001."""
    checkpoint = make_checkpoint(replace(TINY, norm_eps=0.01))
    assert check_small(checkpoint, framework).verdict == "pass"


@pytest.mark.long(framework="jax")
@pytest.mark.parametrize(("masking", "value"), [("add", -1e300), ("fill", -3.4028234663852886e38)])
def test_extreme_masking_values(masking, value, framework, make_checkpoint, check_small):
    checkpoint = make_checkpoint(replace(TINY, masking=masking, masking_value=value))
    report = check_small(checkpoint, framework)
    assert report.verdict == "pass", report.first_divergence


@pytest.mark.parametrize(
    ("source_names", "message"),
    [
        (
            {"embeddings.token.weight": 5},
            "source_names of embeddings.token.weight is 5; expected a name",
        ),
        ({"embeddings.token.weight": "a" * 201}, "source_names of embeddings.token.weight is 'aaa"),
        ({"embeddings.token.weight": "{["}, "source_names of embeddings.token.weight is '{['; expected a name"),
        ({"no.tensor": "a"}, "source_names has 'no.tensor', which is not a tensor"),
    ],
)
def test_source_names_that_no_file_can_hold_are_refused(source_names, message, make_checkpoint):
    with refused(triglot.CheckpointError, message):
        triglot.Checkpoint(TINY, make_checkpoint(TINY).tensors, source_names)


def test_two_threads_may_verify_a_tensor_at_once(make_checkpoint, tmp_path, monkeypatch):
    triglot.save(make_checkpoint(TINY), tmp_path / "model.npz")
    loaded = triglot.load(tmp_path / "model.npz")
    tensors = cast("Any", loaded.tensors)
    digest_of = checksums.sha256

    def finish_in_another_thread(tensor):
        tensors._unverified.clear()
        return digest_of(tensor)

    monkeypatch.setattr(checksums, "sha256", finish_in_another_thread)
    assert loaded.tensors["embeddings.token.weight"].shape == (101, 24)


def test_full_temporary_folder_is_reported():
    with refused(triglot.OutputError, "cannot write /dev/full: No space left on device; free space, or set TMPDIR to"):
        npz.write(Path("/dev/full"), {"a": np.zeros(1 << 20)})


@pytest.mark.parametrize("answer", ["{}", "3", "[]", '{"environment": 1}'])
def test_program_that_is_not_a_worker_is_reported(answer, tmp_path, make_checkpoint):
    program = tmp_path / "python"
    program.write_text(f"#!/bin/sh\necho '{answer}'\nexec sleep 60\n")
    program.chmod(0o755)
    report = triglot.check(make_checkpoint(TINY), ["torch"], pythons={"torch": program}, threads=1)
    assert report.verdict == "error"
    assert re.search("not a Triglot worker|instead of an answer", report.rows[0].reason)


def test_report_never_overwrites_an_input(command, workplace, make_checkpoint):
    triglot.save(make_checkpoint(TINY), "model.npz")
    before = Path("model.npz").read_bytes()
    Path("link.npz").symlink_to("model.npz")
    np.savez("batch.npz", token_ids=[[1, 2]])
    for arguments in (
        ("inspect", "model.npz", "--json", "model.npz"),
        ("inspect", "model.npz", "--json", "link.npz"),
        ("parity", "model.npz", "--json", "./model.npz"),
        ("parity", "minilm", "--inputs", "batch.npz", "--json", "batch.npz"),
    ):
        code, out, err = command(*arguments)
        assert (code, out) == (2, "")
        shown = str(Path(arguments[-1]))
        assert err.startswith(f"triglot: cannot write {shown}: it is also an input")
    assert Path("model.npz").read_bytes() == before


def test_config_json_of_transformers_is_refused(command, workplace):
    Path("config.json").write_text(json.dumps({"model_type": "bert", "hidden_size": 12}))
    message = "config.json is the config.json of transformers; pass its folder, with the weights, as MODEL"
    assert command("inspect", "minilm", "--config", "config.json") == (2, "", f"triglot: {message}\n")


def test_link_to_an_empty_folder_is_not_overwritten(make_checkpoint, tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "link").symlink_to("empty")
    checkpoint = make_checkpoint(TINY)
    with refused(triglot.OutputError, f"cannot write {tmp_path / 'link'}: it already exists; remove it"):
        triglot.port(checkpoint, tmp_path / "link", target_dialect="huggingface")
    assert os.listdir(tmp_path / "empty") == []


def test_impossible_file_name_is_refused(make_checkpoint, tmp_path):
    with pytest.raises(
        triglot.OutputError, match=r"^cannot write '.*': no file can have that name; choose another one$"
    ):
        triglot.save(make_checkpoint(TINY), f"{tmp_path}/a\ud800b.npz")


def test_model_beyond_the_memory_is_refused(command, workplace):
    code, out, err = command("inspect", "bert-base-tiny", "--set", "hidden_size=100000000000")
    assert (code, out) == (2, "")
    assert err.startswith("triglot: not enough memory: ")
    assert err.endswith("; use a smaller model or batch, or a machine with more\n")


def test_empty_model_name_is_refused(command, workplace):
    code, out, err = command("inspect", "")
    assert (code, out) == (2, "")
    assert err.startswith("triglot: '' is neither a recipe nor an existing path; give a checkpoint")


def test_escape_sequences_are_not_printed(command, workplace):
    code, out, err = command("inspect", "no\x1b[31mmodel")
    assert (code, out) == (2, "")
    assert "\x1b" not in err
    assert "no\\x1b[31mmodel" in err


def test_closed_standard_output_is_not_an_error(workplace):
    import subprocess

    command = f"{sys.executable} -m triglot recipes >&-"
    result = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False)
    assert (result.returncode, result.stderr) == (0, "")
