"""padiff in the audit: it passes correct code, catches a gross bug, and is skipped if it cannot run."""

import sys

import torch

from triglot.impls import build
from triglot.parity.audit import padiff
from triglot.parity.audit.catalogue import BUGS
from triglot.parity.audit.mutants import planted
from triglot.parity.audit.run import batch_of

STRICT = "padiff, every entry within 1e-5"


def test_padiff_passes_correct_code_and_catches_a_gross_bug(framework, make_checkpoint, capfd):
    checkpoint = make_checkpoint("bert-base-tiny")
    batch = batch_of(checkpoint.config, 0)
    correct = padiff.complaints(framework, build(framework, checkpoint), checkpoint, batch)
    if framework not in padiff.FRAMEWORKS:
        assert correct == {}
        return
    assert set(correct) == set(padiff.RULES)
    assert not correct[STRICT]
    path = list(sys.path)  # importing a framework may have changed it before
    bug = BUGS["scores not scaled"]
    with planted(framework, bug.file, bug.change(framework)) as mutant:
        assert padiff.complaints(framework, mutant(checkpoint, "float32", "eager"), checkpoint, batch)[STRICT]
    assert sys.path == path
    assert str(torch.tensor(1 / 3)) == "tensor(0.3333)", "padiff changed how PyTorch prints"
    assert "AutoDiff" not in capfd.readouterr().out


def test_padiff_is_not_tried_where_it_cannot_run(make_checkpoint, framework):
    attention = make_checkpoint("multihead-tiny")
    assert padiff.complaints(framework, build(framework, attention), attention, batch_of(attention.config, 0)) == {}
    encoder = make_checkpoint("bert-base-tiny")
    wide = build(framework, encoder, dtype="float64")
    assert padiff.complaints(framework, wide, encoder, batch_of(encoder.config, 0)) == {}
