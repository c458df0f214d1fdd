"""Weights in several files with an index, as transformers stores large models."""

import json
import os
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from triglot import port
from triglot.shared.errors import PortingError
from triglot.shared.model.recipes import recipe

INDEX = "model.safetensors.index.json"


@pytest.fixture
def sharded(tmp_path):
    """A model of transformers in three shards or more, its folder, and the digest of the same model in one file."""
    import torch
    import transformers

    torch.manual_seed(0)
    sizes: dict[str, Any] = {"vocab_size": 61, "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3}
    model = transformers.BertForMaskedLM(transformers.BertConfig(**sizes, intermediate_size=40))
    model.save_pretrained(tmp_path / "one")
    model.save_pretrained(tmp_path / "sharded", max_shard_size="30KB")
    assert len(list((tmp_path / "sharded").glob("*.safetensors"))) > 2
    return tmp_path / "sharded", port(tmp_path / "one").digest


def test_a_sharded_folder_is_the_same_model(sharded):
    folder, digest = sharded
    assert port(folder).digest == digest


def test_an_index_alone_can_be_ported(sharded):
    folder, digest = sharded
    whole = port(folder)
    assert port(folder / INDEX, config=whole.config).digest == digest


def test_shards_of_pytorch_are_read(sharded):
    import torch

    folder, digest = sharded
    index = json.loads((folder / INDEX).read_text())
    for path in folder.glob("*.safetensors"):
        tensors = {name: torch.from_numpy(array) for name, array in load_file(path).items()}
        torch.save(tensors, folder / path.name.replace("model", "pytorch_model").replace(".safetensors", ".bin"))
        path.unlink()
    for name, shard in index["weight_map"].items():
        index["weight_map"][name] = shard.replace("model", "pytorch_model").replace(".safetensors", ".bin")
    (folder / "pytorch_model.bin.index.json").write_text(json.dumps(index))
    (folder / INDEX).unlink()
    assert port(folder).digest == digest


def test_shards_may_be_links_as_in_the_cache_of_a_hub(sharded, tmp_path):
    folder, digest = sharded
    for path in list(folder.glob("*.safetensors")):
        path.rename(tmp_path / path.name)
        path.symlink_to(tmp_path / path.name)
    assert port(folder).digest == digest


def first_shard(folder):
    return min(folder.glob("*.safetensors"))


def rewrite(folder, change):
    path = folder / INDEX
    index = json.loads(path.read_text())
    change(index["weight_map"])
    path.write_text(json.dumps(index))


def a_missing_shard(folder):
    first_shard(folder).unlink()


def a_missing_tensor(folder):
    tensors = load_file(first_shard(folder))
    tensors.pop(min(tensors))
    save_file(tensors, first_shard(folder))


def a_repeated_tensor(folder):
    tensors = load_file(first_shard(folder))
    tensors["bert.pooler.dense.bias"] = np.zeros(24, np.float32)
    save_file(tensors, first_shard(folder))


def a_moved_tensor(folder):
    first, second = (path.name for path in sorted(folder.glob("*.safetensors"))[:2])

    def change(weight_map):
        moved = min(name for name, shard in weight_map.items() if shard == first)
        weight_map[moved] = second

    rewrite(folder, change)


def a_name_that_occurs_twice(folder):
    path = folder / INDEX
    path.write_text(path.read_text().replace('"weight_map": {', '"weight_map": {"bert.a": "x", "bert.a": "y",'))


def a_truncated_shard(folder):
    os.truncate(first_shard(folder), first_shard(folder).stat().st_size - 1)


FAULTS = {
    a_missing_shard: r"safetensors' is missing in .*, but model\.safetensors\.index\.json lists it",
    a_missing_tensor: r"does not match model\.safetensors\.index\.json: '.*' is missing",
    a_repeated_tensor: r"does not match .*: 'bert\.pooler\.dense\.bias' is not in the index",
    a_moved_tensor: r"does not match .*: '.*' is (missing|not in the index)",
    a_name_that_occurs_twice: r"cannot read .*index\.json: 'bert\.a' occurs twice",
    a_truncated_shard: r"cannot read .*00001-of.*restore the file",
}


@pytest.mark.parametrize("fault", FAULTS)
def test_damaged_shards_are_refused(fault, sharded, tmp_path):
    folder, _ = sharded
    fault(folder)
    with pytest.raises(PortingError, match=FAULTS[fault]):
        port(folder, tmp_path / "model.npz")
    assert not (tmp_path / "model.npz").exists()


@pytest.mark.parametrize("name", ["../secret.safetensors", "/etc/passwd", "..", "", "a\\b", "C:x", 3, None, ["a"]])
def test_a_shard_outside_the_folder_is_refused(name, sharded, tmp_path):
    folder, _ = sharded
    save_file({"a": np.zeros(1, np.float32)}, tmp_path / "secret.safetensors")
    rewrite(folder, lambda weight_map: weight_map.update({"a": name}))
    with pytest.raises(PortingError, match="is not the name of a file beside it"):
        port(folder)


@pytest.mark.parametrize("name", ["x" * 5000, "\ud800", "none.safetensors"])
def test_a_shard_that_no_folder_can_have_is_missing(name, sharded):
    folder, _ = sharded
    rewrite(folder, lambda weight_map: weight_map.update({"a": name}))
    with pytest.raises(PortingError, match=r"is missing in .*, but ") as refused:
        port(folder)
    assert str(refused.value).encode()
    assert len(str(refused.value)) < 500


def test_many_repeated_keys_are_found_at_once(sharded):
    folder, _ = sharded
    keys = ", ".join(f'"{number}": 0' for number in [*range(200_000), 199_999])
    (folder / INDEX).write_text(f"{{{keys}}}")
    with pytest.raises(PortingError, match="'199999' occurs twice"):
        port(folder)


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"weight_map": []}', '{"weight_map": {}}', "[" * 100_000])
def test_an_index_without_a_map_is_refused(content, sharded):
    folder, _ = sharded
    (folder / INDEX).write_text(content)
    with pytest.raises(PortingError, match=r"cannot read .*index\.json"):
        port(folder)


@pytest.mark.parametrize("head", ["masked_lm", "pooler"])
def test_transformers_loads_the_shards_that_are_written(head, make_checkpoint, tmp_path):
    import torch
    import transformers

    checkpoint = make_checkpoint(replace(recipe("bert-base-tiny"), heads_on_top=(head,)))
    port(checkpoint, tmp_path / "sharded", target_dialect="huggingface", shard_size=20_000)
    port(checkpoint, tmp_path / "single", target_dialect="huggingface", shard_size="1MB")
    assert sorted(os.listdir(tmp_path / "single")) == ["config.json", "model.safetensors"]
    index = json.loads((tmp_path / "sharded" / INDEX).read_text())
    names = sorted(path.name for path in (tmp_path / "sharded").glob("*.safetensors"))
    assert names == [f"model-{number:05}-of-{len(names):05}.safetensors" for number in range(1, len(names) + 1)]
    assert len(names) > 2
    assert sorted(set(index["weight_map"].values())) == names
    assert index["metadata"]["total_size"] == sum(
        tensor.nbytes for name in names for tensor in load_file(tmp_path / "sharded" / name).values()
    )
    loaded = transformers.AutoModelForMaskedLM if head == "masked_lm" else transformers.AutoModel
    sharded, single = (loaded.from_pretrained(tmp_path / name).state_dict() for name in ("sharded", "single"))
    assert sharded.keys() == single.keys() >= index["weight_map"].keys()
    for name, tensor in single.items():
        torch.testing.assert_close(sharded[name], tensor, rtol=0, atol=0)
    assert port(tmp_path / "sharded").digest == checkpoint.digest
