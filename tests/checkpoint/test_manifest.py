"""Manifests are parsed strictly: anything that another reader could understand differently is refused."""

import contextlib
import json
import re
from dataclasses import replace

import pytest
from checkpoint_files import (
    LEVELS,
    STORED,
    assert_same,
    edit_manifest,
    read_members,
    seal,
    tied,
    write_members,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from triglot.shared import checkpoint
from triglot.shared.checkpoint import Checkpoint
from triglot.shared.errors import CheckpointError
from triglot.shared.model import schema
from triglot.shared.model.recipes import recipe

BIAS = "heads.pooler.bias"
DAMAGED = r"manifest\.json is damaged"
DISAGREE = r"manifest\.json and the tensor .* disagree"
ALIASES = r"aliases in manifest\.json are not those of its configuration"


@pytest.fixture
def original():
    return tied()


@pytest.fixture
def path(original, tmp_path):
    """A file with an alias in its manifest."""
    checkpoint.save(original, tmp_path / "model.npz")
    return tmp_path / "model.npz"


def assert_refused(path, problem):
    for level in LEVELS:
        with pytest.raises(CheckpointError, match=f"(?s)^{re.escape(f'cannot read {path}: ')}.*{problem}"):
            checkpoint.load(path, level)


def test_an_edit_without_changes_is_accepted(original, path):
    """So the edits below are refused for their changes, not for being rewritten."""
    edit_manifest(path, lambda manifest: None)
    assert_same(checkpoint.load(path, "full"), original)


UNSEALED = {
    "epsilon": lambda manifest: manifest["config"].update(norm_eps=1e-5),
    "activation": lambda manifest: manifest["config"].update(activation="gelu_tanh"),
    "checksum": lambda manifest: manifest["tensors"][BIAS].update(sha256="0" * 64),
    "digest": lambda manifest: manifest.update(digest="0" * 64),
}


@pytest.mark.parametrize("change", UNSEALED)
def test_a_wrong_digest_is_refused(change, path):
    manifest, members = read_members(path)
    UNSEALED[change](manifest)
    write_members(path, manifest, members)
    assert_refused(path, r"manifest\.json was changed: its digest is wrong")


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"\xff\xfe\xfd", b"null", b"[]", b'"schema"', b"{}", b'{"schema": "triglot.checkpoint/1"}'],
)
def test_other_content_is_refused(content, path):
    write_members(path, content, read_members(path)[1])
    assert_refused(path, DAMAGED)


def entry(**changes):
    return lambda manifest: manifest["tensors"][STORED].update(changes)


def alias(**changes):
    return lambda manifest: manifest["tensors"][schema.MASKED_LM_TABLE].update(changes)


def config(**changes):
    return lambda manifest: manifest["config"].update(changes)


def tensors(**changes):
    return lambda manifest: manifest["tensors"].update({name.replace("_", "."): new for name, new in changes.items()})


EXTRA = {"sha256": "0" * 64, "shape": [1], "dtype": "float32", "axes": []}
# Each change with the right digest, and what the refusal says.
EDITS = {
    "newer schema": (lambda m: m.update(schema="triglot.checkpoint/2"), "schema is .*/2', expected .*/1'; update"),
    **{f"no {name}": (lambda m, name=name: m.pop(name), DAMAGED) for name in ("schema", "config", "tensors")},
    "another field": (lambda m: m.update(comment=""), DAMAGED),
    **{
        f"tensors {value!r}": (lambda m, value=value: m.update(tensors=value), DAMAGED)
        for value in (None, [], "abc", {BIAS: None}, {BIAS: []})
    },
    **{
        f"tensor without {name}": (lambda m, name=name: m["tensors"][BIAS].pop(name), DAMAGED)
        for name in ("sha256", "shape", "dtype", "axes")
    },
    "tensor with another field": (entry(comment=""), DAMAGED),
    "source that is a number": (entry(source=3), DAMAGED),
    "source that is null": (entry(source=None), DAMAGED),
    "short sha256": (entry(sha256="0" * 63), DAMAGED),
    "sha256 that is not hexadecimal": (entry(sha256="G" * 64), DAMAGED),
    "sha256 that is a number": (entry(sha256=0), DAMAGED),
    "other sha256": (lambda m: m["tensors"][BIAS].update(sha256="0" * 64), None),  # noticed when it is verified
    "shape of floats": (entry(shape=[24.0, 24.0]), DAMAGED),
    "shape that is a number": (lambda m: m["tensors"][BIAS].update(shape=24), DAMAGED),
    "other size": (lambda m: m["tensors"][BIAS].update(shape=[23]), DISAGREE),
    "other rank": (lambda m: m["tensors"][BIAS].update(shape=[24, 1]), DISAGREE),
    "other dtype": (entry(dtype="float64"), DISAGREE),
    "other axes": (lambda m: m["tensors"][BIAS].update(axes=["head"]), DISAGREE),
    "missing entry": (lambda m: m["tensors"].pop(BIAS), DISAGREE),
    "additional entry": (tensors(other=EXTRA), r"manifest\.json names tensors that the file does not have"),
    "dropout that is an integer": (config(embedding_dropout=0), "digest is wrong"),
    "epsilon that is text": (config(norm_eps="1e-12"), "norm_eps"),
    "layers without end": (config(layers=10**400), "layers"),
    "more layers": (config(layers=9), "tensors cannot be 9 layers"),
    "fewer layers": (config(layers=1), r"unexpected encoder\.layers\.1\.attention\.key\.bias"),
    "huge hidden size": (config(hidden_size=2**62), "hidden_size|has shape"),
    "missing alias": (lambda m: m["tensors"].pop(schema.MASKED_LM_TABLE), ALIASES),
    "alias of itself": (alias(alias=schema.MASKED_LM_TABLE), ALIASES),
    "alias of another tensor": (alias(alias="heads.pooler.weight"), ALIASES),
    "alias of nothing": (alias(alias="nothing"), ALIASES),
    "alias null": (alias(alias=None), DAMAGED),
    "alias that is a list": (alias(alias=[schema.TOKEN_TABLE]), DAMAGED),
    "alias with other fields": (alias(**EXTRA), DAMAGED),
    "additional alias": (tensors(other={"alias": schema.TOKEN_TABLE}), ALIASES),
    "aliases in a circle": (tensors(embeddings_token_weight={"alias": schema.MASKED_LM_TABLE}), ALIASES),
    "alias in place of the tensor": (tensors(embeddings_token_weight={"alias": schema.TOKEN_TABLE}), ALIASES),
    "alias without a tie": (
        config(tied_embeddings=False),
        rf"{ALIASES}|missing {re.escape(schema.MASKED_LM_TABLE)}",
    ),
    "integers": (
        lambda m: [e.update(dtype="uint16") for e in m["tensors"].values() if "dtype" in e],
        f"{DISAGREE}|has dtype uint16",
    ),
}


@pytest.mark.parametrize("name", EDITS)
def test_a_changed_manifest_is_refused(name, path):
    change, problem = EDITS[name]
    edit_manifest(path, change)
    if problem is None:
        with pytest.raises(CheckpointError, match=rf"the checksum of {re.escape(BIAS)} is wrong"):
            checkpoint.load(path, "full")
    else:
        assert_refused(path, problem)


@pytest.mark.parametrize(
    ("stored", "stated"),
    [
        *(("float32", "bfloat16"), ("float16", "bfloat16"), ("float64", "bfloat16"), ("bfloat16", "float16")),
        *(("bfloat16", "float32"), ("bfloat16", "uint16"), ("float16", "uint16"), ("float16", "float32")),
        *(("bfloat16", "bfloat17"), ("bfloat16", None), ("bfloat16", ["bfloat16"])),
    ],
)
def test_another_number_format_is_refused(stored, stated, tmp_path):
    path = tmp_path / "model.npz"
    checkpoint.save(tied(stored), path)
    edit_manifest(path, entry(dtype=stated))
    assert_refused(path, f"{DISAGREE}|{DAMAGED}|{STORED} has dtype uint16, expected one of float64")


def test_a_missing_manifest_is_refused_with_advice_to_port_it(path):
    write_members(path, None, read_members(path)[1])
    assert_refused(path, r"manifest\.json is missing.*or port the file first \(triglot port\)")


def test_other_members_than_the_tensors_in_order_are_refused(path):
    manifest, members = read_members(path)
    table, bias = members[f"{schema.TOKEN_TABLE}.npy"], members.pop(f"{BIAS}.npy")
    write_members(path, manifest, {**members, f"{BIAS}.npy": bias})
    assert_refused(path, "its members are not its tensors in order")
    write_members(path, manifest, {**members, f"{schema.MASKED_LM_TABLE}.npy": table})
    assert_refused(path, rf"unexpected {re.escape(schema.MASKED_LM_TABLE)}")
    write_members(path, manifest, {**members, "heads.pooler.weight.npy": bias, "heads.other.bias.npy": bias})
    with pytest.raises(CheckpointError) as error:
        checkpoint.load(path)
    for problem in (
        f"missing {BIAS} (24,)",
        "unexpected heads.other.bias",
        "heads.pooler.weight has shape (24,), expected (24, 24)",
    ):
        assert problem in str(error.value)


@pytest.mark.parametrize("field", ["layers", "decoder_layers"])
def test_a_billion_layers_are_refused_before_their_names_are_generated(field, make_checkpoint, tmp_path):
    path, billion = tmp_path / "model.npz", replace(recipe("translation-tiny"), **{field: 10**9})
    checkpoint.save(make_checkpoint("translation-tiny"), path)
    edit_manifest(path, lambda manifest: manifest.update(config=billion.to_dict()))
    assert_refused(path, r"its \d+ tensors cannot be 100000000\d layers")
    with pytest.raises(CheckpointError, match=r"\d+ tensors cannot hold 100000000\d layers"):
        Checkpoint(billion, {})


def test_a_configuration_without_newer_fields_is_accepted(make_checkpoint, tmp_path):
    """Fields that have a default may be missing, and the digest does not cover fields at their default."""
    original, path = make_checkpoint("bert-base-tiny"), tmp_path / "model.npz"
    checkpoint.save(original, path)
    edit_manifest(path, lambda manifest: manifest["config"].pop("tied_embeddings"))
    assert_same(checkpoint.load(path, "full"), original)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'{"schema": ', b'{"schema": "triglot.checkpoint/1", "schema": '),
        (b'"heads.pooler.bias": ', b'"heads.pooler.bias": {}, "heads.pooler.bias": '),
        (b'"embedding_dropout": 0.1', b'"embedding_dropout": NaN'),
        (b'"masking_value": null', b'"masking_value": -Infinity'),
        (b'"schema"', '"schéma"'.encode()),
        (b'{"schema": ', b'{"schema": ' + b"[" * 10**5),
        (b'{"schema": ', b'{"schema": ' + b"9" * 10**5 + b', "other": '),
        (b'{"schema": ', b'{"other": [' + b"{}," * 10**4 + b'0], "schema": '),
        (b"}}}", b"}}}" + b" " * 2**23),
    ],
    ids=["field twice", "tensor twice", "nan", "infinity", "not ascii", "deep", "long number", "many objects", "large"],
)
def test_ambiguous_or_expensive_json_is_refused(old, new, path):
    manifest, members = read_members(path)
    content = json.dumps(manifest).encode()
    assert content.count(old) == 1
    write_members(path, content.replace(old, new), members)
    assert_refused(path, rf"{DAMAGED}|manifest\.json has more than 8388608 bytes")


JSON_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(
        [schema.TOKEN_TABLE, schema.MASKED_LM_TABLE, "bfloat16", "uint16", "0" * 64, 24, 2, 0, -1, 1e-12]
    ),
    lambda values: st.lists(values, max_size=3) | st.dictionaries(st.text(max_size=6), values, max_size=3),
    max_leaves=6,
)


def places(value, path=()):
    """The path to every part of a JSON value, including itself."""
    yield path
    for key, part in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield from places(part, (*path, key))


def mutate(manifest, draw):
    """Replace, remove, rename or exchange one part of a manifest."""
    *path, last = draw(st.sampled_from([place for place in places(manifest) if place]))
    parent = manifest
    for key in path:
        parent = parent[key]
    action = draw(st.sampled_from(["replace", "replace", "remove", "rename", "swap"]))
    if action == "replace":
        parent[last] = draw(JSON_VALUES)
    elif action == "remove":
        del parent[last]
    elif action == "rename" and isinstance(parent, dict):
        parent[draw(st.text(max_size=5) | st.sampled_from(["alias", "source", "dtype", STORED]))] = parent.pop(last)
    else:
        other = draw(st.sampled_from(list(parent) if isinstance(parent, dict) else range(len(parent))))
        parent[last], parent[other] = parent[other], parent[last]


@pytest.fixture(scope="module")
def sample(tmp_path_factory):
    """A file with an alias, source names and bfloat16, and its checkpoint."""
    path = tmp_path_factory.mktemp("sample") / "model.npz"
    half = tied("bfloat16")
    original = Checkpoint(half.config, half.tensors, {STORED: "query", schema.MASKED_LM_TABLE: "decoder"})
    checkpoint.save(original, path)
    return path, original


@given(data=st.data())
@settings(deadline=None, max_examples=300)
def test_a_mutated_manifest_is_refused_or_describes_the_same_tensors(data, sample):
    path, original = sample
    manifest, members = read_members(path)
    for _ in range(data.draw(st.integers(1, 3))):
        mutate(manifest, data.draw)
    if data.draw(st.booleans()):
        seal(manifest)
    mutant = path.with_name("mutant.npz")
    mutant.unlink(missing_ok=True)
    write_members(mutant, json.dumps(manifest).encode(), members)
    with contextlib.suppress(CheckpointError):
        loaded = checkpoint.load(mutant, "full")
        # Accepted: the original, or a configuration that differs where the tensors do not show it.
        assert loaded.digest == manifest["digest"]
        assert loaded.tensors.keys() == original.tensors.keys()
        if loaded.config == original.config:
            assert loaded.digest == original.digest
