"""Which program prints a message: what the provisioned QNN builds, wheels and runners can print.

The table is made on the user's machine, once for each build and version, and kept in the store.
"""

from __future__ import annotations

import ast
import hashlib
import json
import mmap
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ci.diagnose.tables import failure_rules, table
from provisioning.base.commands import session
from provisioning.base.errors import CheckFailed, EnvironmentLacking
from provisioning.base.files import hash_file, replace_text
from provisioning.base.settings import TARGETS, dist_path
from provisioning.components import QNN_SDK
from provisioning.dist import OURS, RUNNER
from provisioning.python_environments import IN_IMAGE, environments_folder

WHEELS = ("executorch", "torchao", "onnxruntime", "onnxruntime_qnn")
FORM = 2
"""Of what is kept: another one is made anew."""
TEXT = re.compile(rb"[\t\x20-\x7e]{12,400}")
WORDS = re.compile(rb"[A-Za-z]{2,} +\S*[A-Za-z%]{2,}")
CUT = re.compile(
    r"%[-+ #0-9.*]*(?:hh|h|ll|l|z|j|t)?[a-zA-Z]|0x[0-9a-fA-F]+|\d+|\{[^{}]*\}|(['\"`]).{1,60}?\1"
)
LONGEST_KEY = 80
TELLING = 12
"""A part of a message with so many characters is not in others by chance."""
ERROR_NAME = re.compile(r"\b(?:QNN|GENIE|AEE)_[A-Z][A-Z0-9_]{4,}\b")
MOST = 200


@dataclass(frozen=True, slots=True)
class Printer:
    """Files of one version, which print always the same."""

    name: str
    version: str
    path: Path
    identity: str


@dataclass(frozen=True, slots=True)
class PrintedMessage:
    key: str
    """The message with numbers and names cut."""
    text: str
    library: str
    """Or the module of a package."""
    version: str
    meaning: str = ""
    """The rules that match it, or the names of errors in it, in words."""


def key(message: str) -> str:
    return " ".join(CUT.sub("…", message).split())[:LONGEST_KEY]


def printers(store: Path, dist: Path | None = None) -> list[Printer]:
    """Of the store, the Python environments and what was built here (`dist`). Raises EnvironmentLacking if
    there is nothing."""
    found = [*trees(store), *wheels(), *_runners(dist or dist_path())]
    if not found:
        raise EnvironmentLacking(f"nothing is provisioned in {store}", fix=session("provision"))
    return found


def trees(store: Path) -> Iterator[Printer]:
    for tree in sorted((store / "trees").glob(f"{QNN_SDK}-*/")):
        version, _, digest = tree.name.removeprefix(f"{QNN_SDK}-").rpartition("-")
        yield Printer("QNN", version, tree, digest)


def wheels() -> Iterator[Printer]:
    """Each version once, in whichever environment it is."""
    folder = Path(os.environ.get(IN_IMAGE) or environments_folder())
    seen = set[str]()
    for package in WHEELS:
        for about in sorted(folder.glob(f"*/lib/python*/site-packages/{package}-*.dist-info")):
            version = about.name.removeprefix(f"{package}-").removesuffix(".dist-info")
            place = about.with_name(package)
            if version[:1].isdigit() and about.name not in seen and place.is_dir():
                seen.add(about.name)
                yield Printer(package.replace("_", "-"), version, place, hash_file(about / "RECORD"))


def _runners(built: Path) -> Iterator[Printer]:
    for target in TARGETS:
        dist = built / target
        for runner in (dist / RUNNER, dist / OURS / RUNNER):
            if runner.is_file():
                digest = hash_file(runner)
                yield Printer(RUNNER.name, f"{target} {digest[:12]}", runner, digest)


def messages_of(printer: Printer, store: Path) -> list[PrintedMessage]:
    """From the store, where they are kept."""
    identity = f"{FORM}\n{printer.name}\n{printer.version}\n{printer.identity}"
    kept = store / "cache" / "messages" / f"{hashlib.sha256(identity.encode()).hexdigest()}.json"
    try:
        rows = json.loads(kept.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        rows = _collected(printer)
        replace_text(kept, json.dumps(rows))
    version = f"{printer.name} {printer.version}"
    return [PrintedMessage(key(text), text, library, version) for text, library in rows]


def _collected(printer: Printer) -> list[tuple[str, str]]:
    """Each message once, with the first library or module that has it."""
    place, found = printer.path, dict[str, tuple[str, str]]()
    for file in sorted(file for file in place.rglob("*") if file.is_file()) if place.is_dir() else [place]:
        texts = _of_python(file) if file.suffix == ".py" else _of_library(file)
        library = str(file.relative_to(place.parent)) if file.suffix == ".py" else file.name
        for text in texts:
            found.setdefault(key(text), (text, library))
    return list(found.values())


def _of_library(path: Path) -> Iterator[str]:
    with path.open("rb") as stream:
        if not stream.read(4).startswith((b"\x7fELF", b"MZ")):
            return
        with mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as content:
            for match in TEXT.finditer(content):
                if WORDS.search(match[0]) and table().trouble.search(match[0]):
                    yield match[0].decode("ascii").strip()


def _of_python(path: Path) -> Iterator[str]:
    """What it raises or asserts."""
    try:
        tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError):
        return
    for node in ast.walk(tree):
        said = node.exc if isinstance(node, ast.Raise) else node.msg if isinstance(node, ast.Assert) else None
        if isinstance(said, ast.Call) and said.args:
            said = said.args[0]
        if text := _constant(said):
            yield text


def _constant(node: ast.expr | None) -> str:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(_constant(part) or "…" for part in node.values)
    if isinstance(node, ast.BinOp):
        return _constant(node.left) + _constant(node.right)
    return ""


def of_store(store: Path, words: Sequence[str], dist: Path | None = None) -> list[PrintedMessage]:
    """Everything that is provisioned can print, with all these words."""
    wanted = [word.lower() for word in words]
    rows = [row for printer in printers(store, dist) for row in messages_of(printer, store)]
    rows = [row for row in rows if all(word in row.text.lower() for word in wanted)]
    if words and not rows:
        raise CheckFailed(
            f"nothing that is provisioned prints {' '.join(words)!r}",
            fix="give fewer words: numbers and names are not part of a message",
        )
    return [replace(row, meaning=_meaning(row.text)) for row in rows] if words else rows


def _meaning(text: str) -> str:
    line = text.encode("utf-8", "replace")
    known = (rule.id for rule in failure_rules().values() if any(part.search(line) for part in rule.patterns))
    named = (name.replace("_", " ").lower() for name in ERROR_NAME.findall(text))
    return ", ".join(known) or ", ".join(dict.fromkeys(named))


def printer_of(store: Path, lines: Iterable[str]) -> PrintedMessage | None:
    """Who prints the first of these lines that anything provisioned prints."""
    try:
        rows = [row for printer in printers(store) for row in messages_of(printer, store)]
    except EnvironmentLacking:
        return None
    for line in lines:
        found = [row for row in rows if _is_of(row.key, line)]
        if found:
            return max(found, key=lambda row: len(row.key))
    return None


def _is_of(message: str, line: str) -> bool:
    parts = [part.strip() for part in message.split("…")]
    return max(map(len, parts)) >= TELLING and all(part in line for part in parts)


def told(rows: Sequence[PrintedMessage], *, searched: bool) -> str:
    """For people: the messages, or how many each version has."""
    if searched:
        shown = [
            f"{row.library} ({row.version})\n  {row.text}"
            + (f"\n  means: {row.meaning}" if row.meaning else "")
            for row in rows[:MOST]
        ]
        return "\n".join([*shown, *([f"… and {len(rows) - MOST} more"] if rows[MOST:] else [])])
    counts = Counter(row.version for row in rows)
    lines = [f"{count:6}  {version}" for version, count in sorted(counts.items())]
    return "\n".join([*lines, f"{len(rows):6}  messages"])
