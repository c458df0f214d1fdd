"""Orbax checkpoints are read as NumPy arrays without knowing their shapes, and written for Orbax to restore."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import orbax.checkpoint as ocp
import pytest
import tensorstore
from flax import nnx
from jax import numpy as jnp

import triglot
from triglot.impls.flax_nnx.transformer import Transformer
from triglot.shared.arrays import BFLOAT16
from triglot.shared.errors import OutputError, PortingError
from triglot.shared.model.recipes import recipe
from triglot.shared.porting import recognise
from triglot.shared.porting.containers import orbax

NAME = "bert-base-tiny"


def transformer() -> Transformer:
    return Transformer(recipe(NAME), rngs=nnx.Rngs(3))


def save_standard(path, state):
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(path, state)


def save_tree(path, state):
    ocp.PyTreeCheckpointer().save(path, state)


def save_in_folders(path, state):
    """A folder for every array, in place of Orbax's own database."""
    ocp.Checkpointer(ocp.PyTreeCheckpointHandler(use_ocdbt=False)).save(path, args=ocp.args.PyTreeSave(state))


def save_as_zarr3(path, state):
    ocp.Checkpointer(ocp.PyTreeCheckpointHandler(use_zarr3=True)).save(path, args=ocp.args.PyTreeSave(state))


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A module, and the folder that Orbax saved of its whole state."""
    module = transformer()
    path = tmp_path_factory.mktemp("orbax") / "a state, 50% ✓ #1"
    save_standard(path, nnx.state(module))
    return module, path


def assert_holds(checkpoint, module):
    state = nnx.to_flat_state(nnx.state(module, nnx.Param))
    names = {".".join(map(str, path)): np.asarray(variable[...]) for path, variable in state}
    assert set(checkpoint.source_names.values()) == names.keys()
    for canonical, name in checkpoint.source_names.items():
        np.testing.assert_array_equal(checkpoint.tensors[canonical], names[name], err_msg=name, strict=True)


def test_a_whole_state_is_read_without_its_random_numbers(saved):
    module, path = saved
    assert recognise(path, None).dialect.name == "nnx"
    checkpoint = triglot.port(path, config=NAME)
    assert_holds(checkpoint, module)
    names = {".".join(map(str, path)) for path, _ in nnx.to_flat_state(nnx.state(module))}
    random = {name for name in names if ".rngs." in name}
    assert checkpoint.left_out == dict.fromkeys(random, "it is the state of a random number generator")
    assert random


@pytest.mark.parametrize("save", [save_standard, save_tree, save_in_folders, save_as_zarr3])
@pytest.mark.parametrize("pure", [False, True])
def test_every_way_to_save_is_read(save, pure, tmp_path):
    module = transformer()
    state = nnx.state(module, nnx.Param)
    save(tmp_path / "state", nnx.to_pure_dict(state) if pure else state)
    assert_holds(triglot.port(tmp_path / "state", config=NAME), module)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_orbax_restores_what_is_written(dtype, make_checkpoint, tmp_path):
    checkpoint, path = make_checkpoint(NAME), tmp_path / "model.orbax"
    triglot.port(checkpoint, tmp_path / "model.npz", dtype=dtype, allow_lossy=True)
    expected = triglot.load(tmp_path / "model.npz")
    triglot.port(expected, path, target_dialect="nnx")
    module = transformer()
    state = nnx.state(module, nnx.Param)
    state = nnx.map_state(lambda _, variable: variable.replace(variable[...].astype(dtype)), state)
    with ocp.StandardCheckpointer() as checkpointer:
        nnx.update(module, checkpointer.restore(path, state))
    again = triglot.port(path, config=NAME)
    assert again.digest == expected.digest
    assert_holds(again, module)
    assert sorted(part.name for part in tmp_path.iterdir()) == ["model.npz", "model.orbax"]


def test_the_weights_of_other_dialects_are_read(make_checkpoint, tmp_path):
    """The parameters of a Flax model of transformers, saved by Orbax."""
    triglot.port(make_checkpoint(NAME), tmp_path / "flax", target_dialect="huggingface-flax")
    from flax import serialization

    tree = serialization.msgpack_restore((tmp_path / "flax" / "flax_model.msgpack").read_bytes())
    save_standard(tmp_path / "state", tree)
    checkpoint = triglot.port(tmp_path / "state", config=NAME)
    assert recognise(tmp_path / "state", None).dialect.name == "huggingface-flax"
    assert checkpoint.digest == make_checkpoint(NAME).digest


def test_what_is_not_an_array_is_refused(tmp_path):
    save_tree(tmp_path / "words", {"a": jnp.ones(2), "b": "text"})
    with pytest.raises(PortingError, match=r"^cannot read .*words: its 'b' is a 'string', expected an array; restore"):
        orbax.read(tmp_path / "words")
    save_tree(tmp_path / "dots", {"a.b": jnp.ones(2)})
    with pytest.raises(PortingError, match=r"its 'a\.b' is not the name of an array"):
        orbax.read(tmp_path / "dots")
    save_tree(tmp_path / "lists", {"a": [jnp.ones(2, BFLOAT16), jnp.zeros(())]})
    found = orbax.read(tmp_path / "lists")
    assert {name: (array.dtype, array.shape) for name, array in found.items()} == {
        "a.0": (BFLOAT16, (2,)),
        "a.1": (np.float32, ()),
    }


def test_a_target_that_exists_is_refused(make_checkpoint, tmp_path):
    path = tmp_path / "model.orbax"
    path.mkdir()
    triglot.port(make_checkpoint(NAME), path, target_dialect="nnx")  # an empty folder may be replaced
    before = sorted(path.rglob("*"))
    with pytest.raises(OutputError, match="it already exists; remove it"):
        triglot.port(make_checkpoint(NAME), path, target_dialect="nnx")
    assert sorted(path.rglob("*")) == before


def test_nothing_is_left_behind_if_tensorstore_fails(make_checkpoint, tmp_path, monkeypatch):
    opened = tensorstore.open

    def fail(spec, **options):
        if "encoder" in spec["kvstore"]["path"]:
            raise ValueError("no\nspace")
        return opened(spec, **options)

    monkeypatch.setattr(tensorstore, "open", fail)
    with pytest.raises(OutputError, match=r"cannot write .*model\.orbax: no space; free space, or choose another"):
        triglot.port(make_checkpoint(NAME), tmp_path / "model.orbax", target_dialect="nnx")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("restore", [ocp.StandardCheckpointer, ocp.PyTreeCheckpointer])
def test_orbax_restores_a_written_folder_without_being_told_its_shapes(restore, tmp_path, caplog):
    """Also arrays of zeros, which Zarr would leave out."""
    tensors = {"a.b": np.zeros((2, 3), np.float32), "c": np.float64(3).reshape(()), "d.0": np.ones(4, BFLOAT16).T}
    orbax.write(tmp_path / "first", tensors)
    orbax.write(tmp_path / "second", tensors)
    restored = restore().restore(tmp_path / "first")
    nested = {
        "a": {"b": {"value": tensors["a.b"]}},
        "c": {"value": tensors["c"]},
        "d": {"0": {"value": tensors["d.0"]}},
    }
    jax.tree.map(lambda ours, theirs: np.testing.assert_array_equal(ours, theirs, strict=True), nested, restored)
    assert orbax.read(tmp_path / "first").keys() == tensors.keys()
    files = [path.relative_to(tmp_path / "first") for path in (tmp_path / "first").rglob("*") if path.is_file()]
    assert all((tmp_path / "first" / name).read_bytes() == (tmp_path / "second" / name).read_bytes() for name in files)
    assert ocp.StandardCheckpointer().metadata(tmp_path / "first") is not None
    assert not caplog.records


def test_a_machine_without_the_library_is_told_what_to_install(saved, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "tensorstore", None)
    with pytest.raises(PortingError, match=r"needs tensorstore; install triglot\[jax\]"):
        orbax.read(saved[1])
    with pytest.raises(PortingError, match=r"cannot write .*needs tensorstore; install triglot\[jax\]"):
        orbax.write(tmp_path / "out", {})


@pytest.fixture(scope="module", params=[save_standard, save_in_folders])
def small(request, tmp_path_factory):
    """A folder with two arrays, one of them all zeros, as in Orbax's database and as files."""
    path = tmp_path_factory.mktemp("small") / "state"
    request.param(path, {"a": {"b": jnp.arange(6.0).reshape(2, 3)}, "c": jnp.zeros(4)})
    return path


def damaged(content):
    """Yield damaged contents of a file; None removes it."""
    yield None
    yield b""
    step = max(len(content) // 40, 1)
    for place in range(0, len(content), step):
        yield content[:place]
        yield content[:place] + bytes([content[place] ^ 1 << place % 8]) + content[place + 1 :]


def test_damaged_folders_are_refused_or_read(small, tmp_path):
    """Only numbers may differ: neither Zarr nor the smallest files of the database have checksums of them."""
    expected = orbax.read(small)
    outcomes = {"refused": 0, "read": 0}
    copy = shutil.copytree(small, tmp_path / "copy")
    for part in sorted(part for part in copy.rglob("*") if part.is_file()):
        content = part.read_bytes()
        for changed in damaged(content):
            part.unlink(missing_ok=True)
            if changed is not None:
                part.write_bytes(changed)
            try:
                found = orbax.read(copy)
            except PortingError as error:
                outcomes["refused"] += "\n" not in str(error)
                continue
            outcomes["read"] += 1
            if not {name: array.shape for name, array in found.items()} == {"a.b": (2, 3), "c": (4,)}:
                raise AssertionError(part, found)
        part.write_bytes(content)
    assert outcomes["refused"] > 100, outcomes
    assert all(np.array_equal(array, orbax.read(copy)[name]) for name, array in expected.items())


def test_a_missing_part_is_not_read_as_zeros(tmp_path):
    """As Zarr, and Orbax with it, would do."""
    path = tmp_path / "state"
    save_in_folders(path, {"a": jnp.ones((2, 3))})
    (path / "a" / "0.0").unlink()
    with pytest.raises(PortingError, match="the numbers of 'a' are missing; restore the folder"):
        orbax.read(path)


@pytest.mark.parametrize("name", ["..", "/", "", "a\\b"])
def test_names_do_not_lead_out_of_the_folder(name, tmp_path):
    save_in_folders(tmp_path / "state", {"a": jnp.ones(2)})
    path = tmp_path / "state" / "_METADATA"
    metadata = json.loads(path.read_text())
    metadata["tree_metadata"]["('a',)"]["key_metadata"][0]["key"] = name
    path.write_text(json.dumps(metadata))
    with pytest.raises(PortingError, match="is not the name of an array, because of the dots or slashes in it"):
        orbax.read(tmp_path / "state")


def test_an_array_that_is_listed_twice_is_refused(tmp_path):
    save_in_folders(tmp_path / "state", {"a": jnp.ones(2), "b": jnp.ones(2)})
    path = tmp_path / "state" / "_METADATA"
    metadata = json.loads(path.read_text())
    metadata["tree_metadata"]["('b',)"]["key_metadata"][0]["key"] = "a"
    path.write_text(json.dumps(metadata))
    with pytest.raises(PortingError, match="it lists an array twice; restore the folder"):
        orbax.read(tmp_path / "state")


TERABYTES = 1 << 40


@pytest.mark.parametrize(
    ("shape", "chunks"),
    [
        ([TERABYTES], [TERABYTES]),
        ([TERABYTES], [1]),
        ([6], [TERABYTES]),
        ([1 << 20], [1]),  # few bytes, but each chunk takes time
    ],
)
def test_arrays_that_the_files_cannot_hold_are_refused(shape, chunks, tmp_path):
    """TensorStore would end the process, because it lacks memory."""
    save_in_folders(tmp_path / "state", {"a": jnp.ones(6)})
    path = tmp_path / "state" / "a" / ".zarray"
    path.write_text(json.dumps({**json.loads(path.read_text()), "shape": shape, "chunks": chunks}))
    with pytest.raises(PortingError, match=r"its arrays need [\d,]+ bytes in [\d,]+ chunks, but its files have only"):
        orbax.read(tmp_path / "state")


def test_arrays_of_zeros_are_read(tmp_path):
    save_standard(tmp_path / "state", {"a": jnp.zeros((1000, 1000))})
    assert sum(part.stat().st_size for part in (tmp_path / "state").rglob("*")) < 50_000
    assert orbax.read(tmp_path / "state")["a"].shape == (1000, 1000)


GROWTH = """
from pathlib import Path
from triglot.shared.errors import PortingError
from triglot.shared.porting.containers import orbax

def peak():
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM"))

before = peak()
try:
    orbax.read(Path({path!r}))
except PortingError as error:
    print(peak() - before, error)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads the memory of a process in /proc")
def test_a_chunk_that_expands_to_gigabytes_needs_little_memory(tmp_path):
    save_in_folders(tmp_path / "state", {"a": jnp.ones(6)})
    block = 1 << 17  # of zstd: a header of three bytes, and the byte to repeat
    blocks = [(block << 3 | 1 << 1 | is_last).to_bytes(3, "little") + b"\0" for is_last in [0] * 16_383 + [1]]
    (tmp_path / "state" / "a" / "0").write_bytes(b"\x28\xb5\x2f\xfd\x00\x38" + b"".join(blocks))  # 2 GB
    code = GROWTH.format(path=str(tmp_path / "state"))
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    growth, _, message = result.stdout.partition(" ")
    assert "End of data expected" in message
    assert int(growth) < 32 << 10, "kilobytes"


LOADED = """
import sys
from triglot import port
port({path!r}, {target!r}, config={name!r}, target_dialect="nnx")
print(*sys.modules)
"""


def test_reading_and_writing_import_no_framework(saved, tmp_path):
    triglot.port(triglot.port(saved[1], config=NAME), tmp_path / "model.msgpack", target_dialect="nnx")
    for path in (tmp_path / "model.msgpack", saved[1]):
        code = LOADED.format(path=str(path), target=f"{path}-again.orbax", name=NAME)
        result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        assert not {"jax", "flax", "orbax"} & {name.split(".")[0] for name in result.stdout.split()}
        assert result.stderr == ""


def test_a_folder_of_steps_is_not_a_checkpoint(saved, tmp_path):
    shutil.copytree(saved[1], tmp_path / "steps" / "0" / "default")
    with pytest.raises(PortingError, match=r"holds no weights .* or give a file"):
        triglot.port(tmp_path / "steps", config=NAME)
    assert Path(saved[1], "_METADATA").is_file()
