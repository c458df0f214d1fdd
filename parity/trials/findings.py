"""What the trials of a parity run find, beside the rows of their judgements."""

from dataclasses import dataclass, field


@dataclass
class Findings:
    """What a parity run has found so far.

    ``amplification``: how much larger the noise of the whole model is than that of each step alone, on the first
    inputs. ``diverged``: the frameworks whose forward passes have diverged. ``lacking``: the invariants that the model
    does not have, by the reference.
    """

    amplification: dict[str, float] = field(default_factory=dict[str, float])
    diverged: set[str] = field(default_factory=set[str])
    lacking: list[str] = field(default_factory=list[str])
