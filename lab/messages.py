"""The messages that QNN's libraries can print, with numbers and names cut."""

from __future__ import annotations

import mmap
import re
from collections.abc import Iterator
from pathlib import Path

from ci.diagnose.rules import table

TEXT = re.compile(rb"[\t\x20-\x7e]{12,400}")
WORDS = re.compile(rb"[A-Za-z]{2,} +\S*[A-Za-z%]{2,}")
CUT = re.compile(
    r"%[-+ #0-9.*]*(?:hh|h|ll|l|z|j|t)?[a-zA-Z]|0x[0-9a-fA-F]+|\d+|\{[^{}]*\}|(['\"`]).{1,60}?\1"
)
LONGEST_KEY = 80


def key(message: str) -> str:
    return " ".join(CUT.sub("…", message).split())[:LONGEST_KEY]


def messages_in(folder: Path) -> dict[str, str]:
    """Each message of the libraries in a folder that tells of trouble, by its key."""
    found = dict[str, str]()
    for file in sorted(file for file in folder.rglob("*") if file.is_file()):
        for text in _texts_of_library(file):
            found.setdefault(key(text), text)
    return found


def _texts_of_library(path: Path) -> Iterator[str]:
    with path.open("rb") as stream:
        if not stream.read(4).startswith((b"\x7fELF", b"MZ")):
            return
        with mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as content:
            for match in TEXT.finditer(content):
                if WORDS.search(match[0]) and table().trouble.search(match[0]):
                    yield match[0].decode("ascii").strip()
