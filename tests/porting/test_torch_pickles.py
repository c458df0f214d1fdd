"""The pickle in a ``.pt`` file is never run. What no state dict holds is refused in one line."""

import collections
import os
import pickle

import numpy as np
import pytest
import torch
from torch_archives import (
    ALONE,
    DAMAGED,
    FOUR,
    archive_of,
    assert_reads_as_torch,
    assert_refused,
    global_,
    numbers,
    state_dict,
    storage,
    tensor,
    text,
)

from triglot import port
from triglot.shared.errors import PortingError
from triglot.shared.porting.containers import torch as torch_file
from triglot.shared.porting.containers import torch_pickle


def test_an_archive_made_by_hand_is_read(path):
    """The archives below differ from it in one place each."""
    archive_of(path, state_dict(tensor()), FOUR)
    np.testing.assert_array_equal(assert_reads_as_torch(path)["a"], [0, 1, 2, 3])


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        (tensor(storage(key="9")), "its storage '9' is missing"),
        (tensor(storage(key="../byteorder")), "its storage '../byteorder' is missing"),
        (
            tensor(storage(count=5)),
            "its storage 0 has 16 bytes, expected 5 of float32",
        ),
        (
            tensor(storage(count=3)),
            "its storage 0 has 16 bytes, expected 3 of float32",
        ),
        (
            tensor(storage(kind="torch DoubleStorage")),
            "its storage 0 has 16 bytes, expected 4 of float64",
        ),
        (tensor(offset=1), "'a' exceeds its storage"),
        (tensor(offset=2**62), "'a' exceeds its storage"),
        (tensor(shape=(5,)), "'a' exceeds its storage"),
        (tensor(shape=(2, 2), strides=(3, 1)), "'a' exceeds its storage"),
        (tensor(shape=(2, 2), strides=(1,)), "'a' exceeds its storage"),
        (tensor(shape=(1,) * 65, strides=(1,) * 65), DAMAGED),
        (tensor(shape=(2**40, 2**40), strides=(0, 0)), "'a' exceeds its storage"),
        (tensor(shape=(2**70,)), "'a' exceeds its storage"),
        (tensor(strides=(-1,)), DAMAGED),
        (tensor(shape=(-4,)), DAMAGED),
        (tensor(offset=-1), DAMAGED),
        (tensor(storage(count=-4)), DAMAGED),
        (storage(), "its 'a' is a storage, expected a tensor; " + ALONE),
        (global_("torch FloatStorage"), "its 'a' is a name, expected a tensor; " + ALONE),
        (tensor(storage(kind="collections OrderedDict")), DAMAGED),
        (global_("torch FloatStorage") + b")R", DAMAGED),
        (global_("collections OrderedDict") + b"]\x85R", DAMAGED),
        (global_("torch._utils _rebuild_parameter") + tensor() + b"\x89\x86R", DAMAGED),
        (text("storage") + b"Q", DAMAGED),
        (b"N", "its 'a' is a NoneType, expected a tensor; " + ALONE),
        (b"G" + bytes(8), "its 'a' is a float, expected a tensor; " + ALONE),
        (b"}" + text("weight") + tensor() + b"s", "its 'a' is a dict, expected a tensor; " + ALONE),
        (b"]" + tensor() + b"a", "its 'a' is a list, expected a tensor; " + ALONE),
        (tensor() + b"s" + text("a") + tensor(), "it holds 'a' twice; save it again"),
        (tensor() + b"s})K\x01s0" + text("b") + tensor(), DAMAGED),
        (b"}" + text("x") + b"Nsb", DAMAGED),
        (b"}}" + text("x") + b"Nsb", "its dictionary has attributes; " + ALONE),
        (b"h\x07", DAMAGED),
        (b"0", "its pickle uses the instruction b'0', which state dicts lack; " + ALONE),
        (b"2", "its pickle uses the instruction b'2', which state dicts lack; " + ALONE),
        (b")\x81", "its pickle uses the instruction b'\\x81', which state dicts lack; " + ALONE),
        (b"\x82\x01", "its pickle uses the instruction b'\\x82', which state dicts lack; " + ALONE),
        (b"(ios\nsystem\n", "its pickle uses the instruction b'i', which state dicts lack; " + ALONE),
        (b"Pkey\n", "its pickle uses the instruction b'P', which state dicts lack; " + ALONE),
        (b"\xff", "its pickle uses the instruction b'\\xff', which state dicts lack; " + ALONE),
        (b"X\x01\x00\x00\x00\xff", DAMAGED),
        (b"X\xff\xff\xff\xff", DAMAGED),
        (b"c\\o\n\n", "it names '\\\\o.', which is not part of a state dict; " + ALONE),
        (b"t", DAMAGED),
        (b"a", DAMAGED),
        (b"(\x85", DAMAGED),
        (text("x") * 3, DAMAGED),
    ],
)
def test_values_that_torch_save_does_not_write_are_refused(value, problem, path):
    archive_of(path, state_dict(value), FOUR)
    assert_refused(path, problem)


@pytest.mark.parametrize(
    ("program", "problem"),
    [
        (b"", DAMAGED),
        (b"\x80\x02", DAMAGED),
        (b"\x80\x02.", DAMAGED),
        (b"\x80\x02}", DAMAGED),
        (b"\x80\x02}}.", DAMAGED),
        (b"\x80\x02].", "it holds a list, expected a state dict; " + ALONE),
        (b"\x80\x02" + tensor() + b".", "it holds a tensor, expected a state dict; " + ALONE),
        (b"\x80\x02}K\x01" + tensor() + b"s.", "its 1 is not the name of a tensor; " + ALONE),
        (b"\x80\x04}.", "its pickle has protocol 4; expected 2"),
    ],
)
def test_programs_without_a_state_dict_are_refused(program, problem, path):
    archive_of(path, program, FOUR)
    assert_refused(path, problem)


class Canary:
    """Touches a file when it is unpickled."""

    def __init__(self, touched):
        self.touched = touched

    def __reduce__(self):
        return os.system, (f"touch {self.touched}",)


@pytest.mark.parametrize("place", ["whole", "value", "key", "nested", "hooks", "metadata"])
def test_nothing_in_a_pickle_is_run(place, path, tmp_path):
    touched = tmp_path / "touched"
    canary = Canary(touched)
    state = collections.OrderedDict(weight=numbers(2))
    if place == "metadata":
        state.__dict__["_metadata"] = canary
    made = {
        "whole": canary,
        "value": {"weight": canary},
        "key": {("a", canary): 1},
        "nested": {"weight": [1, {"deep": (canary,)}]},
        "metadata": state,
    }.get(place)
    if place == "hooks":
        program = state_dict(tensor()).replace(b"\x89", b"\x89" + global_("posix system") + text("x") + b"\x85R")
        archive_of(path, program, FOUR)
    else:
        torch.save(made, path)
    assert_refused(path, "it names 'posix.system', which is not part of a state dict; " + ALONE)
    with pytest.raises(PortingError, match=r"names 'posix\.system'"):
        port(path, source_dialect="article-annotated")
    assert not touched.exists()
    if place != "hooks":
        torch.load(path, weights_only=False)
        assert touched.exists(), "the canary does nothing"


@pytest.mark.parametrize(
    "name",
    [
        *("os system", "posix system", "builtins eval", "builtins getattr", "torch load", "torch.hub load"),
        *("torch._utils _rebuild_tensor", "torch._utils _rebuild_tensor_v3", "torch.storage UntypedStorage"),
        *("torch floatStorage", "torch._utils _rebuild_tensor_v2.__globals__", "collections OrderedDict.fromkeys"),
    ],
)
def test_every_other_name_is_refused(name, path):
    archive_of(path, state_dict(global_(name)), FOUR)
    assert_refused(path, f"it names {name.replace(' ', '.')!r}, which is not part of a state dict; {ALONE}")


def test_a_long_name_is_shortened(path):
    archive_of(path, state_dict(global_("m" * 5000 + " x")), FOUR)
    with pytest.raises(PortingError, match=r"it names 'm{79} \.\.\., which is not part") as raised:
        torch_file.read(path)
    assert len(str(raised.value)) < 500


def test_a_whole_module_is_refused_by_its_class(path):
    torch.save(torch.nn.Linear(2, 2), path)
    assert_refused(path, f"it names 'torch.nn.modules.linear.Linear', which is not part of a state dict; {ALONE}")


def test_a_training_checkpoint_is_refused_by_what_it_holds(path):
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.Adam(model.parameters())
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": 3}, path)
    assert_refused(path, f"its 'model' is a dict, expected a tensor; {ALONE}")


def test_the_format_before_1_6_is_refused(path, tmp_path):
    torch.save({"weight": Canary(tmp_path / "touched")}, path, _use_new_zipfile_serialization=False)
    assert_refused(path, "it is a bare pickle, the format before PyTorch 1.6; save the state dict with a newer PyTorch")
    path.write_bytes(pickle.dumps({"weight": 1}))
    with pytest.raises(PortingError, match="it is a bare pickle"):
        torch_file.read(path)
    assert not (tmp_path / "touched").exists()


def test_a_long_pickle_is_refused(path, monkeypatch):
    monkeypatch.setattr(torch_pickle, "LONGEST", 100)
    archive_of(path, state_dict(text("x" * 100)), FOUR)
    assert_refused(path, f"its pickle has 116 bytes, expected at most 100; {ALONE}")


def test_many_instructions_are_refused(path):
    archive_of(path, b"\x80\x02" + b"}" * (1 << 21) + b".")
    assert_refused(path, f"its pickle has more than 1048576 instructions; {ALONE}")


def test_a_high_memory_index_costs_nothing(path):
    """The unpickler of the standard library would allocate four thousand million entries."""
    archive_of(path, state_dict(tensor()).replace(b"}", b"}r\xff\xff\xff\xff", 1), FOUR)
    assert list(torch_file.read(path)) == ["a"]


@pytest.mark.parametrize(
    "deep",
    [
        b")" + b"\x85" * 500_000,
        b"]" * 300_000 + b"a" * 299_999,
        b")" + b"q\x00h\x00\x86" * 200_000,  # each pair contains the previous one twice
        (b"}" + text("k")) * 150_000 + b"N" + b"s" * 150_000,
    ],
    ids=["tuples", "lists", "doubled", "dictionaries"],
)
def test_deep_values_are_refused(deep, path):
    archive_of(path, state_dict(deep), FOUR)
    with pytest.raises(PortingError, match=r"its 'a' is a (tuple|list|dict), expected a tensor; "):
        torch_file.read(path)


def test_a_deep_key_is_refused_before_it_is_hashed(path):
    """Hashing a tuple hashes its parts. This one would overflow the stack of the process."""
    archive_of(path, b"\x80\x02})" + b"\x85" * 500_000 + b"Ns.", FOUR)
    assert_refused(path, DAMAGED)


def test_an_expanded_tensor_uses_no_memory(path):
    """2^36 equal numbers are one number and a view. The shape is refused before anything is copied."""
    archive_of(path, state_dict(tensor(shape=(2**36,), strides=(0,))), FOUR)
    assert torch_file.read(path)["a"].shape == (2**36,)
    with pytest.raises(PortingError, match=r"missing .*; unexpected a; "):
        port(path, source_dialect="article-multihead", config={"heads": 8})
