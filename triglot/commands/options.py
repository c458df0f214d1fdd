"""The options that several commands take, and the names that they accept."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer


class Framework(StrEnum):
    """The frameworks, as an option takes them."""

    torch = "torch"
    paddle = "paddle"
    jax = "jax"


class Dtype(StrEnum):
    """The number formats, as an option takes them."""

    float32 = "float32"
    float64 = "float64"
    bfloat16 = "bfloat16"
    float16 = "float16"


class Mode(StrEnum):
    """How a framework runs a model, as an option takes it."""

    eager = "eager"
    jit = "jit"
    compiled = "compiled"


class Dialect(StrEnum):
    """The dialects of weights, as an option takes them."""

    neutral = "neutral"
    huggingface = "huggingface"
    article_translation = "article-translation"
    article_dygraph = "article-dygraph"
    article_prenorm = "article-prenorm"
    article_annotated = "article-annotated"
    article_multihead = "article-multihead"


class Device(StrEnum):
    """The devices, as an option takes them."""

    cpu = "cpu"
    cuda = "cuda"


ModelArgument = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="A recipe (its trained weights if there are any, or random ones), a neutral checkpoint (.npz), or a "
        "folder with config.json and model.safetensors, or the bare .safetensors; with --source-dialect, the state "
        "dict of an article (.pt, .npz, .safetensors).",
    ),
]
ConfigOption = Annotated[
    str | None,
    typer.Option(
        metavar="RECIPE|FILE",
        help="The configuration, in place of the model's own: a recipe, or a JSON file with fields (as inspect --json "
        "writes them, under config).",
    ),
]
SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="FIELD=VALUE",
        help="Correct a field of the configuration, or say what a bare .safetensors does not; repeatable.",
    ),
]
DialectOption = Annotated[
    Dialect | None,
    typer.Option(help="How MODEL is written. Default: neutral or huggingface, by its looks.", show_default=False),
]

JsonOption = Annotated[
    Path | None,
    typer.Option("--json", metavar="FILE", help="Write the result as JSON; -: print it, and no table."),
]
QuietOption = Annotated[bool, typer.Option("--quiet", help="Print nothing but errors.")]
SeedOption = Annotated[int, typer.Option(min=0, help="Seed of random weights and inputs.")]
