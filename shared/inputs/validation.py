"""Model inputs: checked before any framework sees them.

Frameworks disagree on bad input: an id outside the vocabulary is an error in one, undefined in another, clamped in
the third. So ``batch`` and ``pair`` refuse it here, in the same words for all.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np

from triglot.shared.arrays import Array, Bools, Int32s
from triglot.shared.dtypes import LARGEST_BFLOAT16, LARGEST_FLOAT16
from triglot.shared.errors import InputError, TrainingError
from triglot.shared.model.config import ModelConfig

_HIDING = -1000.0  # its exponential is zero in every format, beside scores of any size that a trained model has


@dataclass(frozen=True)
class Batch:
    """Inputs that fit a model.

    ``source``: token ids (B, S), int32; or, for a model without embeddings, vectors (B, S, D), float32 or float64.
    ``valid``: bool (B, S), True for real tokens. ``segment_ids``, ``task_ids``: int32 (B, S). ``target``, int32, and
    ``target_valid``, bool: (B, T), what a decoder reads; without a decoder T is 0.

    To train by: ``labels``, int32 (B, T), the token that should follow each target token, -1 where none counts; or, for
    an encoder, ``teacher``, float (B, S, D), the vectors that it should give. Both are empty otherwise.

    A model that is attention alone attends to ``source``, its keys, with ``query`` (B, T, D) and ``value`` (B, S, D).
    ``allowed``, bool, and ``bias``, float, broadcast to (B, H, T, S). For other models these four are empty.
    """

    source: Array
    valid: Bools
    segment_ids: Int32s
    task_ids: Int32s
    target: Int32s
    target_valid: Bools
    labels: Int32s = field(default_factory=lambda: np.zeros((0, 0), np.int32))
    teacher: Array = field(default_factory=lambda: np.zeros((0, 0, 0), np.float32))
    query: Array = field(default_factory=lambda: np.zeros((0, 0, 0), np.float32))
    value: Array = field(default_factory=lambda: np.zeros((0, 0, 0), np.float32))
    allowed: Bools = field(default_factory=lambda: np.zeros((0, 0, 0, 0), np.bool_))
    bias: Array = field(default_factory=lambda: np.zeros((0, 0, 0, 0), np.float32))

    def arrays(self) -> dict[str, Array]:
        """The arrays by name, to be written to a file."""
        return {member.name: getattr(self, member.name) for member in fields(self)}


def batch(
    config: ModelConfig, token_ids: Any, valid: Any = None, segment_ids: Any = None, task_ids: Any = None
) -> Batch:
    """Check the inputs of ``encode`` and complete them: all tokens real, all segments and tasks 0.

    Raises:
        InputError: names the input, what it is and what was expected.
    """
    if config.kind == "attention":
        raise InputError("this model is attention alone, so there is nothing to encode; use attend")
    source = _source(config, "token_ids", token_ids)
    shape = source.shape[:2]
    valid = _source_valid("valid", np.ones(shape, np.bool_) if valid is None else valid, shape)
    segments = _ids("segment_ids", segment_ids, config.segments, shape)
    tasks = _ids("task_ids", task_ids, config.tasks, shape)
    nothing = np.zeros((shape[0], 0))
    return Batch(source, valid, segments, tasks, nothing.astype(np.int32), nothing.astype(np.bool_))


def batch_for_heads(
    config: ModelConfig, token_ids: Any, valid: Any = None, segment_ids: Any = None, task_ids: Any = None
) -> Batch:
    """Check the inputs of ``heads`` and complete them, see ``batch``.

    Raises:
        InputError: see ``batch``; also the heads read what a decoder makes of a target, which is not given.
    """
    if config.kind == "encoder_decoder":
        raise InputError("the heads of this model stand on its decoder; use forward")
    return batch(config, token_ids, valid, segment_ids, task_ids)


def pair(
    config: ModelConfig, source_ids: Any, target_ids: Any, source_valid: Any = None, target_valid: Any = None
) -> Batch:
    """Check the inputs of ``forward``; which tokens are real shows by the pad id, if it is not said.

    Raises:
        InputError: see ``batch``; also the model has no decoder.
    """
    if config.kind != "encoder_decoder":
        others = "attend" if config.kind == "attention" else "encode and heads"
        raise InputError(f"this model has no decoder, so there is no forward; use {others}")
    source = _source(config, "source_ids", source_ids)
    valid = _source_valid("source_valid", _real(config, source, source_valid), source.shape)
    ids = _array("target_ids", target_ids)
    if ids.ndim != 2 or not np.issubdtype(ids.dtype, np.integer) or len(ids) != len(source) or not ids.size:
        raise InputError(f"target_ids is {describe(ids)}; expected integers ({len(source)}, T)")
    if ids.shape[1] > config.target_max_length:
        raise InputError(
            f"the target length {ids.shape[1]} is over the maximum {config.target_max_length} of the model; cut it"
        )
    target = _in_range("target_ids", ids, config.target_vocabulary)
    target_real = _valid("target_valid", _real(config, target, target_valid), target.shape)
    nothing = np.zeros(source.shape, np.int32)
    return Batch(source, valid, nothing, nothing.copy(), target, target_real)


def _real(config: ModelConfig, ids: Array, valid: Any) -> Any:
    if valid is not None:
        return valid
    return np.ones(ids.shape, np.bool_) if config.pad_id is None else ids != config.pad_id


def teacher_forcing(config: ModelConfig, source_ids: Any, target_ids: Any, source_valid: Any = None) -> Batch:
    """A batch to train on: the decoder reads all but the last token of each target, and is to name the next each time.

    ``source_ids`` (B, S); ``target_ids`` (B, T + 1), whole sentences from the start id on. Padding among them is no
    label.

    Raises:
        InputError: see ``pair``; also a target is shorter than two tokens, or no label is left.
    """
    ids = _array("target_ids", target_ids)
    if ids.ndim != 2 or ids.shape[1] < 2:
        raise InputError(f"target_ids is {describe(ids)}; expected integers (B, T), of at least two tokens each")
    given = pair(config, source_ids, ids[:, :-1], source_valid)
    following = _in_range("target_ids", ids[:, 1:], config.target_vocabulary)
    return labelled(config, given, np.where(_real(config, following, None), following, -1))


def labelled(config: ModelConfig, given: Batch, labels: Any) -> Batch:
    """``given`` with ``labels``: integers (B, T), the token that should follow each target token, -1 where none counts.

    Raises:
        InputError: the labels do not fit the targets, or none counts.
    """
    named = _array("labels", labels)
    if named.shape != given.target.shape or not np.issubdtype(named.dtype, np.integer):
        raise InputError(f"labels is {describe(named)}; expected integers {given.target.shape}")
    if named.min() < -1 or named.max() >= config.target_vocabulary:
        wrong = int(named.min() if named.min() < -1 else named.max())
        raise InputError(f"labels holds {wrong}; expected ids from 0 to {config.target_vocabulary - 1}, or -1 for none")
    # A padding token has no scores, so none can be asked for there.
    counted = np.where(given.target_valid, named, -1).astype(np.int32)
    if not (counted >= 0).any():
        raise InputError("no label counts: all are -1, or stand at padding; give at least one")
    return replace(given, labels=counted)


def taught(config: ModelConfig, given: Batch, teacher: Any) -> Batch:
    """``given`` with ``teacher``: float (B, S, D), what an encoder should give for each token; padding does not count.

    Raises:
        InputError: the model is no encoder, or the vectors do not fit the batch or the model, or are not finite in
            float32 at a real token.
    """
    if config.kind != "encoder":
        raise InputError(f"this model is no encoder, but of kind {config.kind}; a teacher is for encoders alone")
    if not isinstance(given, Batch):  # pyright: ignore[reportUnnecessaryIsInstance] (callers need not be typed)
        raise InputError(f"the batch is a {type(given).__name__}; expected a Batch, as triglot.batch makes one")
    named = _array("teacher", teacher)
    shape = (*given.valid.shape, config.hidden_size)
    if named.shape != shape or named.dtype.name not in ("float32", "float64"):
        raise InputError(f"teacher is {describe(named)}; expected float32 or float64 {shape}")
    # What stands at padding could not be anything but zero in the output, so it is nothing to learn.
    counted = np.where(given.valid[:, :, None], named, np.zeros((), named.dtype))
    with np.errstate(over="ignore"):
        if not np.isfinite(counted.astype(np.float32)).all():
            raise InputError("teacher holds numbers at a real token that are not finite in float32; take smaller ones")
    return replace(given, teacher=counted)


def to_generate(config: ModelConfig, source_ids: Any, max_length: int | None = None) -> tuple[Batch, int]:
    """Check the inputs of ``generate``; the batch, whose targets are not there yet, and how long they may become.

    Raises:
        InputError: see ``pair``; also ``max_length`` is no length that the model has, or it has no special ids.
    """
    rows = _array("source_ids", source_ids).shape[:1]
    batch = pair(config, source_ids, np.full((*rows, 1), config.start_id or 0))
    missing = [name for name in ("start_id", "end_id", "pad_id") if getattr(config, name) is None]
    if missing:
        raise InputError(f"to generate, {', '.join(missing)} has to be known; set it in the configuration")
    if config.start_id == config.pad_id:
        raise InputError(f"to generate, start_id and pad_id have to differ, both are {config.pad_id}; set another one")
    if config.masking_value is not None and config.masking_value > _HIDING:
        raise InputError(
            f"to generate, a masking_value of {config.masking_value} does not hide the tokens that are not there yet; "
            f"expected {_HIDING} or less"
        )
    length = config.target_max_length if max_length is None else max_length
    if type(length) is not int or not 1 <= length <= config.target_max_length:
        raise InputError(f"max_length is {length!r}; expected a whole number from 1 to {config.target_max_length}")
    return batch, length


def check_valid(given: Any) -> Bools:
    """``given``, if it says of each token whether it is real.

    Raises:
        InputError: it is not bool (B, S).
    """
    valid = _array("valid", given)
    return _valid("valid", given, valid.shape if valid.ndim == 2 and valid.size else (1, 1))


def to_train(config: ModelConfig, given: Batch) -> Batch:
    """The batch, if a model of ``config`` can be trained on it: it may have been made for another, or for no training.

    Raises:
        InputError: see ``labelled`` and ``taught``.
        TrainingError: see ``check_trainable``.
    """
    check_trainable(config)
    if not isinstance(given, Batch):  # pyright: ignore[reportUnnecessaryIsInstance] (callers need not be typed)
        raise InputError(f"the batch is a {type(given).__name__}; expected a Batch, as teacher_forcing makes one")
    if config.kind == "encoder":
        if not given.teacher.size:
            raise InputError("the batch has no teacher, the vectors that the encoder should give; add it with taught")
        return taught(config, check_batch(config, given), given.teacher)
    if not given.labels.size:
        raise InputError("the batch has no labels; make it with teacher_forcing, or give it labels")
    return labelled(config, check_batch(config, given), given.labels)


def check_trainable(config: ModelConfig) -> None:
    """Refuse a model without a loss.

    Raises:
        TrainingError: it is attention alone.
    """
    if config.kind == "attention":
        raise TrainingError(
            "this model is attention alone: there is no loss to train it by; take one of kind encoder or "
            "encoder_decoder, as translation"
        )


def in_range(arrays: Mapping[str, Array], dtype: str) -> dict[str, Array]:
    """The members of a batch for a model in ``dtype``: a bias of attention ends where float16 does.

    Raises:
        InputError: another input holds a number that float16 cannot.
    """
    if dtype != "float16":
        return dict(arrays)
    found = dict(arrays)
    if "bias" in found:
        found["bias"] = np.clip(found["bias"], -LARGEST_FLOAT16, LARGEST_FLOAT16)
    for name in ("source", "query", "value"):
        if name in found and (np.abs(found[name]) > LARGEST_FLOAT16).any():
            raise InputError(f"{name} holds a number beyond 65504, which float16 cannot hold; use dtype float32")
    return found


def attention(
    config: ModelConfig,
    query: Any,
    key: Any,
    value: Any,
    allowed: Any = None,
    key_valid: Any = None,
    bias: Any = None,
    batch_first: bool = True,
) -> Batch:
    """Check the inputs of ``attend`` and complete them: everything may be attended to, and nothing is added.

    A bias of minus infinity forbids, as ``allowed`` does: what is left of the bias is finite, in bfloat16 as well, of
    which float32's least number, the usual one to forbid with, would make minus infinity.

    Raises:
        InputError: see ``batch``; also the model is more than attention.
    """
    if config.kind != "attention":
        raise InputError(f"this model is an {config.kind}, not attention alone; use encode, heads or forward")
    vectors = [_vectors(config, name, given) for name, given in (("query", query), ("key", key), ("value", value))]
    if not batch_first:
        vectors = [np.ascontiguousarray(given.swapaxes(0, 1)) for given in vectors]
    queries, keys, values = vectors
    (rows, targets), sources = queries.shape[:2], keys.shape[1]
    if values.shape != keys.shape or len(keys) != rows:
        raise InputError(
            f"query, key and value are {queries.shape}, {keys.shape} and {values.shape}, batch first; expected as many "
            "rows in each, and keys as long as values"
        )
    for name, length, most in (
        ("key", sources, config.source_max_length),
        ("query", targets, config.target_max_length),
    ):
        if length > most:
            raise InputError(f"the {name} length {length} is over the maximum {most} of the model; cut it")
    valid = _valid("key_valid", np.ones((rows, sources), np.bool_) if key_valid is None else key_valid, keys.shape[:2])
    shape = (rows, config.heads, targets, sources)
    may = _mask("allowed", np.ones((targets, sources), np.bool_) if allowed is None else allowed, shape)
    if may.dtype != np.bool_:
        raise InputError(f"allowed is {describe(may)}; expected bool, True = may attend")
    added = _mask("bias", np.zeros((targets, sources), np.float32) if bias is None else bias, shape)
    if added.dtype.name not in ("float32", "float64") or not (np.isfinite(added) | np.isneginf(added)).all():
        raise InputError(f"bias is {describe(added)}; expected float32 or float64, finite or minus infinity")
    if np.isneginf(added).any():
        may, added = may & np.isfinite(added), np.where(np.isfinite(added), added, np.zeros_like(added))
    added = np.clip(added, -LARGEST_BFLOAT16, LARGEST_BFLOAT16)
    no_ids = np.zeros((rows, 0), np.int32)
    return Batch(
        source=keys,
        valid=valid,
        segment_ids=no_ids,
        task_ids=no_ids,
        target=no_ids,
        target_valid=np.ones((rows, targets), np.bool_),
        query=queries,
        value=values,
        allowed=may,
        bias=added,
    )


def _vectors(config: ModelConfig, name: str, given: Any) -> Array:
    vectors = _array(name, given)
    if vectors.ndim != 3 or vectors.shape[2] != config.hidden_size or vectors.dtype.name not in ("float32", "float64"):
        raise InputError(
            f"{name} is {describe(vectors)}; expected float32 or float64 (B, T, {config.hidden_size}), or with the "
            "length first and batch_first=False"
        )
    if not vectors.size:
        raise InputError(f"{name} is empty, shape {vectors.shape}; give at least one row with one vector")
    with np.errstate(over="ignore"):
        if not np.isfinite(vectors.astype(np.float32)).all():
            raise InputError(f"{name} is not finite in float32; expected finite numbers")
    return vectors.astype(vectors.dtype.newbyteorder("="), copy=False)


def _mask(name: str, given: Any, shape: tuple[int, int, int, int]) -> Array:
    """As (B or 1, H or 1, T, S), from that, (T, S) or (B * H, T, S), the heads of a row side by side (article 004)."""
    mask = _array(name, given)
    rows, heads, targets, sources = shape
    if mask.shape == (targets, sources):
        return mask[None, None]
    if mask.shape == (rows * heads, targets, sources):
        return mask.reshape(shape)
    if (
        mask.ndim == 4
        and mask.shape[2:] == (targets, sources)
        and all(size in (1, whole) for size, whole in zip(mask.shape[:2], shape[:2], strict=True))
    ):
        return mask
    raise InputError(
        f"{name} is {describe(mask)}; expected {(targets, sources)}, {(rows * heads, targets, sources)}, or "
        f"{shape}, the first two sizes of which may be 1"
    )


def check_batch(config: ModelConfig, given: Batch) -> Batch:
    """The batch, if it fits ``config``: it may have been made for another model.

    Raises:
        InputError: see ``batch``.
    """
    segment_ids = given.segment_ids if config.segments or given.segment_ids.any() else None
    task_ids = given.task_ids if config.tasks or given.task_ids.any() else None
    if config.kind == "attention":
        return attention(config, given.query, given.source, given.value, given.allowed, given.valid, given.bias)
    if config.kind == "encoder_decoder":
        return pair(config, given.source, given.target, given.valid, given.target_valid)
    return batch(config, given.source, given.valid, segment_ids, task_ids)


def _array(name: str, given: Any) -> Array:
    try:
        return np.asarray(given)
    except ValueError as error:
        raise InputError(f"{name} has rows of different lengths; pad them, and say which tokens are valid") from error
    except Exception as error:  # a tensor of a framework says in its own way that it is no array
        raise InputError(f"{name} is a {type(given).__name__} that NumPy cannot read; give a NumPy array") from error


def _source_valid(name: str, given: Any, shape: tuple[int, ...]) -> Bools:
    valid = _valid(name, given, shape)
    if not valid.any(axis=1).all():
        row = int(np.flatnonzero(~valid.any(axis=1))[0])
        raise InputError(f"row {row} of {name} has no real token; leave that row out")
    return valid


def _valid(name: str, given: Any, shape: tuple[int, ...]) -> Bools:
    valid = _array(name, given)
    if valid.dtype != np.bool_ or valid.shape != shape:
        raise InputError(f"{name} is {describe(valid)}; expected bool {shape}, True for real tokens")
    return valid


def _source(config: ModelConfig, name: str, given: Any) -> Array:
    source = _array(name, given)
    if source.ndim >= 2 and 0 in source.shape:
        raise InputError(f"the batch is empty, shape {source.shape}; give at least one row with one token")
    if config.source_vocabulary:
        if source.ndim != 2 or not np.issubdtype(source.dtype, np.integer):
            raise InputError(f"{name} is {describe(source)}; expected integers (B, S)")
    elif source.ndim != 3 or source.shape[2] != config.hidden_size or source.dtype.name not in ("float32", "float64"):
        raise InputError(
            f"the embedded input is {describe(source)}; expected float32 or float64 (B, S, {config.hidden_size}), "
            "for this model has no vocabulary"
        )
    if source.shape[1] > config.source_max_length:
        raise InputError(
            f"the length {source.shape[1]} is over the maximum {config.source_max_length} of the model; cut the input"
        )
    if not config.source_vocabulary:
        with np.errstate(over="ignore"):
            if not np.isfinite(source.astype(np.float32)).all():
                raise InputError("the embedded input is not finite in float32; expected finite numbers")
        return source.astype(source.dtype.newbyteorder("="), copy=False)
    return _in_range(name, source, config.source_vocabulary)


def _ids(name: str, ids: Any, vocabulary: int, shape: tuple[int, ...]) -> Int32s:
    if ids is None:
        return np.zeros(shape, np.int32)
    ids = _array(name, ids)
    if not vocabulary:
        raise InputError(f"{name} was given, but this model has none; leave it out")
    if ids.shape != shape or not np.issubdtype(ids.dtype, np.integer):
        raise InputError(f"{name} is {describe(ids)}; expected integers {shape}")
    return _in_range(name, ids, vocabulary)


def _in_range(name: str, ids: Array, vocabulary: int) -> Int32s:
    low, high = int(ids.min()), int(ids.max())
    if low < 0 or high >= vocabulary:
        raise InputError(
            f"{name} holds {low if low < 0 else high}; expected ids from 0 to {vocabulary - 1}, "
            "check that the tokenizer belongs to the model"
        )
    return ids.astype(np.int32)


def describe(array: Array) -> str:
    """Dtype and shape, as messages have them."""
    return f"{array.dtype} {array.shape}"
