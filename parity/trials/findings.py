"""What the trials of a parity run find, beside the rows of their judgements."""

from collections import defaultdict
from dataclasses import dataclass, field


@dataclass
class Findings:
    """What a parity run has found so far.

    ``amplification``: how much larger the noise of the whole model is than that of each step alone, on the first
    inputs. ``wrong_steps``, ``wrong_results``: for each framework the names of the values whose divergence is
    confirmed, as a step alone and in a whole forward pass. ``lacking``: the invariants that do not hold for the model.
    """

    amplification: dict[str, float] = field(default_factory=dict[str, float])
    wrong_steps: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    wrong_results: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    lacking: list[str] = field(default_factory=list[str])
