"""The options that several commands share, and the names that they accept."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from triglot.shared.choices import DEVICES, DTYPES, FRAMEWORKS, MODES
from triglot.shared.porting.dialects import DIALECTS

# Typer takes choices as enumerations.
Framework = StrEnum("Framework", FRAMEWORKS)
Dtype = StrEnum("Dtype", DTYPES)
Mode = StrEnum("Mode", MODES)
Dialect = StrEnum("Dialect", tuple(DIALECTS))
Device = StrEnum("Device", DEVICES)

CPU, EAGER, FLOAT32, NEUTRAL = Device("cpu"), Mode("eager"), Dtype("float32"), Dialect("neutral")  # the defaults


ModelArgument = Annotated[
    str,
    typer.Argument(metavar="MODEL", help="A recipe, a checkpoint (.npz), a model folder, or bare weights."),
]
ConfigOption = Annotated[
    str | None,
    typer.Option(metavar="RECIPE|FILE", help="Configuration to use: a recipe, or a JSON file of fields."),
]
SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="FIELD=VALUE", help="Set a field of the configuration; repeatable."),
]
DialectOption = Annotated[
    Dialect | None,
    typer.Option(help="Dialect of MODEL. Default: recognise neutral or huggingface.", show_default=False),
]

JsonOption = Annotated[
    Path | None,
    typer.Option("--json", metavar="FILE", help="Write the result as JSON; - prints it instead of tables."),
]
QuietOption = Annotated[bool, typer.Option("--quiet", help="Print nothing but errors.")]
SeedOption = Annotated[int, typer.Option(min=0, help="Seed of random weights and inputs.")]
