"""``triglot encode``: turn the texts of a file into vectors."""

import sys
import time
import warnings
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from triglot.commands.options import CPU, FLOAT32, Device, Dtype, Framework, JsonOption, Mode, QuietOption
from triglot.commands.output import check_apart, check_not_input, check_output, show, shows_tables, write_json
from triglot.embedder import BATCH_TOKENS, Embedder
from triglot.shared.environment import limit_threads
from triglot.shared.errors import InputError, OutputError, SlowWarning
from triglot.shared.model.config import SentencePooling
from triglot.texts import count_lines, is_jsonl, read_texts
from triglot.vector_file import SCHEMA, VectorFile, unfinished

COMPILED = Mode("compiled")


def encode(
    model: Annotated[
        str, typer.Argument(metavar="MODEL", help="A folder of sentence-transformers, a checkpoint, or minilm.")
    ],
    texts: Annotated[
        str, typer.Argument(metavar="TEXTS", help="File with one text a line, or .jsonl; - reads standard input.")
    ],
    target: Annotated[Path, typer.Argument(metavar="OUT.npy", help="File to write: one vector for each text.")],
    framework: Annotated[
        Framework | None, typer.Option(help="Framework to compute in. Default: the first installed.")
    ] = None,
    mode: Annotated[Mode, typer.Option(help="How to run the framework.")] = COMPILED,
    dtype: Annotated[Dtype, typer.Option(help="Number format to compute in.")] = FLOAT32,
    device: Annotated[Device, typer.Option(help="Device to run on.")] = CPU,
    threads: Annotated[int | None, typer.Option(min=1, help="Threads. Default: one per core.")] = None,
    prompt: Annotated[
        str | None, typer.Option(metavar="NAME", help="Prompt of the model to put before each text.")
    ] = None,
    field: Annotated[
        str | None, typer.Option(metavar="NAME", help="Field that holds the text in a .jsonl file. Default: text.")
    ] = None,
    pooling: Annotated[
        SentencePooling | None,
        typer.Option(help="Pooling for an encoder that has none; the vectors are not normalised."),
    ] = None,
    tokenizer: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The tokenizer.json. Default: the one of MODEL.")
    ] = None,
    batch_tokens: Annotated[int, typer.Option(min=1, help="Most tokens in a batch.")] = BATCH_TOKENS,
    resume: Annotated[bool, typer.Option("--resume", help="Continue an interrupted run.")] = False,
    json_file: JsonOption = None,
    quiet: QuietOption = False,
) -> None:
    """Turn texts into vectors.

    OUT.npy gets one float32 vector for each text, in the order of the texts. It is created when all vectors are
    computed. Until then, finished vectors are in OUT.npy.part.
    """
    from triglot import tables  # noqa: PLC0415
    from triglot.shared.console import progress  # noqa: PLC0415

    if target.suffix != ".npy":
        raise OutputError(f"cannot write {target}: expected a name that ends in .npy, such as vectors.npy")
    check_output(json_file, model, texts, tokenizer)
    check_apart(target, *unfinished(target), json_file)
    check_not_input(target, model, texts, tokenizer)
    for path in unfinished(target):
        check_not_input(path, model, texts, tokenizer, inside=False)  # an interrupted run may be in the model's folder
    if field is not None and not is_jsonl(texts):
        raise InputError(f"--field {field} is for a .jsonl file, but {texts} is not one; leave out --field")
    total = count_lines(texts)
    limit_threads(threads)
    if quiet:
        warnings.simplefilter("ignore", SlowWarning)
    embedder = Embedder(
        model,
        framework=framework.value if framework else None,
        mode=mode.value,
        dtype=dtype.value,
        device=device.value,
        pooling=pooling,
        tokenizer=tokenizer,
        batch_tokens=batch_tokens,
    )
    settings = embedder.settings(prompt)
    source = read_texts(texts, "text" if field is None else field)
    unwritten: deque[str] = deque()

    def remaining() -> Iterator[str]:
        for text in source:
            unwritten.append(text)
            yield text

    with VectorFile(target, embedder.size, settings, resume=resume) as file:
        file.skip(source)
        if not embedder.can_continue_after(file.rows) and next(source, None) is not None:
            raise InputError(
                f"{texts} has more than the {file.rows:,} texts that it had in the interrupted run; pass the same "
                f"texts, or remove {unfinished(target)[1]}"
            )
        earlier, begin = file.rows, time.perf_counter()
        try:
            with progress("encode", quiet=quiet, in_lines=True) as on_progress:
                for vectors in embedder.stream(remaining(), prompt=prompt):
                    file.append([unwritten.popleft() for _ in vectors], vectors)
                    if on_progress:  # of this run alone, from which the time left follows
                        done = file.rows - earlier
                        speed = done / (time.perf_counter() - begin)
                        on_progress(done, max(total, file.rows) - earlier, f"{speed:,.0f} texts/s")
        except KeyboardInterrupt:
            sys.stderr.write(f"triglot: {file.rows:,} texts are encoded; continue with --resume\n")
            raise
        file.complete()
    seconds = time.perf_counter() - begin
    result: dict[str, Any] = {
        "schema": SCHEMA,
        "texts": file.rows,
        "size": embedder.size,
        "encoded_now": file.rows - earlier,
        "seconds": seconds,
        "settings": settings,
    }
    write_json(json_file, result)
    if shows_tables(json_file, quiet=quiet):
        speed = f"{(file.rows - earlier) / seconds:,.0f} texts/s"
        show(tables.print_line, f"{target}: {file.rows:,} vectors of size {embedder.size} ({speed})")
