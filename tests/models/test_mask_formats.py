"""Masks convert between every format and layout, and agree with those that the articles and the libraries use."""

import itertools
import re
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from torch import nn

from triglot.shared.errors import InputError
from triglot.shared.model import masks
from triglot.shared.model.mask_formats import FORMATS, LAYOUTS, export_mask, import_mask

DOCUMENT = Path(__file__).parents[2] / "docs" / "masks.md"
BATCH, HEADS, QUERIES, KEYS = 2, 3, 4, 5
SHAPES = {
    "padding": (BATCH, 1, 1, KEYS),
    "queries": (1, 1, QUERIES, KEYS),
    "heads": (BATCH, HEADS, QUERIES, KEYS),
    "full": (BATCH, 1, QUERIES, KEYS),
}
ADDITIVE = [name for name, values in FORMATS.items() if values.dtypes == "floats"]
HIDDEN = {"add_infinity": -np.inf, "add_1e9": -1e9, "add_1e4": -1e4, "add_minimum": -float(np.finfo(np.float32).max)}
FLOATS = {"float64": np.float64, "float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}

# Sentences of ids as in article 000; 2 is padding.
IDS = torch.tensor([[0, 7, 5, 9, 1], [0, 4, 1, 2, 2]])
VALID = np.array([[True, True, True, True, True], [True, True, True, False, False]])
LOWER = np.array(
    [
        [True, False, False, False, False],
        [True, True, False, False, False],
        [True, True, True, False, False],
        [True, True, True, True, False],
        [True, True, True, True, True],
    ]
)


def assert_same(mask, expected):
    assert mask.dtype == expected.dtype
    assert mask.shape == expected.shape
    assert mask.tobytes() == expected.tobytes()


def draw(layout):
    allowed = np.random.default_rng(0).random(SHAPES[layout]) < 0.5
    assert allowed.any()
    assert not allowed.all()
    return allowed


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("one", "other"), [*itertools.product(FORMATS, FORMATS)])
def test_every_format_converts_to_every_other_and_back_bit_for_bit(one, other, layout):
    heads = HEADS if layout == "heads" else 1
    allowed = draw(layout)
    first = export_mask(allowed, one, layout)
    second = export_mask(import_mask(first, one, layout, heads=heads), other, layout)
    back = import_mask(second, other, layout, heads=heads)
    assert_same(back, allowed)
    assert_same(export_mask(back, one, layout), first)


@pytest.mark.parametrize(("mask_format", "dtype"), [*itertools.product(ADDITIVE, FLOATS)])
def test_the_numbers_of_an_additive_mask(mask_format, dtype):
    allowed = draw("full")
    if (mask_format, dtype) == ("add_1e9", "float16"):
        message = "float16 cannot hold -1000000000.0.*'add_1e9'"
        with pytest.raises(InputError, match=message):
            export_mask(allowed, mask_format, "full", dtype=dtype)
        with pytest.raises(InputError, match=message):
            import_mask(np.zeros(SHAPES["full"], np.float16), mask_format, "full")
        return
    lowest = {"float64": -np.finfo(np.float64).max, "float32": -np.finfo(np.float32).max, "float16": -65504.0}
    lowest["bfloat16"] = float(ml_dtypes.finfo(ml_dtypes.bfloat16).min)
    value = {**HIDDEN, "add_minimum": lowest[dtype]}[mask_format]
    mask = export_mask(allowed, mask_format, "full", dtype=dtype)
    assert_same(mask, np.where(allowed, 0.0, value).astype(FLOATS[dtype]))
    assert_same(import_mask(mask, mask_format, "full"), allowed)


def test_bools_and_integers():
    allowed = draw("full")
    assert_same(export_mask(allowed, "true_attends", "full"), allowed)
    assert_same(export_mask(allowed, "true_ignores", "full"), ~allowed)
    assert_same(export_mask(allowed, "one_attends", "full"), allowed.astype(np.int64))
    for dtype in (np.int64, np.int32, np.uint8):
        assert_same(import_mask(allowed.astype(dtype), "one_attends", "full"), allowed)


def test_minus_zero_attends_too():
    """BERT computes (1 - mask) * -10000, which gives -0.0."""
    ones = np.array([[1.0, 1.0, 0.0]], np.float32)
    mask = (1 - ones) * np.float32(-1e4)
    assert np.signbit(mask[0, 0])
    assert_same(import_mask(mask, "add_1e4", "padding"), np.array([[[[True, True, False]]]]))


def test_an_exported_mask_is_a_new_array():
    allowed = draw("full")
    for mask_format in FORMATS:
        mask = export_mask(allowed, mask_format, "full")
        assert not np.shares_memory(mask, allowed)
        assert mask.flags.writeable


# The masks of the articles, written as in their text.


def test_article_000_hides_where_true():
    pad = (IDS == 2).reshape(-1, 1, 1, 5).expand(-1, 1, 5, 5)
    later = 1 - torch.tril(torch.ones(1, 5, 5, dtype=torch.long))
    tril = ((IDS == 2).unsqueeze(1).long() + later > 0).unsqueeze(dim=1)
    allowed = import_mask(pad.numpy(), "true_ignores", "full")
    assert_same(allowed, np.broadcast_to(masks.padding(VALID), (2, 1, 5, 5)).copy())
    assert_same(export_mask(allowed, "true_attends", "padding"), VALID)
    combined = masks.combine(masks.padding(VALID), masks.causal(5))
    assert_same(import_mask(tril.numpy(), "true_ignores", "full"), combined)
    assert_same(export_mask(combined, "true_ignores", "full"), tril.numpy())


def test_article_002_adds_infinity_or_attends_where_true():
    added = torch.triu(torch.ones(5, 5) * float("-inf"), diagonal=1)
    boolean = torch.tril(torch.ones(5, 5), diagonal=0).bool()
    assert_same(import_mask(added.numpy(), "add_infinity", "queries"), masks.causal(5))
    assert_same(import_mask(boolean.numpy(), "true_attends", "queries"), masks.causal(5))
    assert_same(export_mask(masks.causal(5), "add_infinity", "queries"), added.numpy())


def test_article_003_hides_where_zero():
    mask = (IDS != 2).unsqueeze(1).unsqueeze(1).int() & torch.tril(torch.ones(1, 1, 5, 5)).int()
    allowed = import_mask(mask.numpy(), "one_attends", "full")
    assert_same(allowed, masks.combine(masks.padding(VALID), masks.causal(5)))
    scores = torch.randn(2, 3, 5, 5)
    filled = scores.masked_fill(mask == 0, -1e9)
    assert_same(np.where(allowed, scores.numpy(), np.float32(-1e9)), filled.numpy())


def test_article_004_ignores_padding_where_true_and_adds_the_rest():
    key_padding_mask = ~torch.from_numpy(VALID)
    assert_same(import_mask(key_padding_mask.numpy(), "true_ignores", "padding"), masks.padding(VALID))
    two = nn.Transformer.generate_square_subsequent_mask(5)
    three = two.repeat(2 * 3, 1, 1)
    assert_same(import_mask(two.numpy(), "add_infinity", "queries"), masks.causal(5))
    of_heads = import_mask(three.numpy(), "add_infinity", "heads", heads=3)
    assert_same(of_heads, np.broadcast_to(masks.causal(5), (2, 3, 5, 5)).copy())
    assert_same(export_mask(masks.causal(5), "add_infinity", "heads", shape=(2, 3, 5, 5)), three.numpy())


# The masks of libraries.


def test_torch_builds_its_causal_mask_with_infinity():
    theirs = nn.Transformer.generate_square_subsequent_mask(5).numpy()
    assert_same(import_mask(theirs, "add_infinity", "queries"), LOWER[None, None])
    assert_same(export_mask(LOWER[None, None], "add_infinity", "queries"), theirs)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_transformers_adds_the_lowest_finite_number(dtype):
    from transformers import BertConfig
    from transformers.masking_utils import create_bidirectional_mask, create_causal_mask

    config = BertConfig()
    config._attn_implementation = "eager"
    embedded = torch.zeros(2, 5, 8, dtype=getattr(torch, dtype))
    attention_mask = torch.from_numpy(VALID).long()
    assert_same(import_mask(attention_mask.numpy(), "one_attends", "padding"), masks.padding(VALID))
    theirs = numpy_of(create_bidirectional_mask(config, embedded, attention_mask))
    padding = import_mask(theirs, "add_minimum", "full")
    assert_same(padding, np.broadcast_to(masks.padding(VALID), (2, 1, 5, 5)).copy())
    assert_same(export_mask(masks.padding(VALID), "add_minimum", "full", shape=(2, 1, 5, 5), dtype=dtype), theirs)
    theirs = numpy_of(create_causal_mask(config, embedded, attention_mask, None))
    combined = masks.combine(masks.padding(VALID), masks.causal(5))
    assert_same(import_mask(theirs, "add_minimum", "full"), combined)
    assert_same(export_mask(combined, "add_minimum", "full", dtype=dtype), theirs)


def numpy_of(mask):
    """Return a mask of transformers as an array. It is None only if nothing is hidden, and here something is."""
    assert mask is not None
    return mask.numpy()


def test_flax_attends_where_true():
    from flax import nnx
    from jax import numpy as jnp

    theirs = np.asarray(nnx.make_causal_mask(jnp.ones((1, 5)), dtype=jnp.bool_))
    assert_same(import_mask(theirs, "true_attends", "full"), masks.causal(5))
    theirs = np.asarray(nnx.make_attention_mask(jnp.ones((2, 5)), jnp.asarray(VALID), dtype=jnp.bool_))
    assert_same(export_mask(import_mask(theirs, "true_attends", "full"), "true_attends", "padding"), VALID)


@pytest.fixture(scope="module")
def attention():
    """Return two functions of a mask: torch.nn.MultiheadAttention, and the same by scaled_dot_product_attention."""
    torch.manual_seed(0)
    layer = nn.MultiheadAttention(12, HEADS, batch_first=True, dtype=torch.float64).eval()
    query = torch.randn(BATCH, QUERIES, 12, dtype=torch.float64)
    memory = torch.randn(BATCH, KEYS, 12, dtype=torch.float64)

    def expected(allowed):
        projected = nn.functional.linear(torch.cat([query, memory], 1), layer.in_proj_weight, layer.in_proj_bias)
        split = projected.view(BATCH, -1, 3, HEADS, 4).permute(2, 0, 3, 1, 4)
        q, k, v = split[0, :, :, :QUERIES], split[1, :, :, QUERIES:], split[2, :, :, QUERIES:]
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=torch.from_numpy(allowed))
        return layer.out_proj(mixed.transpose(1, 2).reshape(BATCH, QUERIES, 12)).detach().numpy()

    def attend(**options):
        options = {name: torch.from_numpy(mask) for name, mask in options.items()}
        return layer(query, memory, memory, **options, need_weights=False)[0].detach().numpy()

    return attend, expected


def assert_same_attention(found, expected):
    # Sums of at most 12 products of numbers below 4 in float64, five times in a row, by two orders.
    np.testing.assert_allclose(found, expected, rtol=0, atol=5 * 2 * 12 * 16 * 2.0**-53)


def draw_visible(layout):
    """Return a mask in which every row sees something."""
    allowed = draw(layout)
    allowed[..., 1] = True
    return allowed


@pytest.mark.parametrize("mask_format", ["true_ignores", "add_infinity", "add_1e9", "add_1e4"])
@pytest.mark.parametrize("layout", ["queries", "heads", "padding"])
def test_multihead_attention_of_torch_obeys_an_exported_mask(attention, mask_format, layout):
    attend, expected = attention
    allowed = draw_visible(layout)
    name = "key_padding_mask" if layout == "padding" else "attn_mask"
    found = attend(**{name: export_mask(allowed, mask_format, layout, dtype="float64")})
    assert_same_attention(found, expected(allowed))
    with pytest.raises(AssertionError, match="Not equal to tolerance"):
        assert_same_attention(attend(), expected(allowed))


def test_multihead_attention_of_torch_obeys_a_mask_for_each_head(attention):
    """Masks without a heads or batch axis are repeated along it."""
    attend, expected = attention
    for layout in ("padding", "queries", "full"):
        allowed = draw_visible(layout)
        mask = export_mask(allowed, "true_ignores", "heads", shape=(BATCH, HEADS, QUERIES, KEYS))
        assert mask.shape == (BATCH * HEADS, QUERIES, KEYS)
        assert_same_attention(attend(attn_mask=mask), expected(allowed))


@pytest.mark.parametrize("mask_format", ["true_attends", "one_attends", "add_1e9", "add_infinity"])
def test_multihead_attention_of_paddle_obeys_an_exported_mask(mask_format):
    import paddle

    paddle.seed(0)
    layer, allowed = paddle.nn.MultiHeadAttention(12, HEADS), draw_visible("full")
    layer.eval()
    query, memory = paddle.randn([BATCH, QUERIES, 12]), paddle.randn([BATCH, KEYS, 12])

    def attend(mask):
        return layer(query, memory, memory, attn_mask=paddle.to_tensor(mask)).numpy()

    expected = attend(np.where(allowed, np.float32(0), np.float32(-np.inf)))
    found = attend(export_mask(allowed, mask_format, "full"))
    assert_same(found, expected)  # the same arithmetic, and a weight that is exactly 0
    assert np.abs(attend(export_mask(~allowed, mask_format, "full")) - expected).max() > 0.01


# Refusals.


@pytest.mark.parametrize("shape", [(5,), (4, 5, 5, 5, 5), (2, 1, 4, 5, 1)])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_masks_of_one_and_of_five_dimensions_are_refused(layout, shape):
    with pytest.raises(InputError, match=re.escape(f"{shape}; expected {LAYOUTS[layout]}")):
        import_mask(np.ones(shape, np.bool_), "true_attends", layout)
    with pytest.raises(InputError, match=re.escape(f"bool {shape}; expected bool (B, H, T, S)")):
        export_mask(np.ones(shape, np.bool_), "true_attends", layout)


@pytest.mark.parametrize(
    ("layout", "shape"), [("padding", (2, 4, 5)), ("queries", (1, 4, 5)), ("heads", (4, 5)), ("full", (6, 4, 5))]
)
def test_another_layout_is_refused(layout, shape):
    with pytest.raises(InputError, match=rf"shape {re.escape(str(shape))}; expected .* '{layout}'"):
        import_mask(np.ones(shape, np.bool_), "true_attends", layout)


@pytest.mark.parametrize("shape", [(0, 5), (5, 0)])
def test_an_empty_mask_is_refused(shape):
    with pytest.raises(InputError, match=rf"shape {re.escape(str(shape))}; expected \(T, S\)"):
        import_mask(np.ones(shape, np.bool_), "true_attends", "queries")
    with pytest.raises(InputError, match=rf"bool {re.escape(str((1, 1, *shape)))}; expected"):
        export_mask(np.ones((1, 1, *shape), np.bool_), "true_attends", "queries")


WRONG_DTYPES = {
    "true_attends": ("int64", "float32"),
    "true_ignores": ("uint8", "float64"),
    "one_attends": ("bool", "float32"),
    **dict.fromkeys(ADDITIVE, ("bool", "int64", "complex64", ">f4")),
}


@pytest.mark.parametrize(
    ("mask_format", "dtype"), [(name, dtype) for name, all_ in WRONG_DTYPES.items() for dtype in all_]
)
def test_a_wrong_dtype_is_refused(mask_format, dtype):
    with pytest.raises(InputError, match=re.escape(f"{np.dtype(dtype)}; expected {FORMATS[mask_format].dtypes}")):
        import_mask(np.zeros((4, 5), dtype), mask_format, "queries")


@pytest.mark.parametrize(
    ("mask_format", "value"),
    [(name, value) for name in ADDITIVE for value in (np.nan, np.inf, 1.0, *HIDDEN.values()) if value != HIDDEN[name]],
)
def test_another_number_in_an_additive_mask_is_refused(mask_format, value):
    mask = export_mask(draw("full"), mask_format, "full")
    mask[1, 0, 2, 3] = value
    shown, hidden = np.float32(value), np.float32(HIDDEN[mask_format])
    with pytest.raises(InputError, match=re.escape(f"holds {shown}; expected only 0.0 and {hidden}")):
        import_mask(mask, mask_format, "full")


@pytest.mark.parametrize("value", [2, -1])
def test_another_integer_is_refused(value):
    mask = np.array([[1, 0, value]])
    with pytest.raises(InputError, match=f"holds {value}; expected only 1 and 0"):
        import_mask(mask, "one_attends", "padding")


def test_a_tensor_is_refused():
    with pytest.raises(InputError, match="Tensor; expected a NumPy array"):
        import_mask(torch.ones(4, 5), "add_infinity", "queries")  # pyright: ignore[reportArgumentType]
    with pytest.raises(InputError, match=r"Tensor; expected bool \(B, H, T, S\)"):
        export_mask(torch.ones(1, 1, 4, 5), "add_infinity", "queries")  # pyright: ignore[reportArgumentType]
    with pytest.raises(InputError, match=r"int64 \(1, 1, 4, 5\); expected bool"):
        export_mask(np.ones((1, 1, 4, 5), np.int64), "add_infinity", "queries")  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("heads", [0, -1, 4])
def test_rows_that_the_heads_do_not_divide_are_refused(heads):
    with pytest.raises(InputError, match=rf"\(6, 4, 5\); expected \(B \* {heads}, T, S\)"):
        import_mask(np.ones((6, 4, 5), np.bool_), "true_attends", "heads", heads=heads)


@pytest.mark.parametrize(
    ("layout", "shape", "axis"),
    [
        ("padding", (2, 1, 4, 5), "queries"),
        ("padding", (2, 3, 1, 5), "heads"),
        ("queries", (1, 3, 4, 5), "heads"),
        ("queries", (2, 1, 4, 5), "batch"),
    ],
)
def test_a_layout_that_lacks_an_axis_is_refused(layout, shape, axis):
    allowed = np.random.default_rng(0).random(shape) < 0.5
    with pytest.raises(InputError, match=re.escape(f"{shape} differs along the {axis}") + f".*'{layout}'"):
        export_mask(allowed, "true_attends", layout)
    export_mask(np.ones(shape, np.bool_), "true_attends", layout)


def test_a_shape_that_the_mask_does_not_broadcast_to_is_refused():
    with pytest.raises(InputError, match=r"\(2, 1, 1, 5\) does not broadcast to \(3, 1, 4, 5\)"):
        export_mask(draw("padding"), "true_attends", "heads", shape=(3, 1, 4, 5))


def test_an_unknown_name_is_refused_with_the_known_ones():
    mask, formats, layouts = np.ones((4, 5), np.bool_), ", ".join(FORMATS), ", ".join(LAYOUTS)
    unknown: Any = "true"
    with pytest.raises(InputError, match=f"format 'true'; expected one of {formats}"):
        import_mask(mask, unknown, "queries")
    with pytest.raises(InputError, match=f"format 'true'; expected one of {formats}"):
        export_mask(mask[None, None], unknown, "queries")
    with pytest.raises(InputError, match=f"layout 'true'; expected one of {layouts}"):
        import_mask(mask, "true_attends", unknown)
    with pytest.raises(InputError, match=f"layout 'true'; expected one of {layouts}"):
        export_mask(mask[None, None], "true_attends", unknown)
    with pytest.raises(InputError, match="'int8'; expected one of float64, float32, float16"):
        export_mask(mask[None, None], "add_1e4", "queries", dtype="int8")


# The document.


def test_the_example_of_the_document_runs():
    (code,) = re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)
    names: dict = {}
    exec(code, names)
    assert_same(names["allowed"], names["padding"] & np.tri(4, dtype=bool))
    for name, shape in (("padding", (2, 1, 1, 4)), ("allowed", (2, 1, 4, 4)), ("attn_mask", (6, 4, 4))):
        assert names[name].shape == shape
        assert re.search(rf"{name} = .*# {re.escape(str(shape))}", code)
    assert_same(names["key_padding_mask"], names["attention_mask"] == 0)


def test_the_document_names_every_format_and_layout():
    named = re.findall(r"^\| `(\w+)` \|", DOCUMENT.read_text(), re.MULTILINE)
    assert named == [*FORMATS, *LAYOUTS]
