"""The model whose values are judged, and the name of one of them."""

from triglot.shared.model.recipes import recipe

CONFIG = recipe("bert-base-tiny")
NAME = "encoder.layers.0.attention.query"
