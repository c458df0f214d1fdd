"""The guide in docs/porting.md: a made-up dialect, added, recognised, ported and compared with its library."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch

from triglot.shared.porting.dialects import DIALECTS

PAGE = Path(__file__).parents[2] / "docs" / "porting.md"
PACKAGE = "triglot.shared.porting.dialects"


@pytest.fixture
def blocks(tmp_path, monkeypatch):
    """The code of the guide: the library, the dialect, and the proof."""
    section = PAGE.read_text().split("\n## Add a dialect\n")[1].split("\n## ")[0]
    blocks = re.findall(r"^```python\n(.*?)^```$", section, re.DOTALL | re.MULTILINE)
    assert len(blocks) == 3
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    return blocks


def follow(library, dialect, proof, monkeypatch):
    """Do what the guide says."""
    module: dict[str, Any] = {"__name__": f"{PACKAGE}.acme", "__package__": PACKAGE}
    exec(dialect, module)
    monkeypatch.setitem(DIALECTS, "acme", module["DIALECT"])
    user: dict[str, Any] = {}
    exec(library, user)
    exec(proof, user)


def test_the_guide_works(blocks, monkeypatch):
    library, dialect, proof = blocks
    follow(library, dialect, proof, monkeypatch)


@pytest.mark.parametrize(
    ("line", "mistake"),
    [
        ("transposed=True", "transposed=False"),
        ('("q", "k", "v", "o")', '("k", "q", "v", "o")'),
        ('"post_process": "dan"', '"post_process": "da"'),
    ],
)
def test_the_proof_of_the_guide_notices_a_mistake(line, mistake, blocks, monkeypatch):
    library, dialect, proof = blocks
    assert line in dialect
    with pytest.raises((AssertionError, ValueError)):
        follow(library, dialect.replace(line, mistake), proof, monkeypatch)
