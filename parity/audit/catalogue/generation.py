"""Bugs in greedy decoding, and in its key-value cache."""

from triglot.parity.audit.bug import TRANSLATION, Bug, everywhere

FILE, CHECKS = "generation.py", ("generation",)
CACHED, RECOMPUTED, ALONE = "ids.cached", "ids.recomputed", "ids.alone"
START = {"target[:, 0] = start_id": "target[:, 0] = pad_id"}
LAST_POSITION = {"axis=1), position)": "axis=1), position * 0)"}
END_ID = "token = paddle.where(finished, paddle.full([], pad_id"
SEEN = "memory, masks.padding(valid), cache"
RETURNED = "self.to_numpy(target).astype(np.int32)"
AGAIN = {RETURNED: f"globals().setdefault((cached, *target.shape), {RETURNED})"}

BUGS = {
    "target padding seen while decoding": everywhere(
        CACHED, FILE, {"masks.padding(target != ": "masks.padding(target >= 0 * "}, TRANSLATION, CHECKS
    ),
    "source padding seen while decoding": everywhere(
        CACHED,
        FILE,
        {"memory, masks.padding(valid), cache": "memory, masks.padding(valid == valid), cache"},
        TRANSLATION,
        CHECKS,
    ),
    "padding mask made from lengths while decoding": Bug(
        CACHED,
        FILE,
        {SEEN: SEEN.replace("valid", "valid.sort(1, descending=True).values")},
        {SEEN: SEEN.replace("valid", 'valid.astype("int32").sort(1, descending=True).astype("bool")')},
        {SEEN: SEEN.replace("valid", "valid.sort(1)[:, ::-1]")},
        TRANSLATION,
        checks=CHECKS,
    ),
    "ids returned again for sources of the same shape": everywhere(CACHED, "model.py", AGAIN, TRANSLATION, CHECKS),
    "no causal mask while decoding": everywhere(
        RECOMPUTED, FILE, {"masks.causal(target.shape[1]": "masks.causal(1 + 0 * target.shape[1]"}, TRANSLATION, CHECKS
    ),
    "every token at the first position": Bug(
        CACHED,
        FILE,
        {"position[None]), position)": "position[None]), position * 0)"},
        LAST_POSITION,
        LAST_POSITION,
        TRANSLATION,
        checks=CHECKS,
    ),
    "cache overwritten at the first place": everywhere(
        CACHED, "decoder.py", {"self.position = position": "self.position = position * 0"}, TRANSLATION, CHECKS
    ),
    "cached values stale": everywhere(
        CACHED, "decoder.py", {"is_new, values,": "is_new, self.values,"}, TRANSLATION, CHECKS
    ),
    "nothing ends a sentence": everywhere(
        CACHED, FILE, {"finished | (token == end_id)": "finished"}, TRANSLATION, CHECKS
    ),
    "decoding stops with the first sentence": everywhere(
        CACHED, FILE, {"finished.all()": "finished.any()"}, TRANSLATION, CHECKS
    ),
    "start id missing": Bug(CACHED, FILE, START, START, {".set(start_id)": ".set(pad_id)"}, TRANSLATION, checks=CHECKS),
    "end id repeated after the end": Bug(
        CACHED,
        FILE,
        {"where(finished, pad_id, ": "where(finished, end_id, "},
        {END_ID: END_ID.replace("pad_id", "end_id")},
        {"where(finished, pad_id, ": "where(finished, end_id, "},
        TRANSLATION,
        checks=CHECKS,
    ),
    "last token never decoded": everywhere(CACHED, FILE, {"length - 1": "length - 2"}, TRANSLATION, CHECKS),
    "last token never decoded for a sentence alone": everywhere(
        ALONE, FILE, {"length - 1": "length - 1 - (len(source) == 1)"}, TRANSLATION, CHECKS
    ),
}
