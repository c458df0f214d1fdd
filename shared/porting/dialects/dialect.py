"""What every dialect has: how it is recognised, read and written."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from triglot.shared.checkpoint import Checkpoint
from triglot.shared.errors import PortingError
from triglot.shared.model.recipes import ConfigOverride
from triglot.shared.porting.source import Source

from .table import Place

# What the user may answer, for messages.
_ANSWERS = {
    "heads": "NUMBER",
    "norm_eps": "NUMBER",
    "activation": "relu|gelu|gelu_tanh",
    "norm_first": "true|false",
    "masking": "exclude|fill|add",
    "pad_id": "NUMBER",
    "norm": "layer_norm",
    "positions": "none|learned|sinusoidal|sinusoidal_per_dimension",
    "embedding_process": "COMMANDS",
    "pre_process": "COMMANDS",
    "post_process": "COMMANDS",
    "final_process": "COMMANDS",
    "pooler_activation": "tanh|relu|gelu|gelu_tanh",
    "embedding_scale": "true|false",
    "position_offset": "NUMBER",
    "positions_skip_padding": "true|false",
    "normalize_memory": "true|false",
    "attention_output_activation": "none|relu",
    "masking_value": "NUMBER",
}


@dataclass(frozen=True)
class Dialect:
    """How a library names and lays out the tensors of a model.

    ``expected`` describes its files, for messages. ``sign`` returns what shows that a source is in this dialect, such
    as the name of a tensor; empty if nothing does. ``read`` takes the configuration that completes or corrects the
    source's own. ``check_target`` refuses, before any work is done, a path that ``write`` cannot write.
    ``layout`` returns where ``write`` would put the parameters of a checkpoint in this target, and refuses what
    ``write`` would refuse. ``write_shards`` writes a folder of files that each hold at most so many bytes.
    ``reads_folders``: a source may be a folder. ``remark`` returns what a user still has to do with the written files;
    empty if nothing.
    """

    name: str
    expected: str
    sign: Callable[[Source], str]
    read: Callable[[Source, ConfigOverride], Checkpoint]
    write: Callable[[Checkpoint, Path], None]
    check_target: Callable[[Path], None]
    layout: Callable[[Checkpoint, Path], "Layout"]
    write_shards: Callable[[Checkpoint, Path, int], None] | None = None
    reads_folders: bool = True
    remark: Callable[[Checkpoint], str] = lambda _: ""


@dataclass(frozen=True)
class Layout:
    """Where a dialect puts parameters: ``places`` by canonical name.

    ``added`` names tensors that are not parameters but are written, too, and says what they are.
    """

    places: Mapping[str, Place]
    added: Mapping[str, str] = field(default_factory=dict[str, str])


def unanswered(fields: Sequence[str], model_types: Sequence[str] = ()) -> PortingError:
    """Return the error for fields that no tensor shows and that the user did not give.

    ``model_types`` are the possible answers if ``model_type`` is among the fields.
    """
    answers = {**_ANSWERS, "model_type": "|".join(model_types)}
    options = " ".join(f"--set {name}={answers[name]}" for name in fields)
    return PortingError(
        f"the tensors do not show {', '.join(fields)}; add {options}, or --config with a recipe or a file "
        "that triglot inspect --json writes (config= in Python)"
    )


def inexpressible(dialect: str, losses: list[str]) -> PortingError:
    """Return the error for a model with fields that ``dialect`` cannot express."""
    heads = any(loss.startswith("heads_on_top") for loss in losses)
    leave_out = "leave heads out (heads=, or --heads on the command line), " if heads else ""
    return PortingError(
        f"the dialect {dialect} cannot express {', '.join(losses)}; {leave_out}write another dialect, or override "
        "these fields if the model computes the same without them (config=, or --set on the command line)"
    )
