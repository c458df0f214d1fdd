"""A target that cannot be written is refused in every container: one line, and no file is changed or left behind."""

import os
import shutil
import subprocess
import sys
from dataclasses import replace

import pytest
from refusals import assert_refused, unchanged

import triglot
from triglot.shared.checkpoint import Checkpoint, TextSettings
from triglot.shared.model.recipes import recipe

BERT = recipe("bert-base-tiny")
SENTENCE = replace(BERT, heads_on_top=("sentence_embedding",), sentence_pooling="mean")
SHARDS = ("--shard-size", "20kB")
HUGGING_FACE = ("--target-dialect", "huggingface")
# The name of the target, and the options that write it.
CONTAINERS = {
    "neutral": ("out.npz", ()),
    "sharded neutral": ("out", SHARDS),
    "npz": ("out.npz", ("--target-dialect", "nnx")),
    "safetensors": ("out.safetensors", ("--target-dialect", "torch")),
    "pt": ("out.pt", ("--target-dialect", "torch")),
    "bin": ("out.bin", ("--target-dialect", "torch")),
    "pdparams": ("out.pdparams", ("--target-dialect", "paddle")),
    "msgpack": ("out.msgpack", ("--target-dialect", "nnx")),
    "orbax": ("out.orbax", ("--target-dialect", "nnx")),
    "huggingface": ("out", HUGGING_FACE),
    "sharded safetensors": ("out", (*HUGGING_FACE, *SHARDS)),
    "huggingface-flax": ("out", ("--target-dialect", "huggingface-flax")),
    "sentence-transformers": ("out", ("--target-dialect", "sentence-transformers")),
}
# Files cannot grow beyond 4 kB: more than a configuration has, less than any weights.
FULL = """
import resource
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
from triglot import cli
cli.main()
"""


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    """A folder for each container, with a neutral checkpoint and the target that was written from it."""
    folder = tmp_path_factory.mktemp("sources")
    for container, (name, options) in CONTAINERS.items():
        config = SENTENCE if container == "sentence-transformers" else BERT
        checkpoint = triglot.initialize(config)
        if config is SENTENCE:
            checkpoint = Checkpoint(config, checkpoint.tensors, text=TextSettings(7, {}))
        (folder / container).mkdir()
        triglot.save(checkpoint, folder / container / "source.npz")
        dialect = options[options.index("--target-dialect") + 1] if "--target-dialect" in options else "neutral"
        shard_size = SHARDS[1] if SHARDS[0] in options else None
        triglot.port(checkpoint, folder / container / name, target_dialect=dialect, shard_size=shard_size)
    return folder


@pytest.fixture(params=CONTAINERS)
def container(request, sources, workplace):
    """The name of a target and its options. The working directory holds its source and, as ``written``, the target."""
    shutil.copytree(sources / request.param, workplace, dirs_exist_ok=True)
    name, options = CONTAINERS[request.param]
    os.rename(name, f"written-{name}")
    return name, options


def test_a_full_disk(container, workplace):
    """In its own process, because libraries write in their own threads and to the real standard error."""
    name, options = container
    arguments = [sys.executable, "-c", FULL, "port", "source.npz", name, *options]
    with unchanged(workplace):
        result = subprocess.run(arguments, capture_output=True, text=True, check=False, timeout=60)
        pattern = f"cannot write .*{name}: .*File too large.*; free space, or choose another"
        assert_refused((result.returncode, result.stdout, result.stderr), pattern)


def test_a_target_that_is_closed_or_an_input(container, workplace, command, monkeypatch):
    name, options = container
    written, is_folder = f"written-{name}", os.path.isdir(f"written-{name}")
    os.mkdir("closed")
    shutil.copytree("closed", "around")
    shutil.copy("source.npz", "around/source.npz")
    shutil.copy("source.npz", "read-only")
    os.chmod("read-only", 0o444)
    os.symlink(written, f"link-{name}")
    # Root may write everywhere, and tests run as root in containers, so os.access is replaced.
    access, closed = os.access, str(workplace / "closed")
    monkeypatch.setattr(os, "access", lambda path, mode: os.path.abspath(path) != closed and access(path, mode))
    refused = {
        "a closed folder": ("source.npz", f"closed/{name}", "the folder closed is not writable; choose another"),
        "the source": (written, written, "it is also an input and would be lost"),
        "a link to it": (written, f"link-{name}", "it is also an input and would be lost"),
        "inside it": (written, f"{written}/{name}", "is inside the source" if is_folder else "is not a folder"),
        "around it": ("around/source.npz", "around", "it contains the source around/source.npz; choose another path"),
    }
    if not is_folder:
        suffix = os.path.splitext(name)[1]
        os.rename("read-only", f"read-only{suffix}")
        refused["a read-only file"] = ("source.npz", f"read-only{suffix}", "it is read-only; change its permissions")
    for source, target, pattern in refused.values():
        with unchanged(workplace):
            assert_refused(command("port", source, target, *options), pattern)


@pytest.mark.parametrize("options", [SHARDS, HUGGING_FACE, ("--target-dialect", "sentence-transformers")])
@pytest.mark.parametrize("name", ["out.npz", "out.safetensors"])
def test_a_folder_with_the_suffix_of_a_file(name, options, command, workplace):
    with unchanged(workplace):
        pattern = f"cannot write {name}: it would become a folder, but .* is the suffix of a file; choose a name"
        assert_refused(command("port", "bert-base-tiny", name, *options), pattern)
