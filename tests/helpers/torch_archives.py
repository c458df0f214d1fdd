"""``.pt`` files made by hand, and what their reader returns or refuses."""

import re
import struct
import zipfile

import numpy as np
import pytest
import torch

from triglot.shared.errors import PortingError
from triglot.shared.porting.containers import torch as torch_file

ALONE = "save the state dict alone: torch.save(model.state_dict(), path)"
DAMAGED = "its pickle is damaged; restore the file"


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
