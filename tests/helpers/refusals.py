"""Refusals in Python and on the command line, and models that have to be refused.

In Python a refusal is a ``TriglotError``, which is a ``ValueError``. On the command line it is exit code 2 and exactly
one line on standard error. Neither changes a file or leaves one behind. The patterns of the tests name the thing that
is refused and what was expected instead, not the whole sentence.
"""

import json
import os
import pickle
import re
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest
from safetensors.numpy import load_file, save_file

import triglot
from triglot.shared.errors import TriglotError
from triglot.shared.model.recipes import recipe

BERT = recipe("bert-base-tiny")


def snapshot(folder):
    """Every path below ``folder``, hidden ones included, with its mode and content."""
    content = {}
    for root, folders, files in os.walk(folder):
        for name in folders + files:
            path = os.path.join(root, name)
            mode, link = os.lstat(path).st_mode, os.readlink(path) if os.path.islink(path) else None
            content[path] = mode, link, None if name in folders or link else Path(path).read_bytes()
    return content


@contextmanager
def unchanged(folder):
    before = snapshot(folder)
    yield
    assert snapshot(folder) == before


@contextmanager
def refusal(error, pattern):
    """A Python call has to raise ``error`` with one line that matches ``pattern``."""
    with pytest.raises(error, match=pattern) as raised:
        yield
    assert isinstance(raised.value, TriglotError)
    assert isinstance(raised.value, ValueError)
    assert "\n" not in str(raised.value)


def assert_refused(result, pattern):
    """A command has to end with exit code 2, print nothing, and write one line to standard error."""
    code, out, err = result
    assert (code, out) == (2, "")
    (line,) = err.splitlines()
    assert line.startswith("triglot: ")
    assert re.search(pattern, line), f"{line!r} does not match {pattern!r}"


def run_process(*arguments):
    """Run a command in a separate process: exit code, standard output, standard error."""
    command = [sys.executable, "-m", "triglot", *arguments]
    result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    return result.returncode, result.stdout, result.stderr


# Models. Each maker takes a folder and ``make_checkpoint``, writes the model and returns its path.


def folder_with(change_tensors=lambda tensors: tensors, **fields):
    """A model folder of transformers with changed tensors and fields; the value ``...`` removes a field."""

    def make(place, make_checkpoint):
        folder = place / "model"
        triglot.port(make_checkpoint(BERT), folder, target_dialect="huggingface")
        path = folder / "model.safetensors"
        save_file(change_tensors(load_file(path)), path)
        config = {**json.loads((folder / "config.json").read_text()), **fields}
        config = {name: value for name, value in config.items() if value is not ...}
        (folder / "config.json").write_text(json.dumps(config))
        return folder

    return make


def bare_weights(place, make_checkpoint):
    folder = folder_with()(place, make_checkpoint)
    path = place / "bare.safetensors"
    (folder / "model.safetensors").rename(path)
    return path


def file_with(change):
    """A checkpoint whose tensors were changed before it was written, so all of its checksums are correct."""

    def make(place, make_checkpoint):
        checkpoint = make_checkpoint(BERT)
        change(checkpoint.tensors)  # in place, because the constructor would refuse them
        triglot.save(checkpoint, place / "model.npz")
        return place / "model.npz"

    return make


def damaged(make, damage, name=None):
    """The model that ``make`` writes, with one of its files damaged."""

    def damaged_model(place, make_checkpoint):
        path = make(place, make_checkpoint)
        file = path / name if name else path
        file.write_bytes(damage(file.read_bytes()))
        return path

    return damaged_model


def file_of(name, make_bytes):
    def make(place, _):
        (place / name).write_bytes(make_bytes())
        return place / name

    return make


def empty_folder(place, _):
    (place / "model").mkdir()
    return place / "model"


class Canary:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (str(self.path), "w")


def torch_file(path, canary):
    import torch

    torch.save({"weight": canary}, path)


def old_torch_file(path, canary):
    import torch

    torch.save({"weight": canary}, path, _use_new_zipfile_serialization=False)


def raw_pickle(protocol):
    return lambda path, canary: path.write_bytes(pickle.dumps({"weight": canary}, protocol))
