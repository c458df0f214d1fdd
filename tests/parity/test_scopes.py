"""Budgets of a whole value, of a channel and of a row: what one hides, another shows."""

from dataclasses import replace

import numpy as np
import pytest

from triglot.parity.scopes import scopes_of, worst_share
from triglot.shared.model.recipes import recipe
from triglot.shared.model.schema import named_values

CONFIG = recipe("bert-base-tiny")
SUM = named_values(CONFIG)["embeddings.sum"]
QUERY = named_values(CONFIG)["encoder.layers.0.attention.query"]
ROWS, TOKENS, CHANNELS = 3, 20, 5


def share_of(error, truth, selected=None, named=SUM):
    """Judge with a noise of one unit of every entry."""
    return worst_share(scopes_of(named, CONFIG, "float32"), error, np.abs(truth) * 2.0**-24, truth, selected, "float32")


def test_a_large_channel_does_not_hide_an_error_in_a_small_one():
    truth = np.ones((ROWS, TOKENS, CHANNELS))
    truth[..., 0] = -1e9
    error = np.zeros(truth.shape)
    error[1, 7, 3] = 0.5
    assert worst_share([], error, np.abs(truth) * 2.0**-24, truth, None, "float32").used < 1e-2
    share = share_of(error, truth)
    assert share.where == "channel 3"
    assert share.error == 0.5
    assert share.used > 1e5


def test_a_large_row_does_not_hide_an_error_in_a_small_one():
    truth = np.ones((ROWS, TOKENS, CHANNELS))
    truth[2] = 1e-6
    error = np.zeros(truth.shape)
    error[2, 0, 4] = 2e-7
    share = share_of(error, truth)
    assert share.where == "row 2"
    assert share.used > 1e3


def test_a_channel_of_a_head_has_two_numbers():
    truth = np.ones((ROWS, 2, TOKENS, CHANNELS))
    error = np.zeros(truth.shape)
    truth[:, 1, :, 3] = error[:, 1, 0, 3] = 1e-6
    assert share_of(error, truth, named=QUERY).where == "channel 1, 3"


@pytest.mark.parametrize(("tokens", "where"), [(15, ""), (16, "channel 1")])
def test_few_tokens_have_no_budget_of_their_own(tokens, where):
    truth = np.ones((1, TOKENS, CHANNELS))
    truth[..., 1] = 1e-6
    error = np.zeros(truth.shape)
    error[0, 0, 1] = 1e-7
    selected = (np.arange(TOKENS) < tokens)[None, :, None]
    assert share_of(error, truth, selected).where == where


def test_a_channel_is_not_judged_at_a_token_that_decides_its_noise_alone():
    """The noise of an unstable token covers only a few directions, so it cannot set the budget of every channel."""
    truth = np.ones((ROWS, TOKENS, CHANNELS))
    noise, error = truth * 2.0**-24, np.zeros(truth.shape)
    noise[1, 5] = (8, 8, 8, 8, 0.05)
    error[1, 5] = (2, 2, 2, 2, 0.9)
    scopes = scopes_of(SUM, CONFIG, "float32")
    assert worst_share(scopes, error, noise, truth, None, "float32").used < 1
    for channel in range(CHANNELS):  # another token has no such noise, and this one's does not excuse it
        error[1, 6, channel] = 0.9
        assert worst_share(scopes, error, noise, truth, None, "float32").used > 1
        error[1, 6, channel] = 0
    error[1, 5, 4] = 100  # and the whole value is judged everywhere
    assert worst_share(scopes, error, noise, truth, None, "float32").used > 1


def test_what_is_not_selected_is_not_judged():
    truth = np.ones((ROWS, TOKENS, CHANNELS))
    error = np.zeros(truth.shape)
    error[0, 3] = 1
    selected = np.ones((ROWS, TOKENS, 1), np.bool_)
    selected[0, 3] = False
    assert share_of(error, truth, selected).used == 0


def test_activations_and_rectified_outputs_are_judged_as_a_whole():
    """Where most entries are zero, few are left to measure the noise."""
    values = named_values(CONFIG)
    for name in ("feed_forward.activation", "attention.weights", "attention.scores", "attention.context"):
        assert scopes_of(values[f"encoder.layers.0.{name}"], CONFIG, "float32") == []
    output = values["encoder.layers.0.attention.output"]
    assert [scope.name for scope in scopes_of(output, CONFIG, "float32")] == ["channel", "row"]
    assert scopes_of(output, replace(CONFIG, attention_output_activation="relu"), "float32") == []


def test_a_sum_of_rounded_embeddings_is_judged_as_a_whole_in_16_bits():
    assert [scopes_of(SUM, CONFIG, dtype) for dtype in ("bfloat16", "float16")] == [[], []]
    assert len(scopes_of(QUERY, CONFIG, "bfloat16")) == 2
