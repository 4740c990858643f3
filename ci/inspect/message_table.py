"""Which program prints a message: what the provisioned QNN builds, wheels and runners can print.

The table is made on the user's machine, once for each build and version, and kept in the store.
"""

from __future__ import annotations

import bisect
import hashlib
import itertools
import json
import os
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ci.inspect.messages import key, printed
from provisioning.base.diagnosis import Entry, knowledge
from provisioning.base.errors import CheckFailed, EnvironmentLacking
from provisioning.base.files import hash_file, replace_text
from provisioning.base.patterns import Pattern
from provisioning.base.settings import TARGETS, outputs_path
from provisioning.components import QNN_SDK
from provisioning.dist import OURS, RUNNER
from provisioning.python_environments import IN_IMAGE, environments_folder

WHEELS = ("executorch", "torchao", "onnxruntime", "onnxruntime_qnn")
FORM = 1
"""Of what is kept: another one is made anew."""

ERROR_NAME = re.compile(r"\b(?:QNN|GENIE|AEE)_[A-Z][A-Z0-9_]{4,}\b")


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
    text: str
    library: str
    """Or the module of a package."""
    version: str
    meaning: str = ""
    """The rules that match it, or the names of errors in it, in words."""


def printers(store: Path, outputs: Path | None = None) -> list[Printer]:
    """Of the store, the Python environments and what was built here (`outputs`). Raises EnvironmentLacking if
    there is nothing."""
    found = [*trees(store), *wheels(), *_runners(outputs or outputs_path())]
    if not found:
        raise EnvironmentLacking(f"nothing is provisioned in {store}", fix="nox -s provision")
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


def _runners(outputs: Path) -> Iterator[Printer]:
    for target in TARGETS:
        dist = outputs / "dist" / target
        for runner in (dist / RUNNER, dist / OURS / RUNNER):
            if runner.is_file():
                digest = hash_file(runner)
                yield Printer(RUNNER.name, f"{target} {digest[:12]}", runner, digest)


def table(printer: Printer, store: Path) -> list[PrintedMessage]:
    """From the store, where it is kept."""
    name = hashlib.sha256(
        f"{FORM}\n{printer.name}\n{printer.version}\n{printer.identity}".encode()
    ).hexdigest()
    kept = store / "cache" / "messages" / f"{name}.json"
    try:
        rows = json.loads(kept.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        rows = [list(row) for row in _collected(printer)]
        replace_text(kept, json.dumps(rows))
    version = f"{printer.name} {printer.version}"
    return [PrintedMessage(key(text), text, library, version) for text, library in rows]


def _collected(printer: Printer) -> list[tuple[str, str]]:
    """Each message once, with the first library or module that has it."""
    found: dict[str, tuple[str, str]] = {}
    for file, texts in printed(printer.path):
        library = str(file.relative_to(printer.path.parent)) if file.suffix == ".py" else file.name
        for text in texts:
            found.setdefault(key(text), (text, library))
    return list(found.values())


def explained(rows: Sequence[PrintedMessage]) -> list[PrintedMessage]:
    """With their meanings."""
    lines = [row.text.encode("utf-8", "replace").replace(b"\n", b" ") for row in rows]
    starts = [0, *itertools.accumulate(len(line) + 1 for line in lines)]
    text = b"\n".join(lines)
    rules: dict[int, dict[str, None]] = defaultdict(dict)
    for entry, pattern in _looked_for(text):
        for match in pattern.find_all(text):
            rules[bisect.bisect_right(starts, match.start()) - 1][entry.id] = None
    return [
        PrintedMessage(row.key, row.text, row.library, row.version, _meaning(row, rules.get(number, {})))
        for number, row in enumerate(rows)
    ]


def _meaning(row: PrintedMessage, rules: Iterable[str]) -> str:
    named = (name.replace("_", " ").lower() for name in ERROR_NAME.findall(row.text))
    return ", ".join(rules) or ", ".join(dict.fromkeys(named))


def matched(rows: Sequence[PrintedMessage]) -> set[str]:
    """The rules that match one of them."""
    text = "\n".join(row.text for row in rows).encode("utf-8", "replace")
    return {entry.id for entry, pattern in _looked_for(text) if pattern.search(text)}


def _looked_for(text: bytes) -> Iterator[tuple[Entry, Pattern]]:
    """Of each entry the patterns that can be in the text."""
    possible = knowledge().index.possible(text)
    for entry in knowledge().entries:
        yield from ((entry, pattern) for pattern in entry.keys if pattern in possible)


def containing(rows: Iterable[PrintedMessage], words: Sequence[str]) -> list[PrintedMessage]:
    wanted = [word.lower() for word in words]
    return [row for row in rows if all(word in row.text.lower() for word in wanted)]


def of_store(store: Path, words: Sequence[str], outputs: Path | None = None) -> list[PrintedMessage]:
    """Everything that is provisioned can print, with all these words."""
    rows = [row for printer in printers(store, outputs) for row in table(printer, store)]
    found = explained(containing(rows, words))
    if words and not found:
        raise CheckFailed(
            f"nothing that is provisioned prints {' '.join(words)!r}",
            fix="give fewer words: numbers and names are not part of a message",
        )
    return found


MOST = 200


def told(rows: Sequence[PrintedMessage], *, searched: bool) -> str:
    """For people: the messages, or how many each version has."""
    if searched:
        shown = [f"{row.library} ({row.version})\n  {row.text}" + _says(row) for row in rows[:MOST]]
        return "\n".join([*shown, *([f"… and {len(rows) - MOST} more"] if rows[MOST:] else [])])
    counts = Counter(row.version for row in rows)
    lines = [f"{count:6}  {version}" for version, count in sorted(counts.items())]
    with_meaning = sum(bool(row.meaning) for row in rows)
    return "\n".join([*lines, f"{len(rows):6}  messages, {with_meaning} of them with a meaning"])


def _says(row: PrintedMessage) -> str:
    return f"\n  means: {row.meaning}" if row.meaning else ""


def compared(new: Sequence[PrintedMessage], old: Sequence[PrintedMessage]) -> dict[str, list[str]]:
    """What a newer build prints and an older did not, what it prints no more, and the rules that match none
    of its messages any more."""
    now, before = {row.key for row in new}, {row.key for row in old}
    return {
        "gained": sorted(now - before),
        "lost": sorted(before - now),
        "rules": sorted(matched(old) - matched(new)),
    }
