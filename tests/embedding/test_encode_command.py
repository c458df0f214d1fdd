"""``triglot encode``: a file of texts becomes a file of vectors, whatever interrupts it."""

import json
import os
import signal
import subprocess
import sys
import time
import warnings

import numpy as np
import pytest
from refusals import assert_refused, unchanged
from sentence_vectors import assert_alike

from triglot import Embedder, vector_file
from triglot.impls import text_encoder
from triglot.shared.environment import THREAD_VARIABLES, thread_settings
from triglot.shared.errors import SlowWarning
from triglot.shared.inputs.text import sentences

KILLS = 2
TEXTS = sentences(300)


@pytest.fixture
def texts(workplace):
    path = workplace / "texts.txt"
    path.write_text("\n".join(TEXTS) + "\n")
    return path


def test_vectors_are_those_of_the_embedder(sentence_folder, texts, command, framework):
    code, out, _ = command("encode", sentence_folder, texts, "out.npy", "--framework", framework, "--mode", "eager")
    assert code == 0
    assert "out.npy: 300 vectors of size 7" in out
    vectors = np.load("out.npy")
    expected = Embedder(sentence_folder, framework=framework, mode="eager").encode(TEXTS)
    assert vectors.dtype == np.float32
    np.testing.assert_array_equal(vectors, expected)
    assert sorted(os.listdir()) == ["out.npy", "texts.txt"]


def test_options(sentence_folder, texts, command, tokenizer, without_cpp):
    objects = "".join(json.dumps({"body": text}) + "\n" for text in TEXTS)
    texts.with_name("texts.jsonl").write_text(objects)
    options = ("--field", "body", "--prompt", "passage", "--dtype", "bfloat16", "--batch-tokens", "500")
    more = ("--tokenizer", tokenizer, "--json", "-")
    code, out, _ = command("encode", sentence_folder, "texts.jsonl", "out.npy", *options, *more)
    assert code == 0
    result = json.loads(out)
    assert (result["schema"], result["texts"], result["size"]) == ("triglot.encode/1", 300, 7)
    assert result["settings"]["dtype"] == "bfloat16"
    model = Embedder(sentence_folder, dtype="bfloat16", batch_tokens=500)
    np.testing.assert_array_equal(np.load("out.npy"), model.encode(TEXTS, prompt="passage"))
    assert command("encode", sentence_folder, "texts.jsonl", "2.npy", "--field", "body", "--quiet") == (0, "", "")


@pytest.mark.long
def test_slow_bfloat16_is_one_line(sentence_folder, workplace, command):
    (workplace / "texts.txt").write_text("")
    options = (sentence_folder, "texts.txt", "out.npy", "--framework", "jax", "--dtype", "bfloat16")
    program = [sys.executable, "-m", "triglot", "encode", *map(str, options)]
    run = subprocess.run(program, capture_output=True, text=True, check=True)
    assert "triglot: on a CPU, JAX is slower in bfloat16 than in float32; use float32\n" in run.stderr
    (workplace / "out.npy").unlink()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert command("encode", *options, "--quiet") == (0, "", "")
    assert not [warning for warning in caught if issubclass(warning.category, SlowWarning)]


REPORT_THREADS = """
from triglot import cli

try:
    cli.main()
finally:
    import torch
    print(torch.get_num_threads())
"""


@pytest.mark.long
def test_threads(sentence_folder, workplace):
    """The framework uses one thread if the command says so. Without it, PyTorch uses one per core."""
    (workplace / "texts.txt").write_text("")
    options = ("--framework", "torch", "--mode", "eager", "--threads", "1", "--quiet")
    command = [sys.executable, "-c", REPORT_THREADS, "encode", str(sentence_folder), "texts.txt", "out.npy", *options]
    variables = {name: value for name, value in os.environ.items() if name not in THREAD_VARIABLES}
    assert subprocess.run(command, capture_output=True, text=True, check=True, env=variables).stdout == "1\n"


COUNT_TOKENIZER_THREADS = """
import os, sys
from tokenizers import Tokenizer

tokenizer = Tokenizer.from_file(sys.argv[1])
before = len(os.listdir("/proc/self/task"))
tokenizer.encode_batch_fast(["one", "two"])
print(len(os.listdir("/proc/self/task")) - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux lists the threads of a process")
def test_threads_of_the_tokenizer(tokenizer):
    command = [sys.executable, "-c", COUNT_TOKENIZER_THREADS, str(tokenizer)]
    variables = {**os.environ, **thread_settings(3), "TOKENIZERS_PARALLELISM": "true"}
    assert subprocess.run(command, capture_output=True, text=True, check=True, env=variables).stdout == "3\n"


def test_a_run_resumes_only_with_the_same_threads_and_versions(sentence_folder, texts, command, monkeypatch):
    for name in THREAD_VARIABLES:
        monkeypatch.setenv(name, "1")  # the command changes them
    monkeypatch.setattr(vector_file.VectorFile, "complete", interrupted)
    assert command("encode", sentence_folder, texts, "out.npy", "--threads", "1")[0] == 130
    with unchanged(texts.parent):
        result = command("encode", sentence_folder, texts, "out.npy", "--threads", "2", "--resume")
        assert_refused(result, "threads is 2, but the interrupted run has 1")
    for patched, result, message in (
        ("hash_of_code", "0.0", "code of Triglot is '0.0'"),
        ("version", "0.0", "versions is {'torch': '0.0'"),
        ("variables", {"ONEDNN_MAX_CPU_ISA": "AVX2"}, "variables is {'ONEDNN_MAX_CPU_ISA': 'AVX2'"),
    ):
        with unchanged(texts.parent), monkeypatch.context() as patch:
            patch.setattr(f"triglot.impls.text_encoder.{patched}", lambda *_, result=result: result)
            refused = command("encode", sentence_folder, texts, "out.npy", "--threads", "1", "--resume")
            assert_refused(refused, message)


def interrupted(_):
    raise KeyboardInterrupt


def test_texts_that_have_grown_since_all_were_encoded(sentence_folder, texts, command, monkeypatch):
    """Without the error, the last texts would share other batches than in a run without interruption."""
    with monkeypatch.context() as patched:
        patched.setattr(vector_file.VectorFile, "complete", interrupted)
        assert command("encode", sentence_folder, texts, "out.npy")[0] == 130
    content = texts.read_text()
    texts.write_text(content + "one more\n")
    with unchanged(texts.parent):
        result = command("encode", sentence_folder, texts, "out.npy", "--resume")
        assert_refused(result, f"has more than the {len(content.splitlines())} texts that it had in")
    texts.write_text(content)
    assert command("encode", sentence_folder, texts, "out.npy", "--resume", "--quiet") == (0, "", "")


def test_a_tokenizer_that_is_removed_during_the_run(sentence_folder, texts, command, monkeypatch):
    def remove_and_complete(file):
        (sentence_folder / "tokenizer.json").unlink()
        complete(file)

    complete = vector_file.VectorFile.complete
    monkeypatch.setattr(vector_file.VectorFile, "complete", remove_and_complete)
    assert command("encode", sentence_folder, texts, "out.npy", "--quiet") == (0, "", "")


WINDOW = 32
SMALL_BATCHES = ("--batch-tokens", "512", "--quiet")

# Small windows, and a pause after each of them, in which a signal can arrive.
SLOWLY = """
import time
from triglot import cli, vector_file
from triglot.impls import text_encoder

text_encoder.WINDOW = {window}
append = vector_file.VectorFile.append

def append_and_wait(*arguments):
    append(*arguments)
    time.sleep(0.1)

vector_file.VectorFile.append = append_and_wait
cli.main()
"""


def start(*arguments):
    """Start the command in a separate process."""
    command = [sys.executable, "-c", SLOWLY.format(window=WINDOW), "encode", *arguments, *SMALL_BATCHES]
    return subprocess.Popen([*map(str, command)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def interrupt(process, record, number, rows):
    """Send a signal when more than ``rows`` rows count, and return how many do, and what it prints."""
    deadline = time.monotonic() + 120
    counted = rows
    while counted <= rows:
        assert time.monotonic() < deadline, "no further rows were counted"
        assert process.poll() is None, "the run ended before it was interrupted"
        if record.exists():
            counted = json.loads(record.read_text())["rows"]
        time.sleep(0.001)
    process.send_signal(number)
    _, err = process.communicate()
    return json.loads(record.read_text())["rows"], err


def test_a_run_that_is_killed_again_and_again(sentence_folder, texts, workplace, command, monkeypatch):
    monkeypatch.setattr(text_encoder, "WINDOW", WINDOW)
    assert command("encode", sentence_folder, texts, "undisturbed.npy", *SMALL_BATCHES) == (0, "", "")
    record, rows = workplace / "killed.npy.part.json", 0
    for _ in range(KILLS):
        killed = start(sentence_folder, texts, "killed.npy", "--resume")
        before, (rows, _) = rows, interrupt(killed, record, signal.SIGKILL, rows)
        assert killed.returncode == -signal.SIGKILL
        assert before < rows < len(TEXTS)
        assert not (workplace / "killed.npy").exists()
    resumed = start(sentence_folder, texts, "killed.npy", "--resume", "--json", "-")
    out, err = resumed.communicate()
    assert (resumed.returncode, err) == (0, "")
    assert json.loads(out)["encoded_now"] == len(TEXTS) - rows
    assert (workplace / "killed.npy").read_bytes() == (workplace / "undisturbed.npy").read_bytes()


def test_ctrl_c(sentence_folder, texts, workplace):
    process = start(sentence_folder, texts, "out.npy")
    rows, err = interrupt(process, workplace / "out.npy.part.json", signal.SIGINT, 0)
    assert process.returncode == 130
    # The signal may arrive after vectors are counted on disk, and before the process knows it.
    message = "triglot: {} texts are encoded; continue with --resume\ntriglot: interrupted\n"
    assert err in {message.format(rows), message.format(rows - WINDOW)}


REFUSED = {
    "a field of a text file": (("texts.txt", "out.npy", "--field", "body"), r"--field body is for a \.jsonl file"),
    "existing": (("old.npy", "old.npy"), "cannot write old.npy.*also an input"),
    "unfinished vectors": (("out.npy.part", "out.npy"), "cannot write out.npy.part.*also an input"),
    "unfinished record": (
        ("out.npy.part.json", "out.npy", "--resume"),
        "cannot write out.npy.part.json.*also an input",
    ),
    "long name": (("texts.txt", "x" * 242 + ".npy"), "its name has 256 bytes, expected at most 255; shorten it"),
    "existing vectors": (("texts.txt", "old.npy"), "old.npy already exists; remove it, or choose another"),
    "standard output": (("texts.txt", "-"), r"cannot write -: expected a name that ends in \.npy"),
    "a folder": (("texts.txt", "."), r"cannot write \.: expected a name that ends in \.npy"),
    "no texts": (("none.txt", "out.npy"), "none.txt is not a file"),
    "not UTF-8": (("bad.txt", "out.npy"), "line 1 of bad.txt is not UTF-8"),
    "prompt": (("texts.txt", "out.npy", "--prompt", "x"), "prompt is 'x'; expected one of 'query', 'passage'"),
    "field": (("texts.txt", "out.npy", "--pooling", "sum"), "pooling.*sum"),
    "JSON": (("texts.txt", "out.npy", "--json", "out.npy"), "out.npy would be written twice"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_what_is_refused(kind, sentence_folder, texts, command):
    arguments, pattern = REFUSED[kind]
    texts.with_name("bad.txt").write_bytes(b"\xff\n")
    texts.with_name("old.npy").write_bytes(b"")
    for name in ("out.npy.part", "out.npy.part.json"):
        if name in arguments:
            texts.with_name(name).write_text("a text\n")
    with unchanged(texts.parent):
        assert_refused(command("encode", sentence_folder, *arguments), pattern)


def test_windows_do_not_change_the_file(sentence_folder, texts, command, monkeypatch):
    """Only rounding depends on the windows, because other texts share a batch."""
    command("encode", sentence_folder, texts, "one.npy")
    monkeypatch.setattr(text_encoder, "WINDOW", 7)
    command("encode", sentence_folder, texts, "many.npy")
    assert_alike(np.load("many.npy"), np.load("one.npy"), sentence_folder, TEXTS)
