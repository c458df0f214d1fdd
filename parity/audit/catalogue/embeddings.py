"""Bugs in the embeddings."""

from triglot.parity.audit.bug import ANNOTATED, CLASSIFIER, DISCRIMINATOR, TASKS, TRANSLATION, everywhere

SEGMENTS = "if self.config.segments and segment_ids.any():\n            assert"

BUGS = {
    "positions shifted by one": everywhere(
        "embeddings.sum", "embeddings.py", {"+ self.config.position_offset)": "+ self.config.position_offset + 1)"}
    ),
    "embeddings not scaled": everywhere(
        "embeddings.sum", "embeddings.py", {"if self.config.embedding_scale:": "if False:"}, ANNOTATED
    ),
    "position angles per pair instead of per dimension": everywhere(
        "embeddings.sum", "embeddings.py", {"Table(config.positions": 'Table("sinusoidal"'}, TRANSLATION
    ),
    "segments ignored": everywhere(
        "embeddings.sum", "embeddings.py", {"self.segment(segment_ids)": "self.segment(segment_ids * 0)"}
    ),
    "segments left out where all are zero": everywhere(
        "base.", "embeddings.py", {"if self.config.segments:\n            assert": SEGMENTS}, checks=("invariants",)
    ),
    "positions of padding counted": everywhere(
        "embeddings.sum", "embeddings.py", {"if self.config.positions_skip_padding:": "if False:"}, CLASSIFIER
    ),
    "positions of real tokens counted from one": everywhere(
        "embeddings.sum", "embeddings.py", {"config.position_offset)": "config.position_offset + 1)"}, CLASSIFIER
    ),
    "projection without its bias": everywhere(
        "embeddings.projection",
        "embeddings.py",
        {'"projection", self.projection(x))': '"projection", self.projection(x) - self.projection.bias)'},
        DISCRIMINATOR,
    ),
    "tasks ignored": everywhere(
        "embeddings.sum", "embeddings.py", {"self.task(task_ids)": "self.task(task_ids * 0)"}, TASKS
    ),
    "last position read as the first": everywhere(
        "embeddings.sum",
        "embeddings.py",
        {"position_ids + self.config.position_offset": "(position_ids + self.config.position_offset) % 36"},
    ),
    "last id of the vocabulary read as the first": everywhere(
        "embeddings.sum",
        "embeddings.py",
        {"self.token(token_ids)": "self.token(token_ids % (self.config.source_vocabulary - 1))"},
    ),
    "another position for inputs of one token": everywhere(
        "embeddings.sum", "embeddings.py", {"+ first_position\n": "+ first_position + int(length == 1)\n"}
    ),
    "embeddings scaled by the size instead of its root": everywhere(
        "embeddings.sum", "embeddings.py", {"self.config.hidden_size**0.5": "self.config.hidden_size"}, ANNOTATED
    ),
    "norm of the embeddings missing": everywhere(
        "embeddings.process.norm", "embeddings.py", {'self.process(x, probe=under(probe, "process"))': "x"}
    ),
}
