"""The recipes, and how they differ."""

from dataclasses import replace

import pytest
from config_fields import DECODER_SIZES, SIZES
from tiny_configs import EMBEDDED

from triglot.shared.errors import ConfigError
from triglot.shared.model.recipes import recipe, recipes


def test_the_recipes_and_their_tiny_siblings():
    names = ["translation", "prenorm", "annotated", "multihead", "dygraph", "bert-base", "ernie-base", "minilm"]
    assert list(recipes()) == names + [f"{name}-tiny" for name in names]


def test_dygraph_is_the_encoder_of_paddle_1_7_at_the_sizes_of_bert_base():
    dygraph, bert = recipe("dygraph").to_dict(), recipe("bert-base").to_dict()
    assert {name: dygraph[name] for name in dygraph if dygraph[name] != bert[name]} == {
        "source_vocabulary": 0,
        "segments": 0,
        "positions": "none",
        "pad_id": None,
        "embedding_process": "",
        "pre_process": "n",
        "post_process": "da",
        "final_process": "n",
        "norm_eps": 1e-5,
        "masking": "add",
        "masking_value": -10000.0,
        "embedding_dropout": 0.0,
        "feed_forward_dropout": 0.1,
        "heads_on_top": [],
    }


def test_ernie_base_and_minilm_differ_from_bert_base_in_these_fields():
    ernie = {"segments": 4, "tasks": 16, "norm_eps": 1e-5, "masking": "add", "masking_value": -10000.0}
    minilm = {"hidden_size": 384, "layers": 6, "key_size": 32, "value_size": 32, "feed_forward_size": 1536}
    assert recipe("ernie-base") == replace(recipe("bert-base"), **ernie)
    assert recipe("minilm") == replace(recipe("bert-base"), **minilm)


@pytest.mark.parametrize("name", [name for name in recipes() if not name.endswith("-tiny")])
def test_a_tiny_sibling_differs_only_in_its_sizes(name):
    full, tiny = recipe(name).to_dict(), recipe(f"{name}-tiny").to_dict()
    assert {field for field in full if full[field] != tiny[field]} <= {*SIZES, *DECODER_SIZES, "source_vocabulary"}
    # If one axis is mistaken for another, the shape has to be wrong.
    sizes = [tiny["hidden_size"], tiny["key_size"], tiny["feed_forward_size"], tiny["heads"], tiny["source_max_length"]]
    assert len(set(sizes)) == len(sizes)


def test_an_unknown_recipe_is_refused_with_the_known_ones():
    with pytest.raises(
        ConfigError,
        match=r"^unknown recipe 'bert'; did you mean 'bert-base'. expected one of translation, prenorm, annotated,",
    ):
        recipe("bert")


def test_recipes_are_returned_as_a_copy():
    recipes()["bert-base"] = EMBEDDED
    del recipes()["minilm"]
    assert recipe("bert-base").source_vocabulary == 30522
    assert "minilm" in recipes()
