"""Runs of ``triglot encode`` for the study of embedding: killed and resumed runs, and the memory of a long one."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from triglot.bench.machine.load import MEBIBYTE
from triglot.bench.studies.porting import anonymous_memory
from triglot.shared.inputs.text import sentences

MODEL = "minilm"
TEXTS = 10_000
KILLS = 5
MEMORY_TEXTS = range(20_000, 100_001, 5_000)  # after which memory is recorded
WORDS, SPREAD, MOST_WORDS = 16, 0.7, 400  # of the random texts: median, standard deviation of the logarithm, largest


def interruptions(folder: Path) -> dict[str, Any]:
    """Kill ``triglot encode`` at moments spread over its run, and compare its file with an undisturbed one."""
    (folder / "texts.txt").write_text("".join(f"{text}\n" for text in sentences(TEXTS)))
    command = [sys.executable, "-m", "triglot", "encode", MODEL, str(folder / "texts.txt"), "--quiet"]
    begin = time.perf_counter()
    subprocess.run([*command, str(folder / "undisturbed.npy")], check=True)
    duration = time.perf_counter() - begin
    rows: list[int] = []
    record = folder / "killed.npy.part.json"
    for _ in range(KILLS):
        process = subprocess.Popen([*command, str(folder / "killed.npy"), "--resume"])
        before, deadline = rows[-1] if rows else 0, time.monotonic() + 10 * duration
        while process.poll() is None and time.monotonic() < deadline:
            if counted(record) > before:
                break
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
        process.wait()
        rows.append(counted(record))
    subprocess.run([*command, str(folder / "killed.npy"), "--resume"], check=True)
    same = (folder / "killed.npy").read_bytes() == (folder / "undisturbed.npy").read_bytes()
    return {"rows_at_each_kill": rows, "byte_identical": same}


def memory(folder: Path) -> list[tuple[int, float]]:
    """Run ``triglot encode`` once. Return pairs: a number of texts, and the largest anonymous memory in MiB.

    The memory is that since the pair before, and in the first pair since the start.
    """
    (folder / "random.txt").write_text("".join(f"{text}\n" for text in random_texts(MEMORY_TEXTS[-1])))
    command = [sys.executable, "-m", "triglot", "encode", MODEL, str(folder / "random.txt"), str(folder / "random.npy")]
    process = subprocess.Popen([*command, "--quiet"])
    record = folder / "random.npy.part.json"
    pairs: list[tuple[int, float]] = []
    largest = 0
    while process.poll() is None:
        largest = max(largest, anonymous_memory(process.pid))
        if len(pairs) < len(MEMORY_TEXTS) and counted(record) >= MEMORY_TEXTS[len(pairs)]:
            pairs.append((MEMORY_TEXTS[len(pairs)], round(largest / MEBIBYTE, 1)))
            largest = 0
        time.sleep(0.05)
    if process.returncode:
        raise SystemExit("triglot encode failed on the random texts")
    if len(pairs) < len(MEMORY_TEXTS):  # the run ended soon after it counted the last texts
        pairs.append((MEMORY_TEXTS[-1], round(largest / MEBIBYTE, 1)))
    return pairs


def random_texts(count: int) -> list[str]:
    """Return different texts of words of the sentences. Few are much longer than the others, as in real corpora."""
    generator = np.random.default_rng(0)
    words = np.array(" ".join(sentences(TEXTS)).split())
    lengths = np.clip(generator.lognormal(np.log(WORDS), SPREAD, count), 1, MOST_WORDS).astype(int)
    return [" ".join(generator.choice(words, length)) for length in lengths]


def counted(record: Path) -> int:
    """Return how many texts ``triglot encode`` has counted; 0 if the file does not exist."""
    try:
        return int(json.loads(record.read_text())["rows"])
    except FileNotFoundError:
        return 0
