"""Damage a small checkpoint in many ways and read the results: ``make fuzz``, and a part of it in the tests.

There are two good outcomes: the digest is the same, or one of our errors refuses the file. Anything else ends the run:
another digest, another error, a crash, a read that does not end, or one that uses more memory than the size of the file
and 64 MB. Beside the neutral checkpoint, every other form that Triglot reads is damaged (``fuzzing_forms.py``). A form
without checksums may also be read as another model.

Each part of the work runs in its own process, so that crashes are noticed and memory can be limited. The limit is
RLIMIT_AS, the address space: resident memory cannot exceed it, it holds for every single read, and it includes memory
that is reserved but never touched. The peak of resident memory is only reported.
"""

import argparse
import hashlib
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import zipfile
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import islice
from pathlib import Path

import numpy as np
from fuzzing_forms import FORMS

from triglot.shared.arrays import FLOATS
from triglot.shared.checkpoint import Checkpoint, load, npz, save, training_state
from triglot.shared.environment import environment
from triglot.shared.errors import TriglotError
from triglot.shared.model.config import ModelConfig
from triglot.shared.model.initializers import initialize
from triglot.shared.model.recipes import recipe
from triglot.shared.training.plan import History, Moments, Plan, Training

MEMORY = 64 << 20  # besides the file: more than reading needs, far less than a header can ask for
SECONDS = 20  # for a read: thousands of times what it takes, so that a busy machine does not count as a hang
CONFIG = replace(
    recipe("dygraph-tiny"),
    **{"layers": 1, "hidden_size": 2, "heads": 1, "key_size": 1, "value_size": 1, "feed_forward_size": 2},
    **{"source_vocabulary": 3, "source_max_length": 2, "pre_process": "", "final_process": ""},
    **{"projection_bias": False, "output_bias": False, "heads_on_top": ("masked_lm",), "tied_embeddings": True},
)
STEPS = 2

# Where the integers of each record of a zip archive are: offset and size in bytes.
LOCAL = [(4, 2), (6, 2), (8, 2), (10, 2), (12, 2), (14, 4), (18, 4), (22, 4), (26, 2), (28, 2)]
CENTRAL = [(4, 2), (6, 2), (8, 2), (10, 2), (12, 2), (14, 2), (16, 4), (20, 4), (24, 4), (28, 2), (30, 2), (32, 2)]
CENTRAL += [(34, 2), (36, 2), (38, 4), (42, 4)]
END = [(4, 2), (6, 2), (8, 2), (10, 2), (12, 4), (16, 4), (20, 2)]


def sample(seed):
    """A checkpoint with every number format, an alias, a source name and a training run."""
    kinds = list(FLOATS.values())
    tensors = initialize(CONFIG, seed)
    mixed = {name: tensor.astype(kinds[number % 4]) for number, (name, tensor) in enumerate(tensors.items())}
    moments = {name: tensor.astype(np.float64 if tensor.ndim > 1 else np.float32) for name, tensor in tensors.items()}
    history = History(np.full(STEPS, 3.5, np.float32), np.full(STEPS, 0.5, np.float32))
    training = Training(Plan(), Moments(STEPS, moments, moments), history)
    return Checkpoint(CONFIG, mixed, {"embeddings.token.weight": "word_embeddings"}, training)


class Target:
    """The bytes of a checkpoint, its digest, and the places of its headers and integers."""

    has_checksums = True
    digest_of_donor = ""  # no mutation has made a complete copy of it

    def __init__(self, folder):
        self.path = folder / "mutant.npz"
        save(sample(0), folder / "original.npz")
        save(sample(1), folder / "donor.npz")
        self.content = (folder / "original.npz").read_bytes()
        self.donor = (folder / "donor.npz").read_bytes()
        self.digest = digest_of(folder / "original.npz")
        headers = set()
        self.integers = []
        with zipfile.ZipFile(folder / "original.npz") as archive:
            members, directory = archive.infolist(), archive.start_dir
        for member in members:
            headers.update(self._local(member.header_offset, member.filename == "manifest.json"))
        headers.update(range(directory, len(self.content)))
        position = directory
        for _ in members:
            self.integers += [(position + offset, size) for offset, size in CENTRAL]
            lengths = self.content[position + 28 : position + 34]
            position += 46 + sum(int.from_bytes(lengths[start : start + 2], "little") for start in (0, 2, 4))
        self.integers += [(position + offset, size) for offset, size in END]
        self.headers = sorted(headers)

    def _local(self, start, is_manifest):
        """The range of a member's local header and of its array's header. The manifest counts completely."""
        self.integers += [(start + offset, size) for offset, size in LOCAL]
        name, extra = (int.from_bytes(self.content[start + at : start + at + 2], "little") for at in (26, 28))
        payload = start + 30 + name + extra
        self.integers += [(payload - 16, 8), (payload - 8, 8)]  # the sizes in the ZIP64 field, which comes last
        if is_manifest:
            end = payload + int.from_bytes(self.content[payload - 16 : payload - 8], "little")
        else:
            self.integers.append((payload + 8, 2))
            end = payload + 10 + int.from_bytes(self.content[payload + 8 : payload + 10], "little")
        return range(start, end)


class FormTarget:
    """The same of another form. Its headers are taken to be at both ends, and integers anywhere in them."""

    def __init__(self, form, folder):
        for name in ("original", "donor"):
            (folder / name).mkdir()
        self.path = form.write(folder / "original", 0)
        donor = form.write(folder / "donor", 1)
        self.donor, self.digest_of_donor = donor.read_bytes(), form.read(donor)
        self.content = self.path.read_bytes()
        self.digest = form.read(self.path)
        self.has_checksums = form.has_checksums
        length = len(self.content)
        self.headers = sorted({*range(min(length, 2048)), *range(max(0, length - 1024), length)})
        self.integers = [(place, size) for place in self.headers for size in (1, 2, 4, 8) if place + size <= length]


def truncations(target):
    """The file cut off at every offset."""
    for length in range(len(target.content)):
        yield "cut off", target.content[:length]


def flips(target):
    """Every bit of the manifest and of every header, of the archive and of the arrays."""
    for place in target.headers:
        for bit in range(8):
            yield "bit flipped", changed(target.content, place, bytes([target.content[place] ^ 1 << bit]))


def integers(target):
    """Every integer of every header, replaced by extreme values and by its neighbours."""
    for place, size in target.integers:
        highest, number = 256**size - 1, int.from_bytes(target.content[place : place + size], "little")
        length = len(target.content)
        extremes = {0, 1, highest, highest - 1, highest // 2, highest // 2 + 1, length, number + 1, number - 1, -number}
        for extreme in sorted({extreme & highest for extreme in extremes} - {number}):
            yield "integer replaced", changed(target.content, place, extreme.to_bytes(size, "little"))


def bombs(_):
    """Files of some megabytes that are designed to use many times as much memory."""
    for name, manifest in (
        ("objects", objects(1 << 20)),
        ("lists", b"[" * (1 << 22)),
        ("text", b'{"schema": "' + b"x" * (1 << 22) + b"\\ud83d\\ude00" + b'"}'),
        ("texts", b'{"schema": [' + b'"x",' * (1 << 20) + b'""]}'),
        ("number", b'{"schema": ' + b"9" * (1 << 22) + b"}"),
        ("spaces", b" " * (1 << 26)),
    ):
        yield f"manifest of {name}", built([], manifest)
    many = 16_383  # members beside the manifest
    yield "as many objects as can be", built([(f"{n}", b"") for n in range(many)], objects(24 * many // 2))
    header = b"{'descr': '<f4', 'fortran_order': False, 'shape': (1,), }".ljust(117) + b"\n"
    array = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + bytes(4)
    config = {**CONFIG.to_dict(), "layers": many // 8}
    entry = {"dtype": "float32", "shape": [1], "sha256": "0" * 64}
    entries = {f"encoder.layers.{number:05}": entry for number in range(many)}
    identity = {"config": ModelConfig.from_dict(config).identity(), "tensors": entries}
    manifest = {
        "schema": "triglot.checkpoint/1",
        "digest": hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest(),
        "config": config,
        "tensors": {name: {**entry, "axes": []} for name in entries}
        | {"heads.masked_lm.decoder.weight": {"alias": "embeddings.token.weight"}},
    }
    yield (
        "as many tensors as can be",
        built([(f"{name}.npy", array) for name in entries], json.dumps(manifest).encode()),
    )
    yield "long names", built([(f"{number:0250}.npy", b"") for number in range(16_000)], b"{}")
    yield "a directory of zeros", bytes(1 << 24) + b"PK\x05\x06" + bytes(4) + b"\x00\x40" * 2 + bytes(10)


def objects(count):
    """JSON that uses thirty times its size in memory."""
    return b'{"schema": [' + b'{"":0},' * count + b"0]}"


def built(members, manifest):
    """An archive with these members and this manifest."""
    with tempfile.TemporaryFile() as file:
        with npz.Writer(file) as writer:
            for name, content in [*members, ("manifest.json", manifest)]:
                writer.write_bytes(name, content)
        file.seek(0)
        return file.read()


def mutations(target, seed):
    """Endless random damage, up to three times to the same file."""
    generator = random.Random(seed)
    while True:
        content, names = target.content, []
        for _ in range(generator.choice((1, 1, 1, 2, 3))):
            mutation = generator.choice(MUTATIONS)
            content = mutation(content, target, generator)
            names.append(mutation.__name__.replace("_", " "))
        yield names[0] if len(names) == 1 else "several of these", content


def cut_off(content, _, generator):
    return content[: generator.randrange(len(content) + 1)]


def bit_flipped(content, _, generator):
    place = generator.randrange(max(len(content), 1))
    return changed(content, place, bytes([content[place] ^ 1 << generator.randrange(8)]) if content else b"")


def header_overwritten(content, target, generator):
    return changed(content, generator.choice(target.headers), generator.randbytes(generator.randrange(1, 5)))


def integer_replaced(content, target, generator):
    place, size = generator.choice(target.integers)
    extreme = generator.choice((0, 1, 256**size - 1, 256**size // 2, generator.randrange(256**size), len(content)))
    return changed(content, place, (extreme % 256**size).to_bytes(size, "little"))


def part_repeated(content, _, generator):
    start, end = part(content, generator)
    place = generator.randrange(len(content) + 1)
    return content[:place] + content[start:end] + content[place:]


def part_removed(content, _, generator):
    start, end = part(content, generator)
    return content[:start] + content[end:]


def part_zeroed(content, _, generator):
    start, end = part(content, generator)
    return content[:start] + bytes(end - start) + content[end:]


def part_filled(content, _, generator):
    start, end = part(content, generator)
    return content[:start] + b"\xff" * (end - start) + content[end:]


def parts_exchanged(content, _, generator):
    start, end = part(content, generator)
    place = generator.randrange(len(content) + 1)
    moved = content[place : place + end - start]
    return changed(changed(content, start, moved), place, content[start:end])


def part_of_another(content, target, generator):
    """Copy a part of another checkpoint, to the same place or any other, replacing bytes or between them."""
    start, end = part(target.donor, generator)
    place = start if generator.random() < 0.5 else generator.randrange(len(content) + 1)
    behind = place + (end - start if generator.random() < 0.7 else 0)
    return content[:place] + target.donor[start:end] + content[behind:]


def part(content, generator):
    start = generator.randrange(len(content) + 1)
    longest = generator.choice((4, 64, 512, len(content)))
    return start, min(len(content), start + generator.randrange(longest + 1))


def changed(content, place, new):
    return content[:place] + new + content[place + len(new) :]


MUTATIONS = (
    cut_off,
    bit_flipped,
    header_overwritten,
    integer_replaced,
    part_repeated,
    part_removed,
    part_zeroed,
    part_filled,
    parts_exchanged,
    part_of_another,
)


def digest_of(path):
    """A digest of everything that is read, including the training run."""
    checkpoint = load(path, "full")
    digest = hashlib.sha256(checkpoint.digest.encode())
    if training := checkpoint.training:
        digest.update(json.dumps([training.plan.to_dict(), training.moments.steps]).encode())
        for name, array in sorted(training_state.arrays(training).items()):
            digest.update(f"{name} {array.dtype} {array.shape}".encode() + array.tobytes())
    return digest.hexdigest()


# The real reader, and readers with one fault each, which must be noticed.
READERS = {
    "real": digest_of,
    "blind": lambda _: "0" * 64,
    "careless": lambda path: json.loads(path.read_bytes()),
    "slow": lambda _: time.sleep(SECONDS),
    "crashing": lambda _: os.abort(),
    "modest": lambda path: np.ones(MEMORY - (8 << 20), np.uint8).any() and digest_of(path),
    "greedy": lambda _: np.empty(MEMORY + (4 << 20), np.uint8),  # not even touched
}


def read(content, target, reader, seconds):
    """The outcome for one file: "same digest", "refused" or, if it has no checksums, "another model"."""
    path = target.path
    path.unlink(missing_ok=True)  # a new file is faster than truncating one whose content is not yet on the disk
    path.write_bytes(content)
    # A busy machine may make TensorStore start further threads at any read. Their stacks stay, and count from then on.
    base = status("VmSize")
    resource.setrlimit(resource.RLIMIT_AS, (base + MEMORY + len(content), resource.RLIM_INFINITY))
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        digest_read = reader(path)
    except TriglotError:
        return "refused"
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    if digest_read != target.digest:
        if not target.has_checksums:
            return "another model"
        if digest_read == target.digest_of_donor:  # all of its numbers and checksums were copied
            return "the donor"
        raise AssertionError(f"read with another digest, {digest_read}")
    return "same digest"


def status(field):
    """A size in bytes that Linux reports for this process. Unlike ru_maxrss, VmHWM excludes the parent's memory."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith(f"{field}:"))) << 10


def expired(*_):
    raise TimeoutError("reading takes too long")


def run(arguments):
    """Do one part of the work in this process."""
    folder = Path(arguments.folder)
    form = FORMS.get(arguments.form)
    target = Target(folder) if form is None else FormTarget(form, folder)
    endless = arguments.kind == "mutations"
    source = mutations(target, arguments.part) if endless else globals()[arguments.kind](target)
    every = (
        source
        if endless
        else islice(source, arguments.part * arguments.stride, None, arguments.parts * arguments.stride)
    )
    signal.signal(signal.SIGALRM, expired)
    reader, outcomes = READERS[arguments.reader] if form is None else form.read, Counter()
    # The first read loads and caches things.
    digest_of(folder / "original.npz") if form is None else form.read(target.path)
    before = status("VmRSS")
    for name, content in islice(every, arguments.count) if endless else every:
        try:
            outcomes[f"{name}: {read(content, target, reader, arguments.seconds)}"] += 1
        except BaseException as error:
            raise SystemExit(f"{target.path} ({name}): {type(error).__name__}: {error}") from error
    sys.stdout.write(json.dumps({"outcomes": outcomes, "growth": status("VmHWM") - before}))


def part_of(kind, folder, **options):
    """Do one part of the work in a new process. Return the outcomes and the growth of its resident memory.

    ``options``: those of ``main``.
    """
    command = [sys.executable, __file__, kind, str(folder)]
    command += [word for name, value in options.items() for word in (f"--{name}", str(value))]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode:
        raise AssertionError(f"exit code {result.returncode}; {result.stderr[-2000:]} See {folder}")
    return json.loads(result.stdout)


def part_in_a_folder(job):
    folder = tempfile.mkdtemp()
    report = part_of(**job, folder=folder)
    shutil.rmtree(folder)  # after a failure, the file stays there
    return report


def everything(count, json_file):
    """Do everything on all processors. Print how often each outcome occurred, and write it as JSON to ``json_file``."""
    begin, processors = time.perf_counter(), os.cpu_count() or 1
    jobs = [
        {"kind": kind, "part": part, "parts": 8} for kind in ("truncations", "flips", "integers") for part in range(8)
    ]
    jobs += [{"kind": "mutations", "part": part, "count": count // 64} for part in range(64)] + [{"kind": "bombs"}]
    share = count // len(FORMS) // 8
    jobs += [{"kind": kind, "form": form} for form in FORMS for kind in ("truncations", "flips")]
    jobs += [{"kind": "mutations", "form": form, "part": part, "count": share} for form in FORMS for part in range(8)]
    total, growth = Counter(), 0
    with ThreadPoolExecutor(processors) as pool:
        for job, report in zip(jobs, pool.map(part_in_a_folder, jobs), strict=True):
            form = job.get("form", "neutral")
            total.update({f"{form}: {name}": number for name, number in report["outcomes"].items()})
            if job["kind"] != "bombs":  # they are built in the process that reads them
                growth = max(growth, report["growth"])
    lines = [f"{number:>9,}  {name}" for name, number in sorted(total.items())]
    for outcome in ("refused", "same digest", "another model"):
        number = sum(number for name, number in total.items() if name.endswith(outcome))
        lines.append(f"{number:>9,}  in all: {outcome}")
    seconds = time.perf_counter() - begin
    lines.append(f"{total.total():>9,}  in all, in {seconds:.0f} s on {processors} processors")
    lines.append(f"resident memory grew by at most {growth / 1e6:.0f} MB")
    sys.stdout.write("\n".join(lines) + "\n")
    if json_file:
        content = {
            "date": time.strftime("%Y-%m-%d"),
            **{"files": total.total(), "seconds": round(seconds), "growth": growth},
            **{"outcomes": dict(sorted(total.items())), "environment": environment()},
        }
        json_file.write_text(json.dumps(content, indent=1) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", choices=["everything", "truncations", "flips", "integers", "mutations", "bombs"])
    parser.add_argument("folder", nargs="?")
    parser.add_argument("--form", choices=["neutral", *FORMS], default="neutral")
    parser.add_argument("--count", type=int, default=1_000_000, help="how many random mutations")
    parser.add_argument("--part", type=int, default=0)
    parser.add_argument("--parts", type=int, default=1)
    parser.add_argument("--stride", type=int, default=1)
    parser.add_argument("--reader", choices=READERS, default="real")
    parser.add_argument("--seconds", type=float, default=SECONDS)
    parser.add_argument("--json", type=Path, help="where to write the results of 'everything'")
    arguments = parser.parse_args()
    if arguments.kind == "everything":
        everything(arguments.count, arguments.json)
    else:
        run(arguments)


if __name__ == "__main__":
    main()
