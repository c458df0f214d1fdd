"""The harness is a detector, so it is tested with what it has to detect.

Each bug is planted in the source text of each framework's implementation, as a person would make it; the mutant is
imported as a package of its own beside the healthy ones, and has to be caught and its place named.
"""

import importlib.util
import shutil
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from triglot import impls
from triglot.impls.reference import Reference
from triglot.shared import inputs
from triglot.shared.parity import harness
from triglot.shared.parity.judging import Subject
from triglot.shared.parity.pools import LocalPool

RECIPE = "bert-base-tiny"
SOURCES = Path(impls.__file__).parent


@dataclass(frozen=True)
class Bug:
    """What is replaced by what, in which file, per framework; and the name of the value that has to be found."""

    found_at: str
    file: str
    torch: dict[str, str]
    paddle: dict[str, str]
    jax: dict[str, str]


def everywhere(found_at: str, file: str, change: dict[str, str]) -> Bug:
    return Bug(found_at, file, change, change, change)


BUGS = {
    "tanh for exact GELU": Bug(
        "encoder.layers.0.feed_forward.activation",
        "feed_forward.py",
        {'functional.gelu, approximate="none"': 'functional.gelu, approximate="tanh"'},
        {"functional.gelu, approximate=False": "functional.gelu, approximate=True"},
        {"jax.nn.gelu, approximate=False": "jax.nn.gelu, approximate=True"},
    ),
    "epsilon 1e-5 for 1e-12": everywhere(
        "embeddings.process.norm", "norms.py", {"self.eps = config.norm_eps": "self.eps = 1e-5"}
    ),
    "key weights loaded as query weights": everywhere(
        "encoder.layers.0.attention.query",
        "weights.py",
        {"checkpoint.tensors[name]": 'checkpoint.tensors[name.replace("attention.query", "attention.key")]'},
    ),
    "an untransposed square matrix": everywhere(
        "encoder.layers.0.attention.query",
        "weights.py",
        {"checkpoint.tensors[name]": "(t.T if (t := checkpoint.tensors[name]).shape == t.shape[::-1] else t)"},
    ),
    "a mask of opposite sense": everywhere(
        "masks.padding", "masks.py", {"return valid[:, None, None, :]": "return ~valid[:, None, None, :]"}
    ),
    "forbidden scores kept, allowed ones masked": everywhere(
        "encoder.layers.0.attention.weights",
        "masks.py",
        {"where(allowed, scores, value)": "where(~allowed, scores, value)"},
    ),
    "pre-norm for post-norm": everywhere(
        "encoder.layers.0.attention.query",
        "encoder.py",
        {
            'self.pre_attention(x, probe=under(probe, "pre_attention"))': "self.post_attention.norm(x)",
            'self.post_attention(x, residual, probe=under(probe, "post_attention"))': "x + residual",
        },
    ),
    "scaling left out": everywhere(
        "encoder.layers.0.attention.scores", "attention.py", {"query * self.config.key_size**-0.5": "query"}
    ),
    "positions shifted by one": everywhere(
        "embeddings.sum", "embeddings.py", {"+ self.config.position_offset)": "+ self.config.position_offset + 1)"}
    ),
}


@pytest.fixture
def mutant(tmp_path):
    """Builds the model class of an implementation whose source text was changed."""
    names = []

    def build(framework, file, change):
        package = tmp_path / f"mutant_{len(names)}"
        shutil.copytree(SOURCES / impls.FRAMEWORKS[framework], package, ignore=shutil.ignore_patterns("__pycache__"))
        source = (package / file).read_text()
        for old, new in change.items():
            assert old in source, f"{old!r} is not in {file}: the bug has to be planted anew"
            source = source.replace(old, new)
        (package / file).write_text(source)
        # A member of triglot.impls, so that its relative imports find the real shared code.
        name = f"triglot.impls.{package.name}"
        names.append(name)
        spec = importlib.util.spec_from_file_location(
            name, package / "__init__.py", submodule_search_locations=[str(package)]
        )
        assert spec is not None
        assert spec.loader is not None
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
        return importlib.import_module(f"{name}.model").Model

    yield build
    for name in [module for module in sys.modules if module.startswith(tuple(names))] if names else []:
        del sys.modules[name]


def judge(framework, builder, checkpoint):
    weights = harness.weights_for(checkpoint, "float32", seed=0)
    return harness.compare(
        weights,
        inputs.random_batches(checkpoint.config, 1, 4, seed=0),
        [Subject(framework, "eager", "float32")],
        LocalPool({framework: partial(builder, dtype="float32")}, weights),
        Reference,
        seed=0,
        digest=checkpoint.digest,
        model=RECIPE,
        inputs="random tokens",
    )


@pytest.mark.parametrize("bug", BUGS.values(), ids=BUGS)
def test_planted_bug_is_caught_and_located(bug, framework, mutant, make_checkpoint):
    report = judge(framework, mutant(framework, bug.file, getattr(bug, framework)), make_checkpoint(RECIPE))
    assert report.verdict == "diverged"
    assert report.first_divergence[framework].name == bug.found_at
    assert report.first_divergence[framework].kind == "local"


def test_unchanged_copy_passes(framework, mutant, make_checkpoint):
    """The mutants fail because of their bugs, not because they are copies."""
    report = judge(framework, mutant(framework, "attention.py", {}), make_checkpoint(RECIPE))
    assert report.verdict == "pass"
    assert not report.first_divergence
