"""Correct implementations never diverge, however wild their models are.

``make test`` tries two of these models, ``make test-all`` all of them, and ``make audit`` hundreds of other wild models
in every number format.
"""

import pytest

from triglot.parity.audit.run import NOTHING, Task, run
from triglot.parity.audit.wild import wild_checkpoint, wild_config
from triglot.parity.trials import forward

# Each of these models was once reported as diverged in at least one framework.
ONCE_CALLED_WRONG = {
    "the variance of equal entries, computed in float64": (411, "float32"),
    "a token that decides the noise of every channel": (50, "float32"),
    "rounded embeddings that cancel in a channel": (681, "bfloat16"),
    "entries that all round to the same number before a norm": (426, "bfloat16"),
    "an overflow that the noise runs miss by chance": (921, "float16"),
    "a tied head whose table holds the largest numbers": (14, "float16"),
    "sums that are exact in almost every order": (65, "float64"),
    "padding that contributes by design": (59, "float16"),
}
# To save time, each model is tried in PyTorch only, unless this names other frameworks. Paddle has no 16-bit kernels on
# a CPU.
TRIED_ELSEWHERE = {
    "sums that are exact in almost every order": ("paddle",),
    "the variance of equal entries, computed in float64": ("paddle", "jax"),
}
TRIED = [(name, framework) for name in ONCE_CALLED_WRONG for framework in TRIED_ELSEWHERE.get(name, ("torch",))]
NOT_LONG = ("sums that are exact in almost every order", "padding that contributes by design")
OVERFLOWS = ("an overflow that the noise runs miss by chance", "padding that contributes by design")  # of the reference


@pytest.mark.parametrize(
    ("name", "tried_in"), [pytest.param(*run, marks=[] if run[0] in NOT_LONG else [pytest.mark.long]) for run in TRIED]
)
def test_correct_code_never_diverges(name, tried_in):
    seed, dtype = ONCE_CALLED_WRONG[name]
    (outcome,) = run(Task(NOTHING, tried_in, dtype, [seed], with_rules=False))
    assert outcome.verdict == ("incomplete" if name in OVERFLOWS else "pass"), outcome


@pytest.mark.long
def test_only_small_errors_may_precede_an_unlucky_rounding(monkeypatch):
    """Otherwise a model in which every step is almost wrong would pass."""
    monkeypatch.setattr(forward, "ORDINARY_SHARE", 0.01)
    (outcome,) = run(Task(NOTHING, "torch", "bfloat16", [426], with_rules=False))
    assert outcome.verdict == "diverged"


def test_wild_models_differ():
    configs = [wild_config(seed) for seed in range(100)]
    assert len(set(configs)) == len(configs)
    assert {config.kind for config in configs} == {"encoder", "encoder_decoder", "attention"}
    assert {config.masking for config in configs} == {"exclude", "fill", "add"}
    assert {config.norm for config in configs} == {"layer_norm", "scalar_layer_norm"}
    assert {config.source_vocabulary == 0 for config in configs if config.kind == "encoder_decoder"} == {True, False}
    for name in ("feed_forward_bias", "norm_bias", "final_norm_bias"):
        assert {getattr(config, name) for config in configs} == {True, False}
    assert max(config.layers for config in configs) == 12
    assert max(config.hidden_size for config in configs) > 200
    assert wild_checkpoint(0, "float32").digest == wild_checkpoint(0, "float32").digest
