"""The memory of work done: its key, what it touched, and its result.

`find` returns an entry only if its key is equal, everything that the work touched is unchanged, and the files
of the result are whole. Otherwise it says why not, and the work is done again."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ci.engine import entries
from ci.engine.digests import Digests
from ci.engine.inputs import ORDER, CurrentState, Roots, change_in_words, flat
from ci.engine.observed import Observation, Observed
from ci.engine.watch import Touched
from provisioning.base.findings import Metric as Json

ENTRIES = 16
"""Of one key, at most: one for each set of inputs that was seen."""


@dataclass(frozen=True, slots=True)
class CachedResult:
    """The result of work, with the folder of its files if it has any."""

    result: dict[str, Any]
    folder: Path | None = None
    not_remembered: str = ""
    """Why the memo did not keep it; empty if it did."""
    asked: Mapping[str, str] = field(default_factory=dict)
    """The variables that the work asked for and did not have (`Touched.asked`)."""


@dataclass(frozen=True, slots=True)
class Miss:
    """Why work must be done: `models/net.py changed`, `not run before`."""

    why: str


class _Damaged(Miss):
    """Files of a result are not as they were."""


@dataclass(frozen=True, slots=True)
class WorkDone:
    """What is known of a piece of work that was done."""

    touched: Touched = field(default_factory=Touched)
    common: Touched | None = None
    """What its worker touched before any work; entries share it."""
    own: Sequence[Path] = ()
    """Other folders that the work writes to: files there are no inputs."""


class Memo:
    """The memory of one kind of work, in `<store>/cache/memo/<kind>`; safe with parallel processes.

    `environ` is the environment of the processes that do the work. With `reuse=False` (`--no-cache`) nothing
    is found, but results are still remembered."""

    def __init__(
        self,
        store: Path,
        kind: str,
        roots: Roots,
        *,
        environ: Mapping[str, str] = os.environ,
        reuse: bool = True,
    ) -> None:
        self.roots, self._reuse = roots.of_user(environ), reuse
        self._digests = Digests(store)
        self._entries = entries.Entries(store / "cache" / "memo", kind, self._digests)
        self._state = CurrentState(self.roots, self._digests)
        self._observer = Observation(self.roots, self._digests)
        self._changes: dict[str, str] = {}

    @property
    def place(self) -> tuple[str, tuple[tuple[str, str], ...]]:
        """Keys of memos with equal places name the same files."""
        named = self.roots.named.items()
        return str(self._entries.kind), tuple(sorted((name, os.path.realpath(path)) for name, path in named))

    def find(self, subject: str, key: Mapping[str, Json]) -> CachedResult | Miss:
        """The remembered result for this key, or why there is none; `subject` names the work in `Miss.why`.

        With `--no-cache` there is none."""
        if not self._reuse:
            return Miss("--no-cache")
        why = ""
        for path in self._entries.of(key):
            found = self._usable(path)
            if isinstance(found, CachedResult):
                return found
            # Of several reasons, what is wrong with a result says the most.
            why = found.why if isinstance(found, _Damaged) else why or found.why
        return Miss(why or self._new_key(subject, key))

    def _usable(self, path: Path) -> CachedResult | Miss:
        """What an entry holds, or why it does not count."""
        entry = entries.load(path)
        if entry is None:
            return Miss("its entry is damaged")
        if change := self._change(entry):
            return Miss(change)
        folder = self._entries.product(path.parent, entry)
        if damage := self._entries.damage(folder, entry["files"]):
            return _Damaged(damage)
        for used in filter(None, (path, folder)):
            with contextlib.suppress(OSError):
                os.utime(used)
        return CachedResult(dict(entry["result"]), folder, asked=entry["asked"])

    def remember(
        self,
        subject: str,
        key: Mapping[str, Json],
        result: Mapping[str, Any],
        work: WorkDone,
        folder: Path | None = None,
    ) -> CachedResult:
        """Keep a result; `folder`, from `scratch`, moves into the store.

        A result that cannot be remembered, or for which there is no room, stays where it is, and the entry
        says why."""
        observed = self._observed(key, work, folder)
        why = next(iter(observed.reasons), "")
        if not why:
            try:
                document = self._named_inputs(observed)
                document |= self._entries.kept(key, document, folder)
                document |= {"result": dict(result), "asked": dict(work.touched.asked)}
                self._entries.write(key, f"{entries.name_of(document)}.json", document, ENTRIES)
                entries.store(self._entries.subject(subject), {"parts": dict(key)})
                place = self._entries.product(self._entries.folder(key), document)
                return CachedResult(document["result"], place)
            except OSError as error:
                why = str(error.strerror or error)
        return CachedResult(dict(result), folder, not_remembered=why)

    def forget(self, key: Mapping[str, Json]) -> None:
        """Remove the entry that `find` would return: the same work has failed since."""
        for path in list(self._entries.of(key)):
            document = entries.load(path)
            if document is None or not self._change(document):
                path.unlink(missing_ok=True)

    def files_of(self, folder: Path, without: str = "") -> dict[str, str]:
        names = sorted(path.name for path in folder.iterdir() if path.is_file() and path.name != without)
        return {name: self._digests.of(str(folder / name))[0] for name in names}

    def scratch(self) -> Path:
        """A new folder for a result, on the store's file system."""
        return self._entries.scratch()

    def close(self) -> None:
        """Save the digests, and remove entries that were not used for a long time."""
        self._digests.save()
        entries.prune(self._entries.top, entries.ORPHAN_SECONDS)

    def _observed(self, key: Mapping[str, Json], work: WorkDone, folder: Path | None = None) -> Observed:
        own = [*work.own, *([folder] if folder else ())]
        return self._observer.observed(key, work.touched, work.common, own)

    def _change(self, entry: Mapping[str, Any]) -> str:
        """The first input that differs from the entry's; empty if none does."""
        for name in entry["sets"]:
            if name not in self._changes:
                inputs = self._entries.set(name)
                damaged = "its list of inputs is damaged"
                self._changes[name] = damaged if inputs is None else self._first(inputs)
            if self._changes[name]:
                return self._changes[name]
        return self._first(entry["inputs"])

    def _first(self, inputs: Iterable[Sequence[str]]) -> str:
        changed = [input_ for input_ in inputs if self._state.of(input_[0], input_[1]) != input_[2]]
        if not changed:
            return ""
        kind, name, before = min(changed, key=lambda change: (ORDER.index(change[0]), change[1]))
        more = f" (and {len(changed) - 1} more)" if len(changed) > 1 else ""
        return change_in_words(kind, name, before, self._state.of(kind, name)) + more

    def _new_key(self, subject: str, key: Mapping[str, Json]) -> str:
        last = entries.load(self._entries.subject(subject))
        if last is None:
            return "not run before"
        before, after = dict(flat(last["parts"])), dict(flat(dict(key)))
        for name in sorted({*before, *after}):
            if before.get(name) != after.get(name):
                return f"{name}: {_abbreviated(before.get(name))} → {_abbreviated(after.get(name))}"
        return "its remembered result is gone"

    def _named_inputs(self, observed: Observed) -> entries.Document:
        sets = [self._entries.write_set(observed.shared)] if observed.shared else []
        return {"inputs": [list(input_) for input_ in observed.inputs], "sets": sets}


def _abbreviated(value: Any) -> str:
    text = "nothing" if value is None else str(value)
    return text if len(text) <= 40 else f"{text[:37]}…"
