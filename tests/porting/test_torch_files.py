"""``.pt`` files are read as PyTorch reads them, never run, and refused in one line if anything is wrong."""

import collections
import io
import os
import pickle
import re
import struct
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from triglot import port
from triglot.shared import files
from triglot.shared.arrays import BFLOAT16, FLOATS
from triglot.shared.errors import PortingError
from triglot.shared.porting.containers import torch as torch_file
from triglot.shared.porting.containers import torch_pickle
from triglot.shared.porting.containers import zip as zip_file

ALONE = "save the state dict alone: torch.save(model.state_dict(), path)"
DAMAGED = "its pickle is damaged; restore the file"


@pytest.fixture
def path(tmp_path):
    return tmp_path / "run.pt"


def numbers(*shape, dtype=torch.float32):
    return torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(dtype)


def assert_refused(path, problem):
    """The refusal is one line, and begins with the path and the problem."""
    with pytest.raises(PortingError, match=f"^{re.escape(f'cannot read {path}: {problem}')}") as raised:
        torch_file.read(path)
    assert "\n" not in str(raised.value)


def assert_reads_as_torch(path):
    """Names, order, dtypes, shapes, strides and bits, against PyTorch's own reader."""
    expected = torch.load(path, weights_only=True)
    found = torch_file.read(path)
    assert list(found) == list(expected)
    for name, tensor in expected.items():
        array = found[name]
        assert array.dtype.name == str(tensor.dtype).removeprefix("torch.")
        assert array.shape == tuple(tensor.shape)
        if tensor.numel() > 1:
            assert tuple(stride // array.itemsize for stride in array.strides) == tensor.stride()
        assert np.asarray(array, order="C").tobytes() == bytes(
            tensor.detach().clone(memory_format=torch.contiguous_format).untyped_storage()
        ), name
    return found


DTYPES = (
    *(torch.float64, torch.float32, torch.float16, torch.bfloat16),
    *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool),
)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(), (1,), (5,), (3, 4), (2, 3, 4, 5), (0,), (3, 0, 2)], ids=str)
def test_every_dtype_and_shape_is_read(dtype, shape, path):
    torch.save({"tensor": (numbers(*shape) * 9).to(dtype)}, path)
    assert_reads_as_torch(path)


def test_views_of_shared_storages_are_read(path):
    base = numbers(6, 8)
    views = {
        "base": base,
        "transposed": base.T,
        "row": base[3],
        "column": base[:, 5],
        "steps": base[1::2, ::3],
        "permuted": base.view(2, 3, 8).permute(2, 0, 1),
        "expanded": base[0, :1].expand(7),
        "parameter": torch.nn.Parameter(base[2:4]),
        "itself": base,
    }
    torch.save(views, path)
    found = assert_reads_as_torch(path)
    assert np.shares_memory(found["base"], found["column"])
    assert path.stat().st_size < 5000  # one storage of 192 bytes


@pytest.mark.parametrize("order", ["plain", "ordered", "module"])
def test_dictionaries_and_parameters_are_read(order, path):
    module = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))
    tensors = module.state_dict()
    if order == "plain":
        tensors = {name: torch.nn.Parameter(tensor) for name, tensor in tensors.items() if tensor.is_floating_point()}
    elif order == "ordered":
        tensors = collections.OrderedDict(tensors)
    torch.save(tensors, path)
    assert_reads_as_torch(path)


def test_an_empty_state_dict_is_read(path):
    torch.save({}, path)
    assert torch_file.read(path) == {}


def test_big_endian_numbers_are_swapped(path):
    tensors = {
        "wide": numbers(3, 4, dtype=torch.float64),
        "half": numbers(5, dtype=torch.bfloat16),
        "byte": torch.arange(3).byte(),
    }
    torch.save(tensors, path)
    plain = {name: array.copy() for name, array in torch_file.read(path).items()}

    def swap(name, content):
        if name.endswith("/byteorder"):
            return b"big"
        if "/data/" in name:
            size = {"0": 8, "1": 2, "2": 1}[name.rsplit("/", 1)[1]]
            return np.frombuffer(content, f"u{size}").byteswap().tobytes()
        return content

    rewrite(path, swap)
    swapped = torch_file.read(path)
    for name, array in plain.items():
        assert swapped[name].dtype == array.dtype
        np.testing.assert_array_equal(swapped[name], array)
    rewrite(path, lambda name, content: b"middle" if name.endswith("/byteorder") else content)
    assert_refused(path, "its byteorder is b'middle'; expected little or big")


def test_a_file_without_byteorder_is_little_endian(path):
    torch.save({"a": numbers(3)}, path)
    plain = torch_file.read(path)["a"].copy()
    rewrite(path, lambda name, content: None if name.endswith("/byteorder") else content)
    np.testing.assert_array_equal(torch_file.read(path)["a"], plain)


def write(tensors, path):
    with files.writing(path) as file:
        torch_file.write(file, tensors)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("mapped", [False, True])
def test_torch_reads_written_files(dtype, mapped, path):
    generator = np.random.default_rng(0)
    square = generator.normal(size=(5, 5)).astype(FLOATS[dtype])
    tensors = {
        **{"square": square, "transposed": square.T, "steps": square[::2, 1], "empty": square[:0]},
        **{"one": square[0, 0:1], "scalar": np.zeros((), FLOATS[dtype])},
        "deep": generator.normal(size=(2, 1, 3, 2, 2)).astype(FLOATS[dtype]),
        "a name, with \u00e9 and spaces": np.ones(1, FLOATS[dtype]),
    }
    write(tensors, path)
    loaded = torch.load(path, weights_only=True, mmap=mapped)
    assert type(loaded) is collections.OrderedDict
    assert list(loaded) == list(tensors)
    for name, array in tensors.items():
        assert loaded[name].dtype == getattr(torch, dtype)
        assert tuple(loaded[name].shape) == array.shape
        assert bytes(loaded[name].untyped_storage()) == array.tobytes()
        assert not loaded[name].requires_grad
    read = torch_file.read(path)
    for name, array in tensors.items():
        np.testing.assert_array_equal(read[name], array)


def test_the_same_tensors_give_the_same_bytes(path):
    tensors = {"a": np.arange(3.0), "b": np.ones((2, 2), BFLOAT16)}
    write(tensors, path)
    first = path.read_bytes()
    write(tensors, path)
    assert path.read_bytes() == first


def test_thousands_of_tensors_are_written_and_read(path):
    tensors = {f"layers.{number}.weight": np.full(1, number, np.float32) for number in range(5000)}
    write(tensors, path)
    assert assert_reads_as_torch(path).keys() == tensors.keys()


def rewrite(path, change):
    """Change the content of each member; None removes it."""
    with zipfile.ZipFile(path) as archive:
        members = {info.filename: archive.read(info) for info in archive.infolist()}
    contents = {name: change(name, content) for name, content in members.items()}
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in contents.items():
            if content is not None:
                archive.writestr(name, content)


def archive_of(path, program, storages=None):
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", program)
        archive.writestr("archive/byteorder", "little")
        archive.writestr("archive/version", "3\n")
        for key, content in (storages or {}).items():
            archive.writestr(f"archive/data/{key}", content)


def global_(name):
    return b"c" + name.replace(" ", "\n").encode() + b"\n"


def text(word):
    return b"X" + struct.pack("<I", len(word.encode())) + word.encode()


def whole(number):
    return b"\x8a" + bytes([len(data := number.to_bytes(9, "little", signed=True))]) + data


def storage(key="0", kind="torch FloatStorage", count=4):
    return b"(" + text("storage") + global_(kind) + text(key) + text("cpu") + whole(count) + b"tQ"


def sizes(*values):
    return b"(" + b"".join(map(whole, values)) + b"t"


def tensor(storage_=None, offset=0, shape=(4,), strides=(1,)):
    view = (storage_ or storage()) + whole(offset) + sizes(*shape) + sizes(*strides)
    hooks = b"\x89" + global_("collections OrderedDict") + b")R"
    return global_("torch._utils _rebuild_tensor_v2") + b"(" + view + hooks + b"tR"


def state_dict(value, name="a"):
    return b"\x80\x02}" + text(name) + value + b"s."


FOUR = {"0": np.arange(4, dtype=np.float32).tobytes()}


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


def test_a_torchscript_program_is_refused(path):
    with zipfile.ZipFile(path, "w") as archive:
        for name in ("run/data.pkl", "run/constants.pkl", "run/code/__torch__.py"):
            archive.writestr(name, b"")
    assert_refused(path, f"it is a TorchScript program; {ALONE}")


@pytest.mark.parametrize(("names", "count"), [((), 0), (("a/data.pkl", "b/data.pkl"), 2), (("a/b/data.pkl",), 0)])
def test_an_archive_without_exactly_one_pickle_is_refused(names, count, path):
    with zipfile.ZipFile(path, "w") as archive:
        for name in ("something", *names):
            archive.writestr(name, b"")
    assert_refused(path, f"it has {count} members NAME/data.pkl, expected one")


def test_a_compressed_archive_is_refused(path):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data.pkl", bytes(1000))
    assert_refused(path, "member archive/data.pkl is compressed")


def test_a_repeated_member_is_refused(path):
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", b"")
        with pytest.warns(UserWarning, match="Duplicate name"):
            archive.writestr("archive/data.pkl", b"")
    assert_refused(path, "member archive/data.pkl occurs twice")


def test_too_many_members_are_refused(path, monkeypatch):
    monkeypatch.setattr(zip_file, "MOST_MEMBERS", 4)
    archive_of(path, b"", FOUR)
    assert zip_file.read(path).keys() == {f"archive/{name}" for name in ("data.pkl", "byteorder", "version", "data/0")}
    archive_of(path, b"", {"0": b"", "1": b""})
    assert_refused(path, "it has 5 members, expected at most 4")


def test_members_that_are_larger_than_the_file_are_refused(path):
    """Such a file can be small, and its members fill the memory."""
    archive_of(path, b"", {"0": bytes(1000), "1": bytes(10)})
    content = bytearray(path.read_bytes())
    start = content.rindex(b"PK\x01\x02")
    content[start + 20 : start + 28] = struct.pack("<II", 10**9, 10**9)
    path.write_bytes(content)
    assert_refused(path, "its members are larger than the file")


@pytest.mark.parametrize("content", [b"", b"PK", b"PK\x03\x04", b"anything"])
def test_other_files_are_refused(content, path):
    path.write_bytes(content)
    assert_refused(path, "File is not a zip file")


def test_a_missing_file_is_refused(path):
    assert_refused(path, "No such file or directory; restore it")


# Where the number is: in the directory, where the member begins; in the end record, where the directory begins.
@pytest.mark.parametrize(("record", "place"), [(b"PK\x01\x02", 42), (b"PK\x05\x06", 16)])
def test_a_member_outside_of_the_file_is_refused(record, place, path):
    """zipfile moves all members by the difference of two offsets, which may be wrong, and does not check the result."""
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a", b"content")
    content = bytearray(path.read_bytes())
    start = content.rindex(record) + place
    content[start : start + 4] = (1 << 31).to_bytes(4, "little")
    path.write_bytes(content)
    with pytest.raises(PortingError, match=r"^cannot read .*: member a does not begin inside the file; restore"):
        zip_file.read(path)


def test_a_damaged_number_is_noticed(path):
    torch.save({"a": numbers(100)}, path)
    content = bytearray(path.read_bytes())
    content[content.index(numbers(100).numpy().tobytes()) + 7] ^= 1
    path.write_bytes(content)
    with pytest.raises(PortingError, match=r"^cannot read .*: Bad CRC-32 for file '.*/data/0'"):
        torch_file.read(path)


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


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    """A small file that PyTorch wrote."""
    path = tmp_path_factory.mktemp("sound") / "run.pt"
    base = numbers(3, 4)
    torch.save(collections.OrderedDict(a=base, b=base.T[1:], c=torch.nn.Parameter(numbers(2))), path)
    return path.read_bytes()


def assert_read_or_refused(path, content):
    path.write_bytes(content)
    try:
        tensors, message = torch_file.read(path), None
    except PortingError as error:
        tensors, message = {}, str(error)
    assert message is None or message.startswith(f"cannot read {path}: ")
    assert message is None or "\n" not in message
    assert all(isinstance(array, np.ndarray) for array in tensors.values())
    return "read" if message is None else "refused"


def test_every_truncation_is_refused(sound, path):
    for length in range(0, len(sound), 7):
        assert assert_read_or_refused(path, sound[:length]) == "refused", length


def test_a_flipped_bit_is_refused_or_harmless(sound, path):
    outcomes = [
        assert_read_or_refused(
            path, sound[: bit // 8] + bytes([sound[bit // 8] ^ 1 << bit % 8]) + sound[bit // 8 + 1 :]
        )
        for bit in range(0, 8 * len(sound), 37)
    ]
    assert {"refused", "read"} == set(outcomes)  # time stamps and padding are harmless


def repaired(sound, place, change):
    """Change the pickle and correct its checksum, so that the damage reaches the machine."""
    with zipfile.ZipFile(io.BytesIO(sound)) as archive:
        members = {info.filename: bytearray(archive.read(info)) for info in archive.infolist()}
    (pickled,) = (content for name, content in members.items() if name.endswith("data.pkl"))
    pickled[place % len(pickled) : place % len(pickled) + len(change)] = change
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, bytes(content))
    return out.getvalue()


@settings(max_examples=300, deadline=None)
@given(place=st.integers(0, 1000), change=st.binary(min_size=1, max_size=6))
def test_a_damaged_pickle_is_refused_or_read(sound, place, change):
    """Whatever the program does, the machine returns views, or raises RefusalError."""
    with zipfile.ZipFile(io.BytesIO(repaired(sound, place, change))) as archive:
        (program,) = (archive.read(name) for name in archive.namelist() if name.endswith("data.pkl"))
    try:
        layouts = torch_pickle.read(program)
    except torch_pickle.RefusalError:
        layouts = {}
    assert all(isinstance(layout, torch_pickle.Layout) for layout in layouts.values())


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_a_damaged_file_is_refused_or_read(sound, data, tmp_path_factory):
    content = bytearray(sound)
    for _ in range(data.draw(st.integers(1, 4))):
        start = data.draw(st.integers(0, len(content) - 1))
        end = data.draw(st.integers(start, min(start + 40, len(content))))
        content[start:end] = data.draw(st.binary(max_size=40))
        content = content or bytearray(b"x")
    if data.draw(st.booleans()):
        place, change = data.draw(st.integers(0, 1000)), data.draw(st.binary(min_size=1, max_size=9))
        content = bytearray(repaired(sound, place, change))
    assert_read_or_refused(Path(tmp_path_factory.mktemp("damaged")) / "run.pt", bytes(content))
