"""Masks of other code to the canonical one and back: those of the articles, and those that libraries build and take."""

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
from triglot.shared.model.mask_formats import DIALECTS, LAYOUTS, from_dialect, to_dialect

DOCUMENT = Path(__file__).parents[2] / "docs" / "masks.md"
BATCH, HEADS, QUERIES, KEYS = 2, 3, 4, 5
SHAPES = {
    "padding": (BATCH, 1, 1, KEYS),
    "queries": (1, 1, QUERIES, KEYS),
    "heads": (BATCH, HEADS, QUERIES, KEYS),
    "full": (BATCH, 1, QUERIES, KEYS),
}
ADDITIVE = [name for name, meaning in DIALECTS.items() if meaning.dtypes == "floats"]
HIDDEN = {"add_infinity": -np.inf, "add_1e9": -1e9, "add_1e4": -1e4, "add_minimum": -float(np.finfo(np.float32).max)}
FLOATS = {"float64": np.float64, "float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}

# Sentences of ids as article 000 has them; 2 is padding.
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


def drawn(layout):
    allowed = np.random.default_rng(0).random(SHAPES[layout]) < 0.5
    assert allowed.any()
    assert not allowed.all()
    return allowed


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("one", "other"), [*itertools.product(DIALECTS, DIALECTS)])
def test_every_dialect_goes_to_every_other_and_back_bit_for_bit(one, other, layout):
    heads = HEADS if layout == "heads" else 1
    allowed = drawn(layout)
    first = to_dialect(allowed, one, layout)
    second = to_dialect(from_dialect(first, one, layout, heads=heads), other, layout)
    back = from_dialect(second, other, layout, heads=heads)
    assert_same(back, allowed)
    assert_same(to_dialect(back, one, layout), first)


@pytest.mark.parametrize(("dialect", "dtype"), [*itertools.product(ADDITIVE, FLOATS)])
def test_the_numbers_of_an_additive_mask(dialect, dtype):
    allowed = drawn("full")
    if (dialect, dtype) == ("add_1e9", "float16"):
        message = "^float16 cannot hold the -1000000000.0 of the dialect 'add_1e9'; choose another of the two$"
        with pytest.raises(InputError, match=message):
            to_dialect(allowed, dialect, "full", dtype=dtype)
        with pytest.raises(InputError, match=message):
            from_dialect(np.zeros(SHAPES["full"], np.float16), dialect, "full")
        return
    least = {"float64": -np.finfo(np.float64).max, "float32": -np.finfo(np.float32).max, "float16": -65504.0}
    least["bfloat16"] = float(ml_dtypes.finfo(ml_dtypes.bfloat16).min)
    value = {**HIDDEN, "add_minimum": least[dtype]}[dialect]
    mask = to_dialect(allowed, dialect, "full", dtype=dtype)
    assert_same(mask, np.where(allowed, 0.0, value).astype(FLOATS[dtype]))
    assert_same(from_dialect(mask, dialect, "full"), allowed)


def test_bools_and_integers():
    allowed = drawn("full")
    assert_same(to_dialect(allowed, "true_attends", "full"), allowed)
    assert_same(to_dialect(allowed, "true_ignores", "full"), ~allowed)
    assert_same(to_dialect(allowed, "one_attends", "full"), allowed.astype(np.int64))
    for dtype in (np.int64, np.int32, np.uint8):
        assert_same(from_dialect(allowed.astype(dtype), "one_attends", "full"), allowed)


def test_minus_zero_attends_as_well():
    """(1 - mask) * -10000, as BERT computes it, gives -0.0."""
    ones = np.array([[1.0, 1.0, 0.0]], np.float32)
    mask = (1 - ones) * np.float32(-1e4)
    assert np.signbit(mask[0, 0])
    assert_same(from_dialect(mask, "add_1e4", "padding"), np.array([[[[True, True, False]]]]))


def test_a_mask_handed_out_is_a_new_one():
    allowed = drawn("full")
    for dialect in DIALECTS:
        mask = to_dialect(allowed, dialect, "full")
        assert not np.shares_memory(mask, allowed)
        assert mask.flags.writeable


# The masks of the articles, written after their text.


def test_article_000_hides_where_true():
    pad = (IDS == 2).reshape(-1, 1, 1, 5).expand(-1, 1, 5, 5)
    later = 1 - torch.tril(torch.ones(1, 5, 5, dtype=torch.long))
    tril = ((IDS == 2).unsqueeze(1).long() + later > 0).unsqueeze(dim=1)
    allowed = from_dialect(pad.numpy(), "true_ignores", "full")
    assert_same(allowed, np.broadcast_to(masks.padding(VALID), (2, 1, 5, 5)).copy())
    assert_same(to_dialect(allowed, "true_attends", "padding"), VALID)
    combined = masks.combine(masks.padding(VALID), masks.causal(5))
    assert_same(from_dialect(tril.numpy(), "true_ignores", "full"), combined)
    assert_same(to_dialect(combined, "true_ignores", "full"), tril.numpy())


def test_article_002_adds_infinity_or_attends_where_true():
    added = torch.triu(torch.ones(5, 5) * float("-inf"), diagonal=1)
    boolean = torch.tril(torch.ones(5, 5), diagonal=0).bool()
    assert_same(from_dialect(added.numpy(), "add_infinity", "queries"), masks.causal(5))
    assert_same(from_dialect(boolean.numpy(), "true_attends", "queries"), masks.causal(5))
    assert_same(to_dialect(masks.causal(5), "add_infinity", "queries"), added.numpy())


def test_article_003_hides_where_zero():
    mask = (IDS != 2).unsqueeze(1).unsqueeze(1).int() & torch.tril(torch.ones(1, 1, 5, 5)).int()
    allowed = from_dialect(mask.numpy(), "one_attends", "full")
    assert_same(allowed, masks.combine(masks.padding(VALID), masks.causal(5)))
    scores = torch.randn(2, 3, 5, 5)
    filled = scores.masked_fill(mask == 0, -1e9)
    assert_same(np.where(allowed, scores.numpy(), np.float32(-1e9)), filled.numpy())


def test_article_004_ignores_padding_where_true_and_adds_the_rest():
    key_padding_mask = ~torch.from_numpy(VALID)
    assert_same(from_dialect(key_padding_mask.numpy(), "true_ignores", "padding"), masks.padding(VALID))
    two = nn.Transformer.generate_square_subsequent_mask(5)
    three = two.repeat(2 * 3, 1, 1)
    assert_same(from_dialect(two.numpy(), "add_infinity", "queries"), masks.causal(5))
    of_heads = from_dialect(three.numpy(), "add_infinity", "heads", heads=3)
    assert_same(of_heads, np.broadcast_to(masks.causal(5), (2, 3, 5, 5)).copy())
    assert_same(to_dialect(masks.causal(5), "add_infinity", "heads", shape=(2, 3, 5, 5)), three.numpy())


# The masks of libraries.


def test_torch_builds_its_causal_mask_with_infinity():
    theirs = nn.Transformer.generate_square_subsequent_mask(5).numpy()
    assert_same(from_dialect(theirs, "add_infinity", "queries"), LOWER[None, None])
    assert_same(to_dialect(LOWER[None, None], "add_infinity", "queries"), theirs)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_transformers_adds_the_least_finite_number(dtype):
    from transformers import BertConfig
    from transformers.masking_utils import create_bidirectional_mask, create_causal_mask

    config = BertConfig()
    config._attn_implementation = "eager"
    embedded = torch.zeros(2, 5, 8, dtype=getattr(torch, dtype))
    attention_mask = torch.from_numpy(VALID).long()
    assert_same(from_dialect(attention_mask.numpy(), "one_attends", "padding"), masks.padding(VALID))
    theirs = numpy_of(create_bidirectional_mask(config, embedded, attention_mask))
    padding = from_dialect(theirs, "add_minimum", "full")
    assert_same(padding, np.broadcast_to(masks.padding(VALID), (2, 1, 5, 5)).copy())
    assert_same(to_dialect(masks.padding(VALID), "add_minimum", "full", shape=(2, 1, 5, 5), dtype=dtype), theirs)
    theirs = numpy_of(create_causal_mask(config, embedded, attention_mask, None))
    combined = masks.combine(masks.padding(VALID), masks.causal(5))
    assert_same(from_dialect(theirs, "add_minimum", "full"), combined)
    assert_same(to_dialect(combined, "add_minimum", "full", dtype=dtype), theirs)


def numpy_of(mask):
    """What transformers builds; it leaves a mask out that hides nothing, which this one is not."""
    assert mask is not None
    return mask.numpy()


def test_flax_attends_where_true():
    from flax import nnx
    from jax import numpy as jnp

    theirs = np.asarray(nnx.make_causal_mask(jnp.ones((1, 5)), dtype=jnp.bool_))
    assert_same(from_dialect(theirs, "true_attends", "full"), masks.causal(5))
    theirs = np.asarray(nnx.make_attention_mask(jnp.ones((2, 5)), jnp.asarray(VALID), dtype=jnp.bool_))
    assert_same(to_dialect(from_dialect(theirs, "true_attends", "full"), "true_attends", "padding"), VALID)


@pytest.fixture(scope="module")
def attention():
    """torch.nn.MultiheadAttention, what it reads, and what it gives for a mask handed to the plain product of torch."""
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

    def given(**options):
        options = {name: torch.from_numpy(mask) for name, mask in options.items()}
        return layer(query, memory, memory, **options, need_weights=False)[0].detach().numpy()

    return given, expected


def assert_same_attention(found, expected):
    # Sums of at most 12 products of numbers below 4 in float64, five times in a row, by two orders.
    np.testing.assert_allclose(found, expected, rtol=0, atol=5 * 2 * 12 * 16 * 2.0**-53)


def seen(layout):
    """A mask of which every row sees something."""
    allowed = drawn(layout)
    allowed[..., 1] = True
    return allowed


@pytest.mark.parametrize("dialect", ["true_ignores", "add_infinity", "add_1e9", "add_1e4"])
@pytest.mark.parametrize("layout", ["queries", "heads", "padding"])
def test_multihead_attention_of_torch_obeys_a_mask_in_its_dialects(attention, dialect, layout):
    given, expected = attention
    allowed = seen(layout)
    name = "key_padding_mask" if layout == "padding" else "attn_mask"
    found = given(**{name: to_dialect(allowed, dialect, layout, dtype="float64")})
    assert_same_attention(found, expected(allowed))
    with pytest.raises(AssertionError, match="Not equal to tolerance"):
        assert_same_attention(given(), expected(allowed))


def test_multihead_attention_of_torch_takes_a_mask_for_each_head_of_each_row(attention):
    """A mask without heads, and one without rows, written out for all of them."""
    given, expected = attention
    for layout in ("padding", "queries", "full"):
        allowed = seen(layout)
        mask = to_dialect(allowed, "true_ignores", "heads", shape=(BATCH, HEADS, QUERIES, KEYS))
        assert mask.shape == (BATCH * HEADS, QUERIES, KEYS)
        assert_same_attention(given(attn_mask=mask), expected(allowed))


@pytest.mark.parametrize("dialect", ["true_attends", "one_attends", "add_1e9", "add_infinity"])
def test_multihead_attention_of_paddle_obeys_a_mask_in_its_dialects(dialect):
    import paddle

    paddle.seed(0)
    layer, allowed = paddle.nn.MultiHeadAttention(12, HEADS), seen("full")
    layer.eval()
    query, memory = paddle.randn([BATCH, QUERIES, 12]), paddle.randn([BATCH, KEYS, 12])

    def attend(mask):
        return layer(query, memory, memory, attn_mask=paddle.to_tensor(mask)).numpy()

    expected = attend(np.where(allowed, np.float32(0), np.float32(-np.inf)))
    found = attend(to_dialect(allowed, dialect, "full"))
    assert_same(found, expected)  # the same arithmetic, and a weight that is exactly 0
    assert np.abs(attend(to_dialect(~allowed, dialect, "full")) - expected).max() > 0.01


# What is refused.


@pytest.mark.parametrize("shape", [(5,), (4, 5, 5, 5, 5), (2, 1, 4, 5, 1)])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_masks_of_one_and_of_five_dimensions_are_refused(layout, shape):
    message = f"the mask has shape {shape}; expected {LAYOUTS[layout]} in the layout '{layout}'"
    with pytest.raises(InputError, match=f"^{re.escape(message)}$"):
        from_dialect(np.ones(shape, np.bool_), "true_attends", layout)
    message = f"the canonical mask is bool {shape}; expected bool (B, H, T, S), True = may attend"
    with pytest.raises(InputError, match=f"^{re.escape(message)}$"):
        to_dialect(np.ones(shape, np.bool_), "true_attends", layout)


@pytest.mark.parametrize(
    ("layout", "shape"), [("padding", (2, 4, 5)), ("queries", (1, 4, 5)), ("heads", (4, 5)), ("full", (6, 4, 5))]
)
def test_another_layout_is_refused(layout, shape):
    with pytest.raises(InputError, match=rf"^the mask has shape {re.escape(str(shape))}; expected .* '{layout}'$"):
        from_dialect(np.ones(shape, np.bool_), "true_attends", layout)


@pytest.mark.parametrize("shape", [(0, 5), (5, 0)])
def test_an_empty_mask_is_refused(shape):
    with pytest.raises(InputError, match=rf"^the mask has shape {re.escape(str(shape))}; expected \(T, S\) in the "):
        from_dialect(np.ones(shape, np.bool_), "true_attends", "queries")
    with pytest.raises(InputError, match=rf"^the canonical mask is bool {re.escape(str((1, 1, *shape)))}; expected "):
        to_dialect(np.ones((1, 1, *shape), np.bool_), "true_attends", "queries")


WRONG_DTYPES = {
    "true_attends": ("int64", "float32"),
    "true_ignores": ("uint8", "float64"),
    "one_attends": ("bool", "float32"),
    **dict.fromkeys(ADDITIVE, ("bool", "int64", "complex64", ">f4")),
}


@pytest.mark.parametrize(("dialect", "dtype"), [(name, dtype) for name, all_ in WRONG_DTYPES.items() for dtype in all_])
def test_a_wrong_dtype_is_refused(dialect, dtype):
    message = f"the mask is {np.dtype(dtype)}; expected {DIALECTS[dialect].dtypes} in the dialect '{dialect}'"
    with pytest.raises(InputError, match=f"^{re.escape(message)}$"):
        from_dialect(np.zeros((4, 5), dtype), dialect, "queries")


@pytest.mark.parametrize(
    ("dialect", "value"),
    [(name, value) for name in ADDITIVE for value in (np.nan, np.inf, 1.0, *HIDDEN.values()) if value != HIDDEN[name]],
)
def test_another_number_in_an_additive_mask_is_refused(dialect, value):
    mask = to_dialect(drawn("full"), dialect, "full")
    mask[1, 0, 2, 3] = value
    shown, hidden = np.float32(value), np.float32(HIDDEN[dialect])
    message = f"the mask holds {shown}; expected 0.0 or {hidden} alone in the dialect '{dialect}'"
    with pytest.raises(InputError, match=f"^{re.escape(message)}$"):
        from_dialect(mask, dialect, "full")


@pytest.mark.parametrize("value", [2, -1])
def test_another_integer_is_refused(value):
    mask = np.array([[1, 0, value]])
    message = f"^the mask holds {value}; expected 1 or 0 alone in the dialect 'one_attends'$"
    with pytest.raises(InputError, match=message):
        from_dialect(mask, "one_attends", "padding")


def test_what_is_no_array_is_refused():
    with pytest.raises(InputError, match=r"^the mask is a Tensor; expected a NumPy array, so convert it$"):
        from_dialect(torch.ones(4, 5), "add_infinity", "queries")  # pyright: ignore[reportArgumentType]
    with pytest.raises(InputError, match=r"^the canonical mask is a Tensor; expected bool \(B, H, T, S\), True = may"):
        to_dialect(torch.ones(1, 1, 4, 5), "add_infinity", "queries")  # pyright: ignore[reportArgumentType]
    with pytest.raises(InputError, match=r"^the canonical mask is int64 \(1, 1, 4, 5\); expected bool \(B, H, T, S\)"):
        to_dialect(np.ones((1, 1, 4, 5), np.int64), "add_infinity", "queries")  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("heads", [0, -1, 4])
def test_rows_that_the_heads_do_not_divide_are_refused(heads):
    message = rf"^the mask has shape \(6, 4, 5\); expected \(B \* {heads}, T, S\) with {heads} heads$"
    with pytest.raises(InputError, match=message):
        from_dialect(np.ones((6, 4, 5), np.bool_), "true_attends", "heads", heads=heads)


@pytest.mark.parametrize(
    ("layout", "shape", "axis"),
    [
        ("padding", (2, 1, 4, 5), "queries"),
        ("padding", (2, 3, 1, 5), "heads"),
        ("queries", (1, 3, 4, 5), "heads"),
        ("queries", (2, 1, 4, 5), "batch"),
    ],
)
def test_what_a_layout_cannot_say_is_refused(layout, shape, axis):
    allowed = np.random.default_rng(0).random(shape) < 0.5
    message = f"the canonical mask {shape} differs along the {axis}; the layout '{layout}', {LAYOUTS[layout]}, cannot"
    with pytest.raises(InputError, match=f"^{re.escape(message)} say so; choose another$"):
        to_dialect(allowed, "true_attends", layout)
    to_dialect(np.ones(shape, np.bool_), "true_attends", layout)


def test_a_shape_that_the_mask_does_not_broadcast_to_is_refused():
    message = r"^the canonical mask \(2, 1, 1, 5\) does not broadcast to \(3, 1, 4, 5\); give \(B, H, T, S\)$"
    with pytest.raises(InputError, match=message):
        to_dialect(drawn("padding"), "true_attends", "heads", shape=(3, 1, 4, 5))


def test_unknown_names_are_refused_with_the_known_ones():
    mask, dialects, layouts = np.ones((4, 5), np.bool_), ", ".join(DIALECTS), ", ".join(LAYOUTS)
    unknown: Any = "true"
    with pytest.raises(InputError, match=f"^unknown dialect of masks 'true'; expected one of {dialects}$"):
        from_dialect(mask, unknown, "queries")
    with pytest.raises(InputError, match=f"^unknown dialect of masks 'true'; expected one of {dialects}$"):
        to_dialect(mask[None, None], unknown, "queries")
    with pytest.raises(InputError, match=f"^unknown layout of masks 'true'; expected one of {layouts}$"):
        from_dialect(mask, "true_attends", unknown)
    with pytest.raises(InputError, match=f"^unknown layout of masks 'true'; expected one of {layouts}$"):
        to_dialect(mask[None, None], "true_attends", unknown)
    with pytest.raises(InputError, match=r"^the dtype of the mask is 'int8'; expected one of float64, float32, float1"):
        to_dialect(mask[None, None], "add_1e4", "queries", dtype="int8")


# What the document says.


def test_the_example_of_the_document_runs():
    (code,) = re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)
    names: dict = {}
    exec(code, names)
    assert_same(names["allowed"], names["padding"] & np.tri(4, dtype=bool))
    for name, shape in (("padding", (2, 1, 1, 4)), ("allowed", (2, 1, 4, 4)), ("attn_mask", (6, 4, 4))):
        assert names[name].shape == shape
        assert re.search(rf"{name} = .*# {re.escape(str(shape))}", code)
    assert_same(names["key_padding_mask"], names["attention_mask"] == 0)


def test_the_document_names_every_dialect_and_layout():
    named = re.findall(r"^\| `(\w+)` \|", DOCUMENT.read_text(), re.MULTILINE)
    assert named == [*DIALECTS, *LAYOUTS]
