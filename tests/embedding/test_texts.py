"""Texts from files: lines and ``.jsonl``."""

import io
import json
import os
from types import SimpleNamespace

import pytest
from refusals import refusal

from triglot.shared.errors import InputError
from triglot.texts import count_lines, read_texts

LINES = {
    "plain": (b"one\ntwo\n", ["one", "two"]),
    "no newline at the end": (b"one\ntwo", ["one", "two"]),
    "Windows": (b"\xef\xbb\xbfone\r\n\r\ntwo\r\n", ["one", "", "two"]),
    "empty lines and spaces": (b"\n one \n\n", ["", " one ", ""]),
    "other ends of lines": ("a\u2028b\x0bc\rd\n".encode(), ["a\u2028b\x0bc\rd"]),
    "nothing": (b"", []),
}


@pytest.mark.parametrize("kind", LINES)
def test_a_line_is_a_text(kind, tmp_path, monkeypatch):
    content, expected = LINES[kind]
    (tmp_path / "texts.txt").write_bytes(content)
    assert list(read_texts(str(tmp_path / "texts.txt"), "text")) == expected
    assert count_lines(str(tmp_path / "texts.txt")) == len(expected)
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(content)))
    assert list(read_texts("-", "text")) == expected


def test_a_field_is_a_text(tmp_path):
    texts = ["one", "", "two\nlines", "中文"]
    path = tmp_path / "texts.jsonl"
    path.write_text("".join(json.dumps({"id": number, "body": text}) + "\n" for number, text in enumerate(texts)))
    assert list(read_texts(str(path), "body")) == texts
    assert count_lines(str(path)) == len(texts)


def test_what_can_be_read_once_is_not_counted(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    assert count_lines("-") == count_lines(str(tmp_path / "pipe")) == 0


FILES = {
    "not UTF-8": ("a.txt", b"good\n\xff\n", "line 2 of .*a.txt is not UTF-8.*convert"),
    "not JSON": ("a.jsonl", b'{"text": "a"}\n{\n', "line 2 of .*a.jsonl is not JSON.*correct"),
    "too deep": ("a.jsonl", b"[" * 100_000, "line 1 of .*a.jsonl is not JSON"),
    "no object": ("a.jsonl", b'"text"\n', "line 1 of .*expected an object with a text in 'text'.*--field"),
    "no text": ("a.jsonl", b'{"text": 3}\n', "line 1 of .*expected an object with a text in 'text'"),
    "half a character": (
        "a.jsonl",
        b'{"text": "a"}\n{"text": "\\ud83d"}\n',
        "line 2 of .*a.jsonl is not Unicode.*surr",
    ),
    "empty line": ("a.jsonl", b'{"text": "a"}\n\n', "line 2 of .*is not JSON"),
}


@pytest.mark.parametrize("kind", FILES)
def test_files_that_are_refused(kind, tmp_path):
    name, content, pattern = FILES[kind]
    (tmp_path / name).write_bytes(content)
    with refusal(InputError, pattern):
        list(read_texts(str(tmp_path / name), "text"))


def test_paths_that_are_no_file(tmp_path):
    for path in (tmp_path, tmp_path / "none"):
        with refusal(InputError, "is not a file; name a file with one text a line, or - for standard input"):
            count_lines(str(path))
        with refusal(InputError, f"cannot read {path}: .*; name a file"):
            list(read_texts(str(path), "text"))
