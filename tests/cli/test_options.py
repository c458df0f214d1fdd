"""The options --config and --set, and others that take NAME=VALUE."""

import json
import re
from typing import Any

import pytest

from triglot.commands import options
from triglot.shared.errors import ConfigError
from triglot.shared.model.recipes import recipe

BERT = recipe("bert-base-tiny")
FIELDS = {"heads": 3, "activation": "gelu", "norm_eps": 1e-12, "masking": "exclude"}


@pytest.mark.parametrize("texts", [None, []])
def test_without_options_there_is_no_configuration(texts):
    assert options.configuration(None, texts) is None


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("layers=1", 1),
        ("layers=-1", -1),
        ("norm_eps=1e-5", 1e-5),
        ("norm_eps=0.5", 0.5),
        ("pad_id=null", None),
        ("tied_embeddings=true", True),
        ("tied_embeddings=false", False),
        ("activation=gelu_tanh", "gelu_tanh"),
        ('activation="gelu_tanh"', "gelu_tanh"),
        ('heads_on_top=["pooler","masked_lm"]', ["pooler", "masked_lm"]),
        ("heads_on_top=[]", []),
        ("pre_process=a=b", "a=b"),
        ('pre_process=""', ""),
        ("pre_process=[" + "[" * 100_000, "[" * 100_001),
    ],
    ids=lambda value: str(value)[:30],
)
def test_a_value_is_json_or_text(text, value):
    configuration: Any = options.configuration(None, [text])
    name = text.split("=")[0]
    assert configuration == {name: value}
    assert type(configuration[name]) is type(value)


@pytest.mark.parametrize("text", ["layers", "=1", "=", ""])
def test_a_text_without_name_and_value_is_refused(text):
    with pytest.raises(ConfigError, match=f"--set is {re.escape(repr(text))}; expected NAME=VALUE"):
        options.configuration(None, [text])
    with pytest.raises(ConfigError, match=f"--python is {re.escape(repr(text))}; expected NAME=VALUE"):
        options.name_value_pairs("--python", [text])


def test_a_repeated_name_is_refused():
    with pytest.raises(ConfigError, match="--set layers is given twice"):
        options.configuration(None, ["layers=1", "heads=3", "layers=1"])


def test_a_configuration_is_a_recipe_or_a_file_of_fields(tmp_path, monkeypatch):
    assert options.configuration("bert-base-tiny", None) == BERT.to_dict()
    assert options.configuration("bert-base-tiny", ["layers=1"]) == {**BERT.to_dict(), "layers": 1}
    path = tmp_path / "fields.json"
    path.write_text(json.dumps(FIELDS))
    assert options.configuration(str(path), ["heads=4"]) == {**FIELDS, "heads": 4}
    path.write_text(json.dumps({"config": FIELDS, "digest": "..."}))  # written by inspect --json
    assert options.configuration(str(path), None) == FIELDS
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bert-base").write_text("{}")
    assert options.configuration("bert-base", None) == recipe("bert-base").to_dict()
    assert options.configuration("./bert-base", None) == {}


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (None, "No such file.*or one of the recipes.*bert-base"),
        (b"", "it is not JSON.*or one of the recipes"),
        (b"heads: 3", "it is not JSON"),
        (b"\xff", "it is not JSON"),
        (b"[]", "it holds no JSON object"),
        (b'{"config": 3}', "it holds no JSON object"),
    ],
)
def test_another_file_is_refused(content, problem, tmp_path):
    path = tmp_path / "fields.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError, match=f"^{re.escape(f'cannot read {path}: ')}{problem}"):
        options.configuration(str(path), None)


def test_a_folder_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=f"^{re.escape(f'cannot read {tmp_path}: Is a directory')}"):
        options.configuration(str(tmp_path), None)
