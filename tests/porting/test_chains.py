"""Chains of ports: whatever dialects a model passes through, it comes back bit for bit.

Models are drawn at random, with square matrices, so that no shape shows a forgotten or needless transpose.
"""

import random
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from triglot import port
from triglot.parity.audit.wild import wild_config
from triglot.shared.arrays import FLOATS
from triglot.shared.checkpoint import Checkpoint, TextSettings
from triglot.shared.errors import PortingError
from triglot.shared.model.config import DenseLayer, ModelConfig
from triglot.shared.model.initializers import initialize, perturb
from triglot.shared.model.recipes import recipe
from triglot.shared.porting.dialects import DIALECTS

SUFFIXES = (".pt", ".safetensors", ".pdparams", ".msgpack", ".npz")
FOLDERS = ("huggingface", "huggingface-flax", "paddlenlp", "sentence-transformers")
ARTICLES = {name: name.removeprefix("article-") for name in DIALECTS if name.startswith("article-")}
FAMILIES = ("wild", "bert", "sentence", "stock", *ARTICLES)
HEADS = (
    ("pooler",),
    ("masked_lm",),
    ("pooler", "masked_lm", "next_sentence"),
    ("pooler", "sequence_classifier"),
    ("token_classifier",),
    (),
)


def drawn_config(family: str, seed: int) -> ModelConfig:
    """Return a small model of a family: one that every dialect of the family can express, unless it is wild."""
    generator = random.Random(seed)
    if family == "wild":
        config = wild_config(seed)
        return replace(config, layers=min(config.layers, 2), decoder_layers=min(config.decoder_layers, 2))
    heads = generator.randint(1, 3)
    size = generator.randint(2, 5)
    sizes: dict[str, Any] = {
        "heads": heads,
        "hidden_size": heads * size,
        "key_size": size,
        "value_size": size,
    }
    if family == "bert":
        tops = generator.choice(HEADS)
        adds = generator.choice((True, False))  # PaddleNLP adds a value to masked scores
        return replace(
            recipe("minilm-tiny"),
            **sizes,
            layers=generator.randint(1, 2),
            feed_forward_size=heads * size,
            source_vocabulary=generator.randint(3, 20),
            source_max_length=generator.randint(2, 20),
            segments=generator.randint(1, 3),
            activation=generator.choice(("relu", "gelu", "gelu_tanh")),
            norm_eps=generator.choice((1e-12, 1e-5)),
            masking="add" if adds else "exclude",
            masking_value=-1e4 if adds else None,
            heads_on_top=tops,
            classes=generator.randint(1, 4) if {"sequence_classifier", "token_classifier"} & {*tops} else 0,
            tied_embeddings="masked_lm" in tops and generator.choice((True, False)),
        )
    if family == "sentence":
        size = generator.randint(2, 6)
        layer = DenseLayer(size=size, bias=generator.choice((True, False)), activation="tanh")
        return replace(
            drawn_config("bert", seed),
            masking="exclude",
            masking_value=None,
            heads_on_top=("sentence_embedding",),
            classes=0,
            tied_embeddings=False,
            sentence_pooling=generator.choice(("mean", "cls", "max")),
            sentence_layers=(layer,) * generator.randint(0, 2),
            sentence_normalized=generator.choice((True, False)),
        )
    if family == "stock":
        pre, post = generator.choice((("n", "da"), ("", "dan")))
        is_pair, has_biases = generator.choice((True, False)), generator.choice((True, False))
        return ModelConfig(
            **sizes,
            kind="encoder_decoder" if is_pair else "encoder",
            decoder_layers=2 if is_pair else 0,
            target_max_length=512 if is_pair else 0,
            **dict.fromkeys(("projection_bias", "output_bias", "feed_forward_bias"), has_biases),
            norm_bias=has_biases or generator.choice((True, False)),
            layers=generator.randint(1, 2),
            feed_forward_size=heads * size,
            source_vocabulary=0,
            source_max_length=512,
            positions="none",
            pre_process=pre,
            post_process=post,
            final_process=generator.choice(("", "n")),
            norm_eps=1e-5,
            activation=generator.choice(("relu", "gelu")),
            masking="exclude",
        )
    config = recipe(f"{ARTICLES[family]}-tiny")
    square: dict[str, Any] = {} if config.kind == "attention" else {"feed_forward_size": heads * size}
    return replace(config, **sizes, **square)


def drawn_checkpoint(family: str, seed: int) -> Checkpoint:
    config = drawn_config(family, seed)
    dtype = random.Random(seed).choice([*FLOATS.values()])
    tensors = perturb(initialize(config, seed), seed)
    text = TextSettings(max_tokens=2, prompts={"query": "Q: "}) if family == "sentence" else None
    return Checkpoint(config, {name: tensor.astype(dtype) for name, tensor in tensors.items()}, text=text)


# Why a dialect may refuse a model: it cannot express it, or a file format cannot hold its numbers.
REFUSED = re.compile("cannot express|has no name for|bfloat16")


def hop(checkpoint: Checkpoint, dialect: str, suffix: str, path: Path) -> Checkpoint | None:
    """Write a checkpoint in a dialect, and read it again, with the answers that the file does not give.

    Return None if the dialect cannot express the model.
    """
    if dialect not in FOLDERS:
        path = path.with_suffix(".npz" if dialect == "neutral" else suffix)
    try:
        port(checkpoint, path, target_dialect=dialect)
    except PortingError as error:
        if not REFUSED.search(str(error)):
            raise
        return None
    answers = None if dialect in (*FOLDERS, "neutral") else checkpoint.config
    return port(path, source_dialect=dialect, config=answers)


@pytest.fixture(scope="module")
def used():
    """The dialects that some model passed through. In the end these have to be all."""
    used: set[str] = set()
    yield used
    assert used == {*DIALECTS}


@pytest.mark.parametrize("family", FAMILIES)
def test_every_chain_of_three_ends_with_the_same_digest(family: str, used, tmp_path_factory, pytestconfig):
    # The dialects of the family itself come first.
    own: tuple[str, ...] = {
        "wild": ("neutral",),
        "bert": ("huggingface", "huggingface-flax", "paddlenlp"),
        "sentence": ("sentence-transformers",),
        "stock": ("torch-transformer", "paddle-transformer"),
    }.get(family, (family,))

    for seed in range(15 * pytestconfig.getoption("--seeds")):
        generator = random.Random(f"{family} {seed}")
        checkpoint = first = drawn_checkpoint(family, seed)
        folder = tmp_path_factory.mktemp("chain")
        for number, dialect in enumerate([*own, *generator.choices(sorted(DIALECTS), k=3)]):
            result = hop(checkpoint, dialect, generator.choice(SUFFIXES), folder / f"model{number}")
            if result is None:
                continue
            checkpoint = result
            used.add(dialect)
            assert checkpoint.digest == first.digest, (seed, dialect)
