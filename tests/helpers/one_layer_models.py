"""Configurations with one layer in each stack, whose parameters and named values tests spell out."""

from dataclasses import replace

from triglot.shared.model.recipes import recipe

BERT = replace(recipe("bert-base-tiny"), layers=1)
PRETRAINING = replace(BERT, heads_on_top=("pooler", "masked_lm", "next_sentence"))
TIED = replace(PRETRAINING, tied_embeddings=True)
DYGRAPH = replace(recipe("dygraph-tiny"), layers=1)
TRANSLATION = replace(recipe("translation-tiny"), layers=1, decoder_layers=1)
