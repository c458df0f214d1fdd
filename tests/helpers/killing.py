"""Kill processes that write a checkpoint, at moments spread over the whole write, and report as JSON what they left.

Usage: ``python killing.py FOLDER KILLS (unnamed|named)``. It is a script because forking is fast and safe only in a
process that has loaded nothing larger than NumPy.
"""

import json
import os
import shutil
import signal
import statistics
import sys
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

from triglot.shared.checkpoint import Checkpoint, save
from triglot.shared.model.initializers import initialize
from triglot.shared.model.recipes import recipe

SIZES = {"hidden_size": 128, "key_size": 16, "value_size": 16, "heads": 8, "feed_forward_size": 512}
AFTER_THE_WRITE = 10  # this many kills come after the write, however long it takes


def start(checkpoint, target, *, stay):
    """Start a process that saves ``checkpoint`` and then waits to be killed (``stay``), or exits."""
    child = os.fork()
    if child:
        return child
    try:
        save(checkpoint, target)
        while stay:
            signal.pause()
    finally:
        os._exit(0)


def seconds_of_a_write(checkpoint, target):
    """The median duration of three uninterrupted writes."""
    times = []
    for _ in range(3):
        begin = time.perf_counter()
        os.waitpid(start(checkpoint, target, stay=False), 0)
        times.append(time.perf_counter() - begin)
    return statistics.median(times)


def wait_for(target, content):
    """Wait until ``target`` holds ``content``; fail after a minute."""
    deadline = time.monotonic() + 60
    while not target.exists() or target.read_bytes() != content:
        assert time.monotonic() < deadline, "the process never wrote its file"
        time.sleep(0.001)


def main(folder, kills, way):
    if way == "named":
        del os.O_TMPFILE
    config = replace(recipe("bert-base-tiny"), source_vocabulary=4000, **SIZES)
    old, new = (Checkpoint(config, initialize(config, seed)) for seed in (0, 1))
    contents = {}
    for name, checkpoint in (("old", old), ("new", new)):
        save(checkpoint, folder / f"{name}.npz")
        contents[name] = (folder / f"{name}.npz").read_bytes()
    target = folder / "target" / "model.npz"
    target.parent.mkdir()
    outcomes, leftovers, duration = Counter(), 0, 0.0
    for kill in range(kills):
        if kill % 20 == 0:  # the speed of the machine may have changed
            duration = seconds_of_a_write(new, target)
        before = ("old", "absent")[kill % 2]
        target.unlink()
        if before == "old":
            shutil.copyfile(folder / "old.npz", target)
        child = start(new, target, stay=True)
        time.sleep(duration * (kill + 0.5) / kills)
        if kill >= kills - AFTER_THE_WRITE:
            wait_for(target, contents["new"])
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        assert os.WIFSIGNALED(status), "the process exited before it was killed"
        content = target.read_bytes() if target.exists() else b""
        after = {contents["old"]: "old", contents["new"]: "new", b"": "absent"}.get(content, "something else")
        outcomes[f"{before} -> {after}"] += 1
        for file in target.parent.iterdir():
            if file != target:
                leftovers += 1
                assert file.suffix == ".part"
                file.unlink()
        target.touch()
    sys.stdout.write(json.dumps({"outcomes": outcomes, "leftovers": leftovers, "bytes": len(contents["new"])}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
