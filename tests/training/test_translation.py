"""The toy translation task: the transformation of article 000, the distributions of its samples, and refusals."""

import hashlib
import re
from dataclasses import replace

import numpy as np
import pytest

from triglot.shared.errors import TaskError
from triglot.shared.model.recipes import recipe, recipes
from triglot.shared.training import translation
from triglot.shared.training.translation import TranslationTask, score, translate, write

CONFIG = recipe("translation-tiny")
MANY = 4000

# The dictionaries of article 000.
SYMBOLS = "<SOS>,<EOS>,<PAD>,0,1,2,3,4,5,6,7,8,9,q,w,e,r,t,y,u,i,o,p,a,s,d,f,g,h,j,k,l,z,x,c,v,b,n,m"
VOCAB_X = {word: i for i, word in enumerate(SYMBOLS.split(","))}
VOCAB_Y = {word.upper(): i for word, i in VOCAB_X.items()}
# One weight for each word; the first three symbols are not words.
P = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12]
P += [13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26]


def get_data(x, length):
    """Return source and target ids as the code of article 000 makes them from the words that it drew."""

    def f(i):
        i = i.upper()
        return str(9 - int(i)) if i.isdigit() else i

    y = [f(i) for i in x][::-1]
    y = [y[0], *y]
    x = ["<SOS>", *x, "<EOS>"] + ["<PAD>"] * length
    y = ["<SOS>", *y, "<EOS>"] + ["<PAD>"] * (length + 1)
    return [VOCAB_X[i] for i in x[:length]], [VOCAB_Y[i] for i in y[: length + 1]]


def words_of(row):
    names = list(VOCAB_X)
    return [names[i] for i in row if i > 2]


@pytest.fixture(scope="module")
def many():
    return TranslationTask(7).pairs(0, MANY)


@pytest.mark.parametrize("length", [5, 6, 19, 50, 77])
def test_pairs_are_those_of_article_000(length):
    sources, targets = TranslationTask(1, length).pairs(0, 40)
    assert (sources.dtype, targets.dtype) == (np.int32, np.int32)
    assert (sources.shape, targets.shape) == ((40, length), (40, length + 1))
    for source, target in zip(sources, targets, strict=True):
        x, y = get_data(words_of(source), length)
        np.testing.assert_array_equal(source, x)
        np.testing.assert_array_equal(target, y)


def test_a_pair_by_hand():
    task = TranslationTask(0, 7)
    assert task.read("q w e 1") == ["q", "w", "e", "1"]
    assert translate(["q", "w", "e", "1"]) == ["8", "8", "E", "W", "Q"]
    np.testing.assert_array_equal(task.source_ids(["q", "w", "e", "1"]), [[0, 13, 14, 15, 4, 1, 2]])
    assert write([0, 11, 11, 15, 14, 13, 1, 2, 2]) == "8 8 E W Q"


def test_the_vocabularies_are_those_of_article_000():
    assert {word: i for i, word in enumerate(translation.SOURCE_VOCABULARY)} == VOCAB_X
    assert {word: i for i, word in enumerate(translation.TARGET_VOCABULARY)} == VOCAB_Y
    assert len(VOCAB_X) == 39
    assert list(translation.WEIGHTS) == P


def assert_frequencies(counts, expected):
    """Each count is within five standard errors of a binomial count. About one in two million is not."""
    total = counts.sum()
    deviation = np.sqrt(total * expected * (1 - expected))
    np.testing.assert_array_less(np.abs(counts - total * expected), 5 * deviation)


def test_every_length_from_30_to_48_is_equally_frequent(many):
    lengths = (many[0] > 2).sum(axis=1)
    assert (lengths.min(), lengths.max()) == (30, 48)
    assert_frequencies(np.bincount(lengths - 30, minlength=19), np.full(19, 1 / 19))


def test_words_are_drawn_by_their_weights(many):
    words = many[0][many[0] > 2]
    counts = np.bincount(words - 3, minlength=36)
    assert_frequencies(counts, np.array(P) / sum(P))
    with pytest.raises(AssertionError, match="not strictly ordered"):
        assert_frequencies(counts, np.full(36, 1 / 36))


def test_words_do_not_depend_on_their_place(many):
    """The first word has the distribution of all others, and neighbours are equal as often as by chance."""
    first, pairs = many[0][:, 1] - 3, many[0][:, 1:31] - 3
    assert_frequencies(np.bincount(first, minlength=36), np.array(P) / sum(P))
    same = np.count_nonzero(pairs[:, 1:] == pairs[:, :-1])
    chance = (np.array(P) ** 2).sum() / sum(P) ** 2
    # Equal neighbours are nearly independent of each other, so their count is nearly binomial: six deviations.
    total = pairs[:, 1:].size
    assert abs(same - total * chance) < 6 * np.sqrt(total * chance * (1 - chance))


@pytest.mark.parametrize(("length", "shortest", "longest"), [(5, 3, 3), (6, 3, 4), (19, 11, 17), (50, 30, 48)])
def test_lengths_scale_with_the_longest_source(length, shortest, longest):
    sources, _ = TranslationTask(0, length).pairs(0, 500)
    # Of at most 19 lengths, none is missed by 500 draws: (18 / 19)^500 is 2e-12.
    assert set((sources > 2).sum(axis=1)) == set(range(shortest, longest + 1))


def test_a_sample_depends_only_on_seed_and_number():
    sources, targets = TranslationTask(3).pairs(0, 30)
    task = TranslationTask(3)
    for i in (17, 2, 29, 2, 0):
        source, target = task.pairs(i, 1)
        np.testing.assert_array_equal(source[0], sources[i])
        np.testing.assert_array_equal(target[0], targets[i])
    np.testing.assert_array_equal(task.pairs(11, 8)[0], sources[11:19])
    assert len(np.unique(sources, axis=0)) == 30
    others = TranslationTask(4).pairs(0, 30)[0]
    assert len(np.unique(np.concatenate([sources, others]), axis=0)) == 60


def test_zero_samples_have_shapes():
    assert [array.shape for array in TranslationTask().pairs(5, 0)] == [(0, 50), (0, 51)]


def test_the_stream_of_a_seed_never_changes():
    """A seed and a number identify a sample, so a resumed training run continues where it stopped."""
    sources, targets = TranslationTask(0).pairs(0, 100)
    digest = hashlib.sha256(sources.astype("<i4").tobytes() + targets.astype("<i4").tobytes()).hexdigest()
    assert digest == "94167b14b0e22fa844a5bc9ce1858b177f4da6aa5b9af3aca0e4ee4e5412335c"


def test_the_task_of_a_model_has_its_length():
    assert TranslationTask.for_model(recipe("translation"), 5).pairs(0, 2)[0].shape == (2, 50)
    task = TranslationTask.for_model(CONFIG, 5)
    assert (task.seed, task.length) == (5, CONFIG.source_max_length)
    roomy = replace(CONFIG, source_vocabulary=100, target_vocabulary=50, target_max_length=19)
    assert TranslationTask.for_model(roomy).length == 19


def test_the_recipes_that_the_refusal_names_fit_and_no_other():
    fitting, refusals = [], set()
    for name, config in recipes().items():
        try:
            TranslationTask.for_model(config)
            fitting.append(name)
        except TaskError as error:
            refusals.add(str(error).split("; ")[-1])
    assert refusals == {f"use the recipe {' or '.join(fitting)}"}


def test_reading_and_writing():
    task = TranslationTask()
    sources, targets = task.pairs(0, 50)
    for source, target in zip(sources, targets, strict=True):
        words = words_of(source)
        for text in ("".join(words), " ".join(words), "\t" + "\n".join(words) + " "):
            assert task.read(text) == words
        np.testing.assert_array_equal(task.source_ids(words), source[None])
        assert write(target) == write(target.tolist()) == " ".join(translate(words))


@pytest.mark.parametrize(
    ("ids", "text"),
    [
        ([0, 3, 1, 4, 5], "0"),
        ([3, 13], "0 Q"),
        ([0, 1], ""),
        ([0, 2, 3, 0, 40, -1], "<PAD> 0 <SOS> <40> <-1>"),
    ],
)
def test_writing_shows_what_a_poor_model_generates(ids, text):
    assert write(ids) == text


def test_the_score_of_right_answers_is_one():
    _, targets = TranslationTask().pairs(0, 20)
    assert score(targets, targets) == translation.Score(1.0, 1.0)
    longer = np.pad(targets, ((0, 0), (0, 3)), constant_values=9)
    assert score(longer, targets) == translation.Score(1.0, 1.0)
    after_the_end = np.where(targets == 2, 9, targets)
    assert score(after_the_end, targets) == translation.Score(1.0, 1.0)
    another_start = targets.copy()
    another_start[:, 0] = 9
    assert score(another_start, targets) == translation.Score(1.0, 1.0)


@pytest.mark.parametrize(
    ("generated", "tokens", "sequences"),
    [
        ([[0, 5, 5, 1, 2], [0, 7, 7, 8, 1]], 1.0, 1.0),
        ([[0, 5, 5, 1, 9], [0, 7, 7, 8, 2]], 6 / 7, 0.5),
        ([[0, 5, 5], [0, 7, 7]], 4 / 7, 0.0),  # what was not generated is wrong
        ([[0, 9, 9, 9, 9], [0, 9, 9, 9, 9]], 0.0, 0.0),
        ([[0, 5, 9, 1, 2], [0, 7, 9, 8, 1]], 5 / 7, 0.0),
    ],
)
def test_the_score_counts_tokens_and_sequences(generated, tokens, sequences):
    target = np.array([[0, 5, 5, 1, 2], [0, 7, 7, 8, 1]])
    found = score(np.array(generated), target)
    assert (found.tokens, found.sequences) == (tokens, sequences)


# Tasks that are refused.


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"start_id": None}, "start_id None cannot learn the translation task; expected 0"),
        ({"start_id": 1}, "start_id 1 cannot learn the translation task; expected 0"),
        ({"end_id": 0}, "end_id 0 cannot learn the translation task; expected 1"),
        ({"pad_id": None}, "pad_id None cannot learn the translation task; expected 2"),
        ({"source_vocabulary": 38}, "source_vocabulary 38 cannot learn the translation task; expected 39 or more"),
        ({"target_vocabulary": 38}, "target_vocabulary 38 cannot learn the translation task; expected 39 or more"),
        ({"source_max_length": 4}, "source_max_length 4 cannot learn the translation task; expected 5 or more"),
        ({"target_max_length": 18}, "target_max_length 18 cannot learn the translation task; expected 19 or more"),
    ],
)
def test_a_model_that_cannot_learn_the_task_is_refused(changes, expected):
    with pytest.raises(TaskError, match=expected):
        TranslationTask.for_model(replace(CONFIG, **changes))


def test_an_encoder_is_refused():
    with pytest.raises(TaskError, match=r"kind 'encoder' cannot learn.*expected 'encoder_decoder'"):
        TranslationTask.for_model(recipe("bert-base-tiny"))


def test_an_impossible_task_is_refused():
    with pytest.raises(TaskError, match=r"seed .* is -1; expected 0 or more"):
        TranslationTask(-1)
    with pytest.raises(TaskError, match=r"length .* is 4; expected 5 or more"):
        TranslationTask(0, 4)
    for start, count in ((-1, 2), (0, -1)):
        with pytest.raises(TaskError, match=f"{count} samples from {start} on; expected 0 or more"):
            TranslationTask().pairs(start, count)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "empty; expected digits"),
        (" \n", "empty; expected digits"),
        ("q W!W", "the text holds 'W', '!'; expected the digits 0 to 9"),
        ("q²", "the text holds '²'; expected the digits 0 to 9"),
        ("<SOS>", "the text holds '<', 'S', 'O', '>'; expected the digits 0 to 9"),
        ("qwertyuiop", "10 words; expected at most 9"),
    ],
)
def test_a_text_that_cannot_be_translated_is_refused(text, message):
    task = TranslationTask(0, 11)
    assert task.read("qwertyuio") == list("qwertyuio")
    with pytest.raises(TaskError, match=re.escape(message)):
        task.read(text)
    with pytest.raises(TaskError, match=re.escape(message)):
        task.source_ids([symbol for symbol in text if not symbol.isspace()])


@pytest.mark.parametrize(
    ("generated", "target"), [((2, 5), (3, 5)), ((5,), (2, 5)), ((2, 5), (5,)), ((2, 5, 1), (2, 5))]
)
def test_scoring_needs_the_same_number_of_rows(generated, target):
    message = f"the generated ids are {generated}, the target ids {target}; expected (N, T) of both"
    with pytest.raises(TaskError, match=re.escape(message)):
        score(np.zeros(generated, np.int32), np.zeros(target, np.int32))


@pytest.mark.parametrize("target", [[[0, 2, 2]], [[0]], np.zeros((0, 3), int)])
def test_scoring_needs_a_token_to_compare(target):
    target = np.array(target)
    message = rf"^the target ids {re.escape(str(target.shape))} hold no token after the start; expected at least one$"
    with pytest.raises(TaskError, match=message):
        score(target, target)
