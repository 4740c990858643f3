"""What a worker prints while it works, native code's too: read again from its log, or kept quiet."""

from __future__ import annotations

import contextlib
import gc
import logging
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

from ci.child import flush_output


def size_of(log: Path) -> int:
    flush_output()
    return log.stat().st_size


def text_since(log: Path, begin: int) -> str:
    """What this process has printed to its log after this byte."""
    flush_output()
    with log.open("rb") as stream:
        stream.seek(begin)
        return stream.read().decode("utf-8", "replace")


def new_text(log: Path) -> Callable[[], str]:
    """Returns what this process printed to its log since the last call."""
    position = 0

    def read() -> str:
        nonlocal position
        begin, position = position, size_of(log)
        return text_since(log, begin)

    return read


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Hide warnings and advice, such as those of ONNX's exporter and quantizer, which do not apply here."""
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(logging.NOTSET)


def forget_torch() -> None:
    """Give back what tracing left in torch."""
    import torch

    torch._dynamo.reset()
    gc.collect()
    # An export leaves some 10,000 objects for good. If each collection walked them, it would soon take over a
    # second.
    gc.freeze()
