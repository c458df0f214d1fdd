"""Input that does not fit attention alone is refused, and so are the methods of other models."""

from typing import Any

import numpy as np
import pytest
from attention_inputs import CONFIG, vectors

import triglot
from triglot import impls
from triglot.shared import inputs


def array(*shape, dtype="float32"):
    return np.ones(shape, dtype)


MASK_SHAPES = r"expected \(5, 7\), \(12, 5, 7\), or \(4, 3, 5, 7\)"
VECTORS = r"expected float32 or float64 \(B, T, 24\).*batch_first=False"
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "flat query": ({"query": array(5, 24)}, rf"query is float32 \(5, 24\); {VECTORS}"),
    "key of another size": ({"key": array(4, 7, 23)}, rf"key is float32 \(4, 7, 23\); {VECTORS}"),
    "integer values": ({"value": array(4, 7, 24, dtype="int64")}, rf"value is int64 .*; {VECTORS}"),
    "float16 query": ({"query": array(4, 5, 24, dtype="float16")}, rf"query is float16 .*; {VECTORS}"),
    "NaN query": ({"query": array(4, 5, 24) * np.nan}, "query is not finite"),
    "infinite key": ({"key": array(4, 7, 24) * np.inf}, "key is not finite"),
    "value beyond float32": ({"value": array(4, 7, 24, dtype="float64") * 1e39}, "value is not finite in float32"),
    "no query": ({"query": array(4, 0, 24)}, r"query is empty.*at least one"),
    "no rows": ({"key": array(0, 7, 24)}, r"key is empty.*at least one"),
    "ragged query": ({"query": [[[1.0]], [[1.0, 2.0]]]}, r"query.*different lengths; pad"),
    "keys longer than values": ({"key": array(4, 8, 24)}, r"query, key and value.*keys as long as values"),
    "query of another batch": ({"query": array(3, 5, 24)}, r"query, key and value.*as many rows in each"),
    "length first without batch_first=False": (
        {"query": array(5, 4, 24), "key": array(7, 4, 24), "value": array(7, 4, 24)},
        r"query, key and value.*batch first; expected as many rows",
    ),
    "long query": ({"query": array(4, 30, 24)}, "query length 30 is over the maximum 29"),
    "long keys": ({"key": array(4, 38, 24), "value": array(4, 38, 24)}, "key length 38 is over the maximum 37"),
    "float key_valid": ({"key_valid": array(4, 7)}, r"key_valid is float32.*bool \(4, 7\)"),
    "key_valid of the query": ({"key_valid": array(4, 5, dtype="bool")}, r"key_valid.*\(4, 5\).*bool \(4, 7\)"),
    "bool bias": ({"bias": array(5, 7, dtype="bool")}, r"bias is bool.*expected float32 or float64"),
    "float16 bias": ({"bias": array(5, 7, dtype="float16")}, r"bias is float16.*expected float32 or float64"),
    "NaN bias": ({"bias": array(5, 7) * np.nan}, r"bias.*finite or minus infinity"),
    "infinite bias": ({"bias": array(5, 7) * np.inf}, r"bias.*finite or minus infinity"),
    "bias of one dimension": ({"bias": array(7)}, rf"bias is float32 \(7,\); {MASK_SHAPES}"),
    "transposed bias": ({"bias": array(7, 5)}, rf"bias is float32 \(7, 5\); {MASK_SHAPES}"),
    "bias for each row": ({"bias": array(4, 5, 7)}, rf"bias is float32 \(4, 5, 7\); {MASK_SHAPES}"),
    "bias of two heads": ({"bias": array(4, 2, 5, 7)}, rf"bias is float32 \(4, 2, 5, 7\); {MASK_SHAPES}"),
    "bias of five dimensions": ({"bias": array(1, 1, 1, 5, 7)}, rf"bias .*; {MASK_SHAPES}"),
    "float allowed": ({"allowed": array(5, 7)}, r"allowed is float32.*expected bool"),
    "allowed for each row": ({"allowed": array(4, 5, 7, dtype="bool")}, rf"allowed is bool \(4, 5, 7\); {MASK_SHAPES}"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_input_that_does_not_fit_is_refused(kind):
    changes, message = REFUSED[kind]
    with pytest.raises(triglot.InputError, match=message):
        inputs.attention_batch(CONFIG, **{**vectors(), **changes})


@pytest.mark.parametrize("kind", ["flat query", "bias for each row", "keys longer than values"])
def test_every_implementation_refuses_input_that_does_not_fit(kind, implementation, sharp_attention):
    changes, message = REFUSED[kind]
    with pytest.raises(triglot.InputError, match=message):
        impls.build(implementation, sharp_attention).attend(**{**vectors(), **changes})


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda m: m.encode([[1]]), "nothing to encode; use attend"),
        (lambda m: m.heads([[1]]), "nothing to encode; use attend"),
        (lambda m: m.forward([[1]], [[1]]), "no decoder.*; use attend"),
        (lambda m: m.generate([[1]]), "no decoder.*; use attend"),
    ],
)
def test_attention_alone_refuses_the_other_methods(call, message, implementation, sharp_attention):
    model = impls.build(implementation, sharp_attention)
    with pytest.raises(triglot.InputError, match=message):
        call(model)


@pytest.mark.parametrize("name", ["bert-base-tiny", "translation-tiny"])
def test_other_models_refuse_attend(name, implementation, make_checkpoint):
    model = impls.build(implementation, make_checkpoint(name))
    with pytest.raises(triglot.InputError, match=rf"{model.config.kind}, not attention alone; use encode"):
        model.attend(**vectors())
