"""The messages that libraries and Python packages can print, so that rules can be held to them."""

from __future__ import annotations

import ast
import mmap
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from provisioning.base.diagnosis import knowledge
from provisioning.base.errors import CheckFailed
from provisioning.base.log_text import TROUBLE
from provisioning.build_id import build_ids

TEXT = re.compile(rb"[\t\x20-\x7e]{12,400}")
WORDS = re.compile(rb"[A-Za-z]{2,} +\S*[A-Za-z%]{2,}")
CUT = re.compile(
    r"%[-+ #0-9.*]*(?:hh|h|ll|l|z|j|t)?[a-zA-Z]|0x[0-9a-fA-F]+|\d+|\{[^{}]*\}|(['\"`]).{1,60}?\1"
)
LONGEST_KEY = 80


@dataclass(frozen=True, slots=True)
class Messages:
    """What the files below one folder, or one file, can print."""

    texts: dict[str, str]
    """The key of each message, in which numbers and names are cut, and the message as it is in the file."""
    files: int
    builds: tuple[str, ...]

    @property
    def rules(self) -> set[str]:
        """The rules that match one of them."""
        text = "\n".join(self.texts.values()).encode("utf-8", "replace")
        return {e.id for e in knowledge().entries if any(pattern.search(text) for pattern in e.keys)}


def collect(path: Path) -> Messages:
    """Raises CheckFailed if nothing below it can print."""
    texts, builds, read = dict[str, str](), dict[str, None](), 0
    for file, found in printed(path):
        builds |= dict.fromkeys(() if file.suffix == ".py" else build_ids(file))
        read += 1
        for text in found:
            texts.setdefault(key(text), text)
    if not read:
        raise CheckFailed(f"{path}: no library and no Python file below it")
    return Messages(texts, read, tuple(builds))


def printed(path: Path) -> Iterator[tuple[Path, list[str]]]:
    """What each library, program and Python file can print, below a folder or in one file."""
    files = sorted(file for file in path.rglob("*") if file.is_file()) if path.is_dir() else [path]
    for file in files:
        if file.suffix == ".py":
            yield file, list(_of_python(file))
        elif _is_native(file):
            yield file, list(_of_library(file))


def key(message: str) -> str:
    return " ".join(CUT.sub("…", message).split())[:LONGEST_KEY]


def _is_native(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(4).startswith((b"\x7fELF", b"MZ"))


def _of_library(path: Path) -> Iterator[str]:
    with path.open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as content:
        for match in TEXT.finditer(content):
            if WORDS.search(match[0]) and TROUBLE.search(match[0]):
                yield match[0].decode("ascii").strip()


def _of_python(path: Path) -> Iterator[str]:
    """What it raises or asserts."""
    try:
        tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError) as error:
        raise CheckFailed(f"{path}: is no Python that this version reads: {error}") from error
    for node in ast.walk(tree):
        told = node.exc if isinstance(node, ast.Raise) else node.msg if isinstance(node, ast.Assert) else None
        if isinstance(told, ast.Call) and told.args:
            told = told.args[0]
        if text := _constant(told):
            yield text


def _constant(node: ast.expr | None) -> str:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(_constant(part) or "…" for part in node.values)
    if isinstance(node, ast.BinOp):
        return _constant(node.left) + _constant(node.right)
    return ""


def told(now: Messages, before: Messages | None) -> str:
    builds = ", ".join(now.builds) or "no QNN build"
    lines = [f"{len(now.texts)} messages in {now.files} files ({builds}); {len(now.rules)} rules match one"]
    if before is not None:
        gained, lost = now.texts.keys() - before.texts.keys(), before.texts.keys() - now.texts.keys()
        idle = sorted(before.rules - now.rules)
        lines += [f"gained {len(gained)}, lost {len(lost)}; rules that match none any more: {len(idle)}"]
        lines += [f"  {name}" for name in idle]
    return "\n".join(lines)


def document(now: Messages, before: Messages | None) -> dict[str, object]:
    shown: dict[str, object] = {
        "builds": list(now.builds),
        "files": now.files,
        "messages": now.texts,
        "rules": sorted(now.rules),
    }
    if before is not None:
        shown |= {
            "gained": sorted(now.texts.keys() - before.texts.keys()),
            "lost": sorted(before.texts.keys() - now.texts.keys()),
            "rules_lost": sorted(before.rules - now.rules),
        }
    return shown
