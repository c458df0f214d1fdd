"""The parity check catches and locates planted bugs.

Each bug of the catalogue is planted in the source text of one framework's implementation, as a person would make it.
The check has to catch it and name its place. Here, every ninth bug is tried in one framework, and in ``make test-all``
every third. ``make audit`` tries all in every framework, with the weights and inputs of 20 seeds.
"""

import itertools

import pytest

from triglot.impls import FRAMEWORKS
from triglot.parity.audit.bug import ATTENTION, POST_NORM
from triglot.parity.audit.catalogue import BLIND, BUGS, INVISIBLE, blind
from triglot.parity.audit.catalogue.below_rounding import CHANGES
from triglot.parity.audit.mutants import changed_source, planted
from triglot.parity.audit.run import Task, judge, run
from triglot.shared.arrays import HALVES

# In bfloat16, these bugs show only after their errors accumulate, not in the step that causes them.
ACCUMULATED = {"bfloat16": {"weights rounded to float16 when loaded"}}
IN_FORWARD_PASS = [name for name, bug in BUGS.items() if bug.in_forward_pass]
OTHER_DTYPES = ("bfloat16", "float64", "float16")
WITHOUT_KERNELS = {("paddle", dtype) for dtype in HALVES}  # on a CPU, only its inference engine has some
TURNS = (*("torch", "paddle") * 14, "jax")
COPIES = {"post-norm": POST_NORM, "attention": ATTENTION}
COPIED = [  # one of them in all number formats
    ("attention", "float32"),
    *(("post-norm", dtype) for dtype in ("float32", *HALVES)),
]


def pytest_generate_tests(metafunc):
    """Plant some bugs in one framework each, and a few in other dtypes; ``triglot audit`` takes all of them everywhere.

    JAX takes the most time, because it compiles every operation of a new shape, so it gets the fewest bugs.
    """
    names = set(metafunc.fixturenames)
    if {"bug", "dtype"} <= names:
        some = list(zip(IN_FORWARD_PASS[::34], itertools.cycle(OTHER_DTYPES), strict=False))
        some.append(("tanh GELU for the exact GELU", "float16"))
        runs = [
            (*pair, framework)
            for number, pair in enumerate(some)
            for framework in FRAMEWORKS
            if (framework, pair[1]) not in WITHOUT_KERNELS and (framework != "jax" or number < len(OTHER_DTYPES))
        ]
        metafunc.parametrize(("bug", "dtype", "tried_in"), runs)
    elif {"bug", "tried_in"} <= names:
        tried = zip([*BUGS][::3], itertools.cycle(TURNS), strict=False)
        runs = [pytest.param(*run, marks=[pytest.mark.long] if number % 3 else []) for number, run in enumerate(tried)]
        metafunc.parametrize(("bug", "tried_in"), runs)
    elif {"hidden", "tried_in"} <= names:
        every = list(itertools.product([bug for bug in IN_FORWARD_PASS if bug not in INVISIBLE], FRAMEWORKS))
        metafunc.parametrize(("hidden", "tried_in"), every[::80])
    if "change" in names:
        metafunc.parametrize(("change", "tried_in"), list(zip(CHANGES, itertools.cycle(FRAMEWORKS), strict=False)))
    if "copied" in names:
        metafunc.parametrize(("copied", "dtype"), COPIED)


def test_planted_bug_is_caught_and_located(bug, tried_in):
    (outcome,) = run(Task(bug, tried_in, "float32", [0], with_rules=False))
    assert outcome.verdict == "diverged", outcome
    assert outcome.located, outcome


def test_planted_bug_is_caught_in_a_program_without_a_probe(hidden, tried_in):
    """What the probe sees is correct. Only the results of the public methods can show the bug."""
    (outcome,) = run(Task(hidden, tried_in, "float32", [0], only_without_probe=True))
    assert outcome.verdict == "diverged", outcome
    assert outcome.located, outcome


@pytest.mark.long(tried_in="jax")
def test_planted_bug_is_caught_in_other_dtypes(bug, dtype, tried_in):
    (outcome,) = run(Task(bug, tried_in, dtype, [0]))
    if bug in BLIND.get(dtype, ()):
        assert outcome.verdict == "pass", "it is caught now: remove it from BLIND"
        return
    assert outcome.verdict == "diverged"
    assert outcome.located != (bug in ACCUMULATED.get(dtype, ()))


@pytest.mark.long
def test_only_the_wrong_gradient_is_named(framework, make_checkpoint):
    """Not also the gradients of key biases, which are zero in theory and have only rounding errors."""
    bug = BUGS["gradients added to those of the call before"]
    (derived,) = bug.change(framework)
    name = "encoder.layers.0.feed_forward.inner.weight"
    changed = f"gradients = {{name: value * (1 + 1e-4 * (name == {name!r})) for name, value in gradients.items()}}"
    with planted(framework, bug.file, {derived: f"{derived}; {changed}"}) as builder:
        report = judge(framework, builder, make_checkpoint(POST_NORM), checks=["gradients"])
    assert [row.name for row in report.rows if row.verdict == "diverged"] == [f"gradients.{name}"]


def test_a_change_below_rounding_is_not_seen_in_float32(change, tried_in, make_checkpoint):
    """Float64 shows the change. In float32 it is smaller than the error that correct code may have."""
    bug = CHANGES[change]
    with planted(tried_in, bug.file, bug.change(tried_in)) as builder:
        assert judge(tried_in, builder, make_checkpoint(bug.recipe)).verdict == "pass"
        in_float64 = judge(tried_in, builder, make_checkpoint(bug.recipe), dtype="float64", checks=["steps"])
    assert in_float64.first_divergence[tried_in].name == bug.found_at


def test_a_verdict_names_only_bugs_of_heads_that_the_model_has():
    bug = "shortest length 1e-6 for 1e-12"
    assert bug in blind("float16", BUGS[bug].config, ["steps"])
    assert bug not in blind("float16", BUGS["pooler reads the last token"].config, ["steps"])
    assert blind("float16", BUGS[bug].config, ["gradients"]) == blind("float32", BUGS[bug].config, ["steps"]) == ()


@pytest.mark.long(framework="jax")
def test_unchanged_copy_passes(copied, dtype, framework, make_checkpoint):
    """The mutants fail because of their bugs, not because they are copies."""
    with planted(framework, "attention.py", {}) as builder:
        report = judge(framework, builder, make_checkpoint(COPIES[copied]), dtype=dtype)
    assert report.verdict == ("error" if framework == "paddle" and dtype in HALVES else "pass")
    assert not report.first_divergence


@pytest.mark.long
def test_sum_in_place_passes(framework, make_checkpoint):
    """A sum in place changes the value of the previous step, but not the copy that the probe recorded.

    Arrays of JAX never change.
    """
    in_place = {"x + residual": "x + residual" if framework == "jax" else "x.add_(residual)"}
    with planted(framework, "process.py", in_place) as builder:
        assert judge(framework, builder, make_checkpoint(POST_NORM)).verdict == "pass"


def test_a_bug_that_no_longer_fits_the_source_is_refused(framework):
    refused = pytest.raises(ValueError, match=r"'no such text' is not in attention\.py; update the bug")
    with refused, planted(framework, "attention.py", {"no such text": "x"}):
        pass


def test_every_bug_changes_every_framework(framework):
    """Only some bugs are planted, in one framework each. Here, each change has to fit the source of every framework."""
    for bug in [*BUGS.values(), *CHANGES.values()]:
        unchanged = changed_source(framework, bug.file, {})
        assert changed_source(framework, bug.file, bug.change(framework)) != unchanged
    assert set(INVISIBLE) < set(BUGS)
