"""``triglot.Embedder``: text to vectors, compared with the library sentence-transformers in float64."""

import json

import numpy as np
import pytest
from refusals import refusal
from sentence_vectors import assert_alike, assert_vectors, limit, vectors_of_the_library

import triglot
from triglot import Embedder
from triglot.impls import text_encoder
from triglot.shared.errors import ConfigError, FrameworkError, InputError, ModelNotFoundError
from triglot.shared.inputs.text import sentences

TEXTS = [
    *sentences(20),
    "",
    " \t",
    "x",
    "a text of more tokens than the model reads: " * 40,
    "Größe, naïve, 中文, 🙂, \u0000, \ufeff",
    "[CLS] [MASK] ## ##ing",
    "UPPER lower",
]


@pytest.mark.parametrize(("mode", "prompt"), [("compiled", None), ("eager", "passage")])
def test_vectors_are_those_of_the_library(sentence_folder, framework, mode, prompt, without_cpp):
    truth, noise = vectors_of_the_library(sentence_folder, TEXTS, prompt)
    model = Embedder(sentence_folder, framework=framework, mode=mode, batch_tokens=300)
    vectors = model.encode(TEXTS, prompt=prompt)
    assert_vectors(vectors, truth, noise)
    assert len({vector.tobytes() for vector in vectors.round(3)}) > len(TEXTS) - 4, "most texts have the same vector"


def test_the_trained_minilm(tokenizer):
    texts = sentences(64)
    truth, noise = vectors_of_the_library(tokenizer.parent, texts)
    assert_vectors(Embedder("minilm").encode(texts), truth, noise)


@pytest.mark.long
def test_an_encoder_without_a_sentence_embedding(tokenizer, tmp_path):
    """Pooling is what the library does with such a folder: the mean."""
    folder = tmp_path / "encoder"
    port = triglot.port(tokenizer.parent, folder, source_dialect="huggingface", target_dialect="huggingface", heads=())
    assert port.config.heads_on_top == ()
    texts = sentences(20)
    truth, noise = vectors_of_the_library(folder, texts)
    assert_vectors(Embedder(folder, pooling="mean").encode(texts), truth, noise)
    assert not np.allclose(Embedder(folder, pooling="cls").encode(texts), truth, atol=1e-2)
    with refusal(InputError, "no sentence embedding.*expected a folder of sentence-transformers.*--pooling"):
        Embedder(folder)


@pytest.mark.parametrize("count", [0, 1, 4, 5, 13])
def test_order_and_batches_do_not_matter(sentence_folder, count, monkeypatch):
    """Texts are divided into windows, sorted, and put into batches, and their vectors are in order again."""
    texts = TEXTS[-count:] if count else []
    single = Embedder(sentence_folder, batch_tokens=1)
    alone = [single.encode([text])[0] for text in texts]
    monkeypatch.setattr(text_encoder, "WINDOW", 4)
    model = Embedder(sentence_folder, batch_tokens=50)
    vectors = model.encode(iter(texts))
    assert vectors.shape == (count, 7)
    assert_alike(vectors, np.reshape(alone, (-1, 7)), sentence_folder, TEXTS)
    sizes = [len(window) for window in model.stream(texts)]
    assert sizes == [len(texts[start : start + 4]) for start in range(0, max(count, 1), 4)]


def test_batches_are_sorted_and_small():
    lengths = [5, 9, 0, 1, 9, 40, 2]
    batches = text_encoder._batches(lengths, 20)
    assert [[lengths[place] for place in places] for places in batches] == [[40], [9, 9], [5, 2, 1]]
    assert sorted(place for places in batches for place in places) == [0, 1, 3, 4, 5, 6]


def test_the_last_batch_is_not_a_small_remainder():
    """The limit is eight rows of three tokens."""
    assert [len(places) for places in text_encoder._batches([3] * 9, 24)] == [5, 4]


def test_texts_without_tokens_become_zeros(sentence_folder):
    """A tokenizer without special tokens has no token for an empty text."""
    path = sentence_folder / "tokenizer.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "post_processor": None}))
    model, texts = Embedder(sentence_folder), ["one", "two"]
    vectors = model.encode(["", texts[0], " \t", texts[1]], prompt="passage")
    assert_alike(vectors[[1, 3]], model.encode(texts, prompt="passage"), sentence_folder, texts)
    assert not vectors[[0, 2]].any()
    assert not model.encode([""], prompt="passage").any()


def test_few_texts_are_read_ahead(sentence_folder, monkeypatch):
    monkeypatch.setattr(text_encoder, "WINDOW", 4)
    read = []
    windows = Embedder(sentence_folder).stream(read.append(text) or text for text in TEXTS)
    for number in range(1, 4):
        next(windows)
        assert len(read) == 4 * (number + 1)


def test_an_npz_checkpoint_with_a_tokenizer(sentence_folder, tmp_path, tokenizer):
    expected = Embedder(sentence_folder).encode(TEXTS)
    triglot.port(sentence_folder, tmp_path / "model.npz")
    for model in (tmp_path / "model.npz", triglot.load(tmp_path / "model.npz")):
        assert_alike(Embedder(model, tokenizer=tokenizer).encode(TEXTS), expected, sentence_folder, TEXTS)
        with refusal(InputError, r"no tokenizer\.json.*set tokenizer"):
            Embedder(model)


def test_bfloat16(sentence_folder, without_cpp):
    """The result is float32, but was computed in bfloat16."""
    truth, noise = vectors_of_the_library(sentence_folder, TEXTS, dtype="bfloat16")
    vectors = Embedder(sentence_folder, dtype="bfloat16").encode(TEXTS)
    assert_vectors(vectors, truth, noise, "bfloat16")
    assert np.abs(vectors - truth).max() > limit(*vectors_of_the_library(sentence_folder, TEXTS))


ARGUMENTS = {
    "recipe": ({"model": "bert-base"}, InputError, "bert-base is a recipe.*random.*expected a folder"),
    "no model": ({"model": "nowhere"}, ModelNotFoundError, "'nowhere' is neither a recipe nor an existing path"),
    "framework": ({"framework": "caffe"}, FrameworkError, "framework 'caffe'.*torch, paddle, jax"),
    "mode": ({"mode": "fast"}, FrameworkError, "mode 'fast'"),
    "batch": ({"batch_tokens": 0}, ConfigError, "batch_tokens is 0; expected a whole number, 1 or more"),
    "pooling twice": ({"pooling": "mean"}, InputError, "pooling is 'mean', but the model has a sentence embedding"),
    "tokenizer": ({"tokenizer": "none.json"}, InputError, "the tokenizer none.json is not a file"),
}


@pytest.mark.parametrize("kind", ARGUMENTS)
def test_arguments_that_are_refused(kind, sentence_folder):
    options, error, pattern = ARGUMENTS[kind]
    with refusal(error, pattern):
        Embedder(**{"model": sentence_folder, **options})


def test_a_file_that_is_not_a_tokenizer(sentence_folder):
    (sentence_folder / "tokenizer.json").write_text("{}")
    with refusal(InputError, "cannot read the tokenizer .*restore the file"):
        Embedder(sentence_folder)


TEXT_ERRORS = {
    "no texts": (None, None, "texts is None; expected a list of texts"),
    "a single text": ("one", None, "texts is a single text, 'one'; expected a list"),
    "a number": (["a", 2], None, "text 1 is a int; expected a str"),
    "half a character": (["a", "\ud83d"], None, "text 1 is not Unicode.*surrogates"),
    "prompt": (["a"], "title", "prompt is 'title'; expected one of 'query', 'passage'"),
}


@pytest.mark.parametrize("kind", TEXT_ERRORS)
def test_texts_that_are_refused(kind, sentence_folder):
    texts, prompt, pattern = TEXT_ERRORS[kind]
    with refusal(InputError, pattern):
        Embedder(sentence_folder).encode(texts, prompt=prompt)
