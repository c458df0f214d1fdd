"""A neutral checkpoint in several files is the same checkpoint, and a damaged folder is refused."""

import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from refusals import assert_refused, run_process

import triglot
from triglot.shared import files
from triglot.shared.arrays import BFLOAT16
from triglot.shared.checkpoint import Checkpoint, shards
from triglot.shared.errors import CheckpointError, InputError, OutputError
from triglot.shared.model.recipes import recipe
from triglot.shared.training.plan import History, Moments, Plan, Training

LIMIT = 20_000  # bytes; the tiny model has 52 kB, and its largest tensor 10 kB


@pytest.fixture
def checkpoint(make_checkpoint):
    return make_checkpoint(recipe("bert-base-tiny"))


@pytest.fixture
def folder(checkpoint, tmp_path):
    triglot.save(checkpoint, tmp_path / "model", shard_size=LIMIT)
    return tmp_path / "model"


def parts(folder):
    return sorted(folder.glob("part-*.npz"))


def test_numpy_reads_the_parts(folder, checkpoint):
    index = json.loads((folder / "index.json").read_text())
    assert [path.name for path in parts(folder)] == list(index["parts"])
    assert len(parts(folder)) > 2
    tensors = {}
    for path in parts(folder):
        with np.load(path) as part:
            assert part.files == index["parts"][path.name]["tensors"]
            assert sum(part[name].nbytes for name in part.files) <= LIMIT
            tensors |= {name: part[name] for name in part.files}
    assert list(tensors) == sorted(checkpoint.tensors)
    for name, tensor in tensors.items():
        np.testing.assert_array_equal(tensor, checkpoint.tensors[name])


@pytest.mark.parametrize("verify", ["open", "touched", "full"])
def test_the_digest_is_that_of_the_single_file(verify, folder, checkpoint, tmp_path):
    triglot.save(checkpoint, tmp_path / "single.npz")
    single, sharded = (triglot.load(path, verify) for path in (tmp_path / "single.npz", folder))
    assert sharded.digest == single.digest == checkpoint.digest
    assert sharded.config == single.config
    manifest = json.loads(np.load(tmp_path / "single.npz")["manifest.json"])
    index = json.loads((folder / "index.json").read_text())
    assert {**manifest, "schema": index["schema"], "parts": index["parts"]} == index


def test_a_folder_keeps_what_a_file_keeps(make_checkpoint, tmp_path):
    config = replace(recipe("bert-base-tiny"), heads_on_top=("masked_lm",), tied_embeddings=True)
    plain = make_checkpoint(config)
    tensors = {name: tensor.astype(BFLOAT16) for name, tensor in plain.tensors.items()}
    moments = {name: np.ones(tensor.shape, np.float32) for name, tensor in plain.tensors.items()}
    history = History(np.zeros(3, np.float32), np.ones(3, np.float32))
    training = Training(Plan(), Moments(3, moments, moments), history)
    original = Checkpoint(config, tensors, {"embeddings.token.weight": "table"}, training)
    triglot.save(original, tmp_path / "model", shard_size="10KB")
    again = triglot.load(tmp_path / "model")
    assert (again.digest, again.source_names) == (original.digest, original.source_names)
    assert again.training is not None
    np.testing.assert_array_equal(again.training.history.accuracy, history.accuracy)
    assert again.training.moments.first.keys() == moments.keys()
    triglot.save(original, tmp_path / "single.npz")
    triglot.save(again, tmp_path / "again.npz")
    assert (tmp_path / "single.npz").read_bytes() == (tmp_path / "again.npz").read_bytes()


def test_a_tensor_that_is_too_large_has_a_part_of_its_own(checkpoint, tmp_path):
    triglot.save(checkpoint, tmp_path / "model", shard_size=1)
    assert len(parts(tmp_path / "model")) == len(checkpoint.tensors)
    assert triglot.load(tmp_path / "model").digest == checkpoint.digest


@pytest.mark.parametrize(
    ("sizes", "groups"),
    [
        ([4, 4, 2], [[0, 1], [2]]),
        ([3, 5, 3, 6], [[0, 1], [2], [3]]),
        ([9, 1, 9], [[0], [1], [2]]),
        ([0, 8, 0], [[0, 1, 2]]),
    ],
)
def test_groups_are_filled_in_order(sizes, groups):
    assert shards.split({str(n): size for n, size in enumerate(sizes)}, 8) == [[str(n) for n in g] for g in groups]


@pytest.mark.parametrize(
    ("text", "expected"),
    [(7, 7), ("7", 7), ("2GB", 2 * 10**9), ("2GiB", 2**31), ("3 kB", 3000), ("3KB", 3000), ("1TiB", 2**40)],
)
def test_sizes_are_decimal_or_binary(text, expected):
    assert shards.parse_size(text) == expected


@pytest.mark.parametrize(
    "wrong", [0, "0MB", -1, "2gb", "2G", "1.5GB", "", "GB", True, 1.0, "9" * 16, "\N{ARABIC-INDIC DIGIT THREE}GB"]
)
def test_other_sizes_are_refused(wrong, checkpoint, tmp_path):
    with pytest.raises(InputError, match=r"shard_size is .*; expected a number of bytes, 1 or more, such as '2GB'"):
        triglot.save(checkpoint, tmp_path / "model", shard_size=wrong)
    assert os.listdir(tmp_path) == []


# Damage. Each function changes a folder of more than two parts.


def a_missing_part(folder):
    parts(folder)[1].unlink()


def an_extra_part(folder):
    shutil.copy(parts(folder)[0], folder / "part-00009.npz")


def a_renamed_part(folder):
    parts(folder)[1].rename(folder / "part-2.npz")


def exchanged_parts(folder):
    first, second = parts(folder)[:2]
    first.rename(folder / "x")
    second.rename(first)
    (folder / "x").rename(second)


def a_repeated_part(folder):
    shutil.copy(parts(folder)[0], parts(folder)[1])


def a_shortened_part(folder):
    os.truncate(parts(folder)[0], parts(folder)[0].stat().st_size - 1)


def an_altered_part(folder):
    """A number changes. Only the checksum shows it, when the tensor is read."""
    content = bytearray(parts(folder)[0].read_bytes())
    content[content.index(b"\n", 100) + 20] ^= 1
    parts(folder)[0].write_bytes(content)


def a_part_of_another_model(folder):
    changed = triglot.load(folder)
    tensors = {name: tensor + 1 for name, tensor in changed.tensors.items()}
    triglot.save(Checkpoint(changed.config, tensors), folder.parent / "other", shard_size=LIMIT)
    shutil.copy(parts(folder.parent / "other")[0], parts(folder)[0])
    shutil.rmtree(folder.parent / "other")


def no_index(folder):
    (folder / "index.json").unlink()


def an_index_that_is_cut_off(folder):
    os.truncate(folder / "index.json", 300)


def an_index_that_is_too_long(folder):
    with (folder / "index.json").open("ab") as file:
        file.write(b" " * (1 << 23))


def index_with(change):
    def damage(folder):
        fields = json.loads((folder / "index.json").read_text())
        change(fields)
        (folder / "index.json").write_text(json.dumps(fields))

    return damage


def move_a_tensor(fields):
    first, second = list(fields["parts"].values())[:2]
    second["tensors"].insert(0, first["tensors"].pop())


def repeat_a_tensor(fields):
    first, second = list(fields["parts"].values())[:2]
    second["tensors"].insert(0, first["tensors"][-1])


def set_part(field, value):
    return lambda fields: fields["parts"]["part-00001.npz"].update({field: value})


FAULTS = [
    (a_missing_part, r"model: part-00002\.npz is missing; restore the folder"),
    (an_extra_part, r"'part-00009\.npz' is not in index\.json"),
    (a_renamed_part, r"part-00002\.npz is missing, 'part-2\.npz' is not in index\.json"),
    (exchanged_parts, r"part-00001\.npz: it is not the file that index\.json lists"),
    (a_repeated_part, r"part-00002\.npz: it is not the file that index\.json lists"),
    (a_shortened_part, r"part-00001\.npz: it is cut off"),
    (an_altered_part, r"part-00001\.npz: the checksum of .* is wrong"),
    (a_part_of_another_model, r"part-00001\.npz: the checksum of .* is wrong"),
    (no_index, "holds no weights that Triglot recognises"),
    (an_index_that_is_cut_off, r"index\.json: index\.json is damaged"),
    (an_index_that_is_too_long, r"index\.json: it has more than 8388608 bytes"),
    (index_with(lambda fields: fields.update(schema="triglot.shards/2")), "its schema is 'triglot.shards/2'"),
    (index_with(lambda fields: fields["config"].update(heads=1)), r"index\.json was changed: its digest is wrong"),
    (index_with(lambda fields: fields.update(more=1)), r"index\.json is damaged"),
    (index_with(lambda fields: fields.pop("parts")), "it lists no parts"),
    (index_with(lambda fields: fields["parts"].update({"part-1.npz": {}})), r"its entry of part \d is damaged"),
    (index_with(lambda fields: fields["parts"].update({"../part-1.npz": {}})), r"its entry of part \d is damaged"),
    (index_with(set_part("bytes", True)), "its entry of part 1 is damaged"),
    (index_with(set_part("bytes", 7)), r"part-00001\.npz: it is not the file that index\.json lists"),
    (index_with(set_part("more", 7)), "its entry of part 1 is damaged"),
    (index_with(set_part("tensors", 7)), r"its list of the tensors in part-00001\.npz is damaged"),
    (index_with(set_part("tensors", [7])), r"its list of the tensors in part-00001\.npz is damaged"),
    (index_with(move_a_tensor), r"part-00001\.npz: it is not the file that index\.json lists"),
    (index_with(repeat_a_tensor), "its parts do not list each tensor once, in order"),
]


@pytest.mark.parametrize(("fault", "problem"), FAULTS)
def test_a_damaged_folder_is_refused_before_anything_is_written(fault, problem, folder, tmp_path):
    fault(folder)
    with pytest.raises(triglot.TriglotError, match=f"^cannot read .*{problem}|^.*{problem}"):
        triglot.port(folder, tmp_path / "copy", shard_size=LIMIT)
    with pytest.raises(CheckpointError):
        triglot.load(folder, "full")
    assert os.listdir(tmp_path) == ["model"]


def test_a_folder_that_is_not_a_checkpoint_is_refused(tmp_path):
    with pytest.raises(CheckpointError, match=r"index\.json is missing, so .* is not a neutral checkpoint; .*port"):
        triglot.load(tmp_path)


# Writing.


def test_a_folder_with_files_is_never_replaced(folder, checkpoint):
    before = (folder / "index.json").stat().st_mtime_ns
    with pytest.raises(OutputError, match="model: it already exists; remove it"):
        triglot.save(checkpoint, folder, shard_size=LIMIT)
    assert (folder / "index.json").stat().st_mtime_ns == before


def test_a_folder_cannot_have_the_suffix_of_a_file(checkpoint, tmp_path):
    with pytest.raises(OutputError, match=r"become a folder, but \.npz is the suffix of a file; choose"):
        triglot.save(checkpoint, tmp_path / "model.npz", shard_size=LIMIT)
    assert not any(tmp_path.iterdir())


def test_a_folder_that_appears_while_it_is_written_is_not_replaced(checkpoint, tmp_path):
    target = tmp_path / "model"
    writing = files.writing_folder(target)
    (writing.__enter__() / "ours").touch()
    target.mkdir()
    (target / "theirs").touch()
    with pytest.raises(OutputError, match=r"cannot write .*model: Directory not empty"):
        writing.__exit__(None, None, None)
    assert os.listdir(tmp_path) == ["model"]
    assert os.listdir(target) == ["theirs"]


@pytest.mark.parametrize("failure", [KeyboardInterrupt, OSError(28, "No space left on device")])
def test_an_interrupted_write_leaves_nothing(failure, checkpoint, tmp_path, monkeypatch):
    write_array = shards.npz.Writer.write_array

    def fail_later(writer, name, array):
        if name == max(checkpoint.tensors):
            raise failure
        write_array(writer, name, array)

    monkeypatch.setattr(shards.npz.Writer, "write_array", fail_later)
    with pytest.raises((KeyboardInterrupt, OutputError)):
        triglot.save(checkpoint, tmp_path / "model", shard_size=LIMIT)
    assert os.listdir(tmp_path) == []


def test_the_commands_take_a_folder(folder, checkpoint, tmp_path):
    code, out, err = run_process("port", folder, tmp_path / "again", "--shard-size", "30KB")
    assert (code, err) == (0, "")
    assert "read as neutral, because it has index.json" in " ".join(out.split())
    assert checkpoint.digest in out
    assert len(parts(tmp_path / "again")) < len(parts(folder))
    code, out, err = run_process("inspect", tmp_path / "again", "--json", "-")
    assert (code, err) == (0, "")
    assert json.loads(out)["digest"] == checkpoint.digest
    assert_refused(run_process("port", folder, tmp_path / "x", "--shard-size", "2G"), "shard_size is '2G'; expected")
    options = ("--target-dialect", "torch", "--shard-size", "1MB")
    refused = run_process("port", folder, tmp_path / "x.pt", *options)
    assert_refused(refused, "the dialect torch writes one file; omit .*--shard-size")


# Opens a folder of more parts than files may be open.
OPEN_MANY = """
import resource, sys
import triglot
resource.setrlimit(resource.RLIMIT_NOFILE, (32, 32))
triglot.load(sys.argv[1])
"""


def test_many_parts_need_no_open_files_or_an_error_says_so(checkpoint, tmp_path):
    triglot.save(checkpoint, tmp_path / "model", shard_size=1)
    assert len(parts(tmp_path / "model")) > 32
    command = [sys.executable, "-c", OPEN_MANY, tmp_path / "model"]
    result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    if sys.version_info >= (3, 13):
        assert (result.returncode, result.stderr) == (0, "")
    else:
        assert re.search(
            r"CheckpointError: cannot read .*: Too many open files \(raise the limit \(ulimit", result.stderr
        )
