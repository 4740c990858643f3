"""The memory of work done: its key, what it touched, and its result.

`find` returns an entry only if its key is equal, everything that the work touched is unchanged, and the files
of the result are whole. Otherwise it says why not, and the work is done again.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import mmap
import os
import platform
import shutil
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from ci.engine.distributions import site_folders, swept
from ci.engine.inputs import (
    ENTRY_POINTS,
    INSTALLED,
    ORDER,
    PACKAGES,
    CurrentState,
    Digests,
    Input,
    Roots,
    Touched,
    change_in_words,
    key_of,
    libraries_by_name,
)
from ci.engine.interpreter import as_installed
from ci.engine.packages import distributions_of
from ci.engine.packed import begin, pack
from ci.engine.remote import ENTRIES, Remote, remote_of
from ci.engine.runs import Run
from ci.engine.watch import Stamp, source_of
from provisioning.base.files import hash_file, replace_text
from provisioning.base.findings import Metric as Json
from provisioning.base.secrets import RESULTS, handed_on

FAILED = "failed"
"""The suffix of a file beside a key's entries, which also differ in what the work touched: with these inputs
it has failed here, so another machine's pass of it does not count. One without inputs stands for all."""

MOST_FAILED = 64

RUN = "run"
"""The suffix of a file beside a key's entries: one time that the work was done, with its verdict and figures.
It is no result, is never changed, and names its inputs by sets alone, which runs share."""

MOST_RUNS = 64

RESTORED = "restored.json"
"""Names the entries that a CI system's cache brought, and its origin, for reports."""

UNUSED_SECONDS = 60 * 86400.0
ORPHAN_SECONDS = 86400.0
"""A folder without an entry may belong to another process that has not written its entry yet."""

OF_PROCESSOR = (
    "vendor_id", "cpu family", "model", "flags",
    "CPU implementer", "CPU architecture", "CPU variant", "CPU part", "Features",
)  # fmt: skip
"""Of /proc/cpuinfo."""


class Maker(NamedTuple):
    """What rounds sums in a way of its own: the processor and the number of threads. Neither is an input, as
    machines share results"""

    processor: str = ""
    threads: int = 0


UNKNOWN_MAKER = Maker()


@dataclass(frozen=True, slots=True)
class CachedResult:
    """The result of work, with the folder of its files if it has any."""

    result: dict[str, Any]
    folder: Path | None = None
    cached: bool = True
    origin: str = "store"
    """Where a cached one is from: our own store, the remote cache, or a CI system's."""
    not_remembered: str = ""
    """Why the memo did not keep it; empty if it did."""
    asked: Mapping[str, str] = field(default_factory=dict)
    """The variables that the work asked for and did not have (`Touched.asked`)."""
    maker: Maker = UNKNOWN_MAKER


@dataclass(frozen=True, slots=True)
class Miss:
    """Why work must be done: `models/net.py changed`, `not run before`."""

    why: str


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
        self._top = store / "cache" / "memo"
        self._kind = self._top / kind
        self.roots, self._reuse = roots.of_user(environ), reuse
        self._environ, self._digests = environ, Digests(store)
        self._state = self._current_state()
        self.remote = remote_of(handed_on(os.environ))
        self.results = os.environ.get(RESULTS, "")
        """Where what it remembers is packed for `cache push`, if anywhere."""
        if self.results:
            begin(Path(self.results))
        self._restored: tuple[str, frozenset[str]] | None = None
        self._sets: dict[str, tuple[Input, ...] | None] = {}
        self._changes: dict[str, str] = {}
        sites = site_folders(self.roots.named.get("packages"))
        self._installed = tuple({f"{spelt}/" for site in sites for spelt in (site, os.path.realpath(site))})
        self._commons: list[tuple[Touched, list[Input], list[str]]] = []
        self._folders: dict[str, str] = {}
        self._count = itertools.count()

    @property
    def place(self) -> tuple[str, tuple[tuple[str, str], ...]]:
        """Keys of memos with equal places name the same files."""
        named = self.roots.named.items()
        return str(self._kind), tuple(sorted((name, os.path.realpath(path)) for name, path in named))

    def find(self, subject: str, key: Mapping[str, Json]) -> CachedResult | Miss:
        """The remembered result for this key, or why there is none; `subject` names the work in `Miss.why`.

        With `--no-cache` there is none."""
        if not self._reuse:
            return Miss("--no-cache")
        why = ""
        for path in self._entries(key):
            entry = _load(path)
            change = self._change(entry) if entry else "its entry is damaged"
            if not change and entry:
                folder = path.parent / entry["folder"] if entry["folder"] else None
                damage = self._damage(folder, entry["files"])
                if not damage:
                    inputs = _set_of(entry["inputs"])[0]
                    # Its runs have the same: what is known of them need not be read again.
                    self._changes[inputs] = ""
                    for used in filter(None, (path, folder, self._set_file(inputs))):
                        with contextlib.suppress(OSError):
                            os.utime(used)
                    return CachedResult(
                        entry["result"],
                        folder,
                        origin=self._origin(path),
                        asked=entry["asked"],
                        maker=Maker(*entry.get("maker", ())),
                    )
                why = damage
            why = why or change
        return self._shared_entry(key) or Miss(why or self._new_key(subject, key))

    def remember(
        self,
        subject: str,
        key: Mapping[str, Json],
        result: Mapping[str, Any],
        touched: Touched,
        folder: Path | None = None,
        common: Touched | None = None,
        own: Sequence[Path] = (),
        threads: int = 0,
        run: Run | None = None,
    ) -> CachedResult:
        """Keep a result, and its run; `folder`, from `scratch`, moves into the store.

        `common` is what a worker touched before any work; entries share it. Files in `own`, other folders
        that the work writes, are no inputs. A result that cannot be remembered, or for which there is no
        room, stays where it is, and the entry says why."""
        below = [*own, *([folder] if folder else ())]
        inputs, shared, reasons = self._all_inputs(key, touched, common, below)
        if reasons:
            return CachedResult(dict(result), folder, cached=False, not_remembered=reasons[0])
        try:
            maker = Maker(processor_kind(), threads)
            self._write_run(key, run, inputs, shared)
            return self._write(subject, key, result, inputs, shared, folder, touched.asked, maker)
        except OSError as error:
            return CachedResult(
                dict(result), folder, cached=False, not_remembered=f"{error.strerror or error}"
            )

    def forget(
        self,
        key: Mapping[str, Json],
        touched: Touched | None = None,
        common: Touched | None = None,
        own: Sequence[Path] = (),
        run: Run | None = None,
    ) -> None:
        """Remove the entry that `find` would return: the same work has failed since, and touched this. The
        run is kept.

        Other machines' passes with the same inputs do not count then, here and, if this machine writes,
        anywhere; with unknown inputs, no pass of this key does here until it passes here."""
        self._remove(key, "json")
        inputs, shared, reasons = self._all_inputs(key, touched or Touched(), common, own)
        with contextlib.suppress(OSError):
            if not reasons:
                self._write_run(key, run, inputs, shared)
            names = [self._write_set(shared)] if shared and not reasons else []
            document = {"inputs": [list(input_) for input_ in inputs] if not reasons else [], "sets": names}
            top = self._folder(key)
            top.mkdir(parents=True, exist_ok=True)
            _store(top / f"{key_of(document)[:32]}.{FAILED}", document)
            for path in list(self._entries(key, FAILED))[MOST_FAILED:]:
                path.unlink(missing_ok=True)
            if document["inputs"]:
                self._pack(key, {**document, FAILED: True}, {name: self._set_file(name) for name in names})

    def runs(self, key: Mapping[str, Json]) -> tuple[Run, ...]:
        """Earlier runs of the work with the inputs of now, the last one last."""
        runs = []
        for path in sorted(self._folder(key).glob(f"*.{RUN}")):
            document = _load(path)
            if document and not self._change(document):
                with contextlib.suppress(OSError):
                    os.utime(path)
                runs.append(Run(**document["run"]))
        return tuple(runs)

    def ran(
        self, key: Mapping[str, Json], run: Run, touched: Touched, common: Touched, own: Sequence[Path]
    ) -> None:
        """Keep a run alone."""
        inputs, shared, reasons = self._all_inputs(key, touched, common, own)
        if not reasons:
            with contextlib.suppress(OSError):
                self._write_run(key, run, inputs, shared)

    def _write_run(
        self, key: Mapping[str, Json], run: Run | None, inputs: Sequence[Input], shared: Sequence[Input]
    ) -> None:
        if run is None:
            return
        top = self._folder(key)
        top.mkdir(parents=True, exist_ok=True)
        sets = [self._write_set(group) for group in (inputs, shared)]
        document = {"inputs": [], "sets": sets, "run": run.as_json()}
        _store(top / f"{time.time_ns():020}.{os.getpid()}.{RUN}", document)
        for path in sorted(top.glob(f"*.{RUN}"))[:-MOST_RUNS]:
            path.unlink(missing_ok=True)

    def _remove(self, key: Mapping[str, Json], suffix: str) -> None:
        """The files of this suffix whose inputs are unchanged."""
        for path in list(self._entries(key, suffix)):
            document = _load(path)
            if document is None or not self._change(document):
                path.unlink(missing_ok=True)

    def files_of(self, folder: Path, without: str = "") -> dict[str, str]:
        """The digest of each file in a folder, by name."""
        names = sorted(path.name for path in folder.iterdir() if path.is_file() and path.name != without)
        return {name: self._digests.of(str(folder / name))[0] for name in names}

    def scratch(self) -> Path:
        """A new folder for a result, on the store's file system."""
        folder = self._kind / "work" / f"{os.getpid()}-{time.monotonic_ns()}-{next(self._count)}"
        folder.mkdir(parents=True)
        return folder

    def close(self) -> None:
        """Save the digests, and remove entries that were not used for a long time."""
        self._digests.save()
        prune(self._top, ORPHAN_SECONDS)

    def _entries(self, key: Mapping[str, Json], suffix: str = "json") -> Iterator[Path]:
        """The entries of a key, most recently used first."""
        entries = []
        for path in self._folder(key).glob(f"*.{suffix}"):
            with contextlib.suppress(OSError):
                entries.append((path.stat().st_mtime_ns, path))
        yield from (path for _, path in sorted(entries, reverse=True))

    def _folder(self, key: Mapping[str, Json]) -> Path:
        name = key_of(key)
        return self._kind / name[:2] / name

    def _change(self, entry: Mapping[str, Any]) -> str:
        """The first input that differs from the entry's; empty if none does."""
        for name in entry["sets"]:
            if name not in self._changes:
                inputs = self._set(name)
                damaged = "its list of inputs is damaged"
                self._changes[name] = damaged if inputs is None else self._first(inputs)
            if self._changes[name]:
                return self._changes[name]
        return self._first(entry["inputs"])

    def _first(self, inputs: Iterable[Sequence[str]]) -> str:
        changed = [input_ for input_ in inputs if self._state.of(input_[0], input_[1]) != input_[2]]
        if not changed:
            return ""
        # A distribution's new version explains more than the first of its changed files.
        kind, name, before = min(changed, key=lambda change: (ORDER.index(change[0]), change[1]))
        more = f" (and {len(changed) - 1} more)" if len(changed) > 1 and kind != "distribution" else ""
        return change_in_words(kind, name, before, self._state.of(kind, name)) + more

    def _set(self, name: str) -> tuple[Input, ...] | None:
        if name not in self._sets:
            path = self._set_file(name)
            self._sets[name] = None
            with contextlib.suppress(OSError, ValueError):
                text = path.read_text(encoding="utf-8")
                if hashlib.sha256(text.encode()).hexdigest() == name:
                    self._sets[name] = tuple((kind, name, state) for kind, name, state in json.loads(text))
                    os.utime(path)
        return self._sets[name]

    def _damage(self, folder: Path | None, files: Mapping[str, str]) -> str:
        for name, digest in files.items():
            try:
                if folder is None or self._digests.of(str(folder / name))[0] != digest:
                    return f"{name} of the result is damaged"
            except OSError:
                return f"{name} of the result is missing"
        return ""

    def _new_key(self, subject: str, key: Mapping[str, Json]) -> str:
        last = _load(self._subject(subject))
        if last is None:
            return "not run before"
        before, after = dict(_flat(last["parts"])), dict(_flat(key))
        for name in sorted({*before, *after}):
            if before.get(name) != after.get(name):
                return f"{name}: {_abbreviated(before.get(name))} → {_abbreviated(after.get(name))}"
        return "its remembered result is gone"

    def _subject(self, subject: str) -> Path:
        name = hashlib.sha256(subject.encode("utf-8", "surrogateescape")).hexdigest()
        return self._kind / "subjects" / f"{name}.json"

    def _current_state(self) -> CurrentState:
        return CurrentState(self.roots, self._digests, self._environ)

    def _inputs(self, touched: Touched, reasons: list[str], own: tuple[str, ...]) -> Iterator[Input]:
        name, today = self.roots.name, self._current_state()
        # Compare with where links to folders led before the work: a link that changes during the work leads
        # to another file than the one that was read.
        today.folders = self._folders
        folders: dict[str, None] = {}
        suspect = set(touched.suspect)
        for path, stamp in touched.opened.items():
            if path.startswith(own) and self._installed_since(path, stamp):
                reasons.append(f"{path} was installed while work was done")
                return
            if path.startswith(own) or path.endswith(ENTRY_POINTS) or source_of(path) in touched.opened:
                continue
            earlier = self._digests.earlier(path)
            try:
                digest, now = self._digests.of(path)
            except OSError:
                reasons.append(f"{path} is gone since it was read")
                return
            moved = now != stamp or path in suspect
            if moved and now[:2] == stamp[:2] and now[3] == stamp[3]:
                # Adding a hard link changes a file's ctime and nothing else.
                moved = digest not in (earlier, touched.digests.get(path)) and not as_installed(path)
            if moved or touched.digests.get(path, digest) != digest:
                reasons.append(f"{path} changed while it was read")
                return
            folders[path] = None
            yield "file", name(path), today.content(path, digest) + today.target(path)
        searched = self._searched(touched)
        above = (*(f"{root}/" for root in self.roots.named.values()), *own)
        # Who asks for the time of a file may compare it with those of others beside it, which it then reads.
        compared = {
            os.path.dirname(path)
            for path, state in touched.looked.items()
            if state.startswith("file ") and path not in touched.opened and self._is_users(path)
        }
        for path, state in touched.looked.items():
            ours = f"{path}/".startswith(own) or path.endswith("/__pycache__")
            # Python writes the bytecode of a module that it reads.
            ours = ours or source_of(path) in touched.opened
            kind, _, details = state.partition(" ") if state.startswith("file ") else (state, "", "")
            if details and not ours and os.path.dirname(path) in compared and self._is_users(path):
                yield "details", name(path), details
            if kind == "directory" and any(folder.startswith(f"{path}/") for folder in above):
                # Roots and the work's own files are found through it wherever they are.
                ours = ours or not today.target(path)
            if not ours and path not in touched.opened and path not in searched:
                # Code that resolves a link opens the target by its own name.
                yield "entry", name(path), kind if kind.startswith("absent") else kind + today.target(path)
        for path, state in touched.listed.items():
            ours = f"{path}/".startswith(own) or path.endswith("/__pycache__")
            if not ours and not path.endswith(PACKAGES):
                yield "listing", name(path), state
        for path, queries in touched.queries.items():
            if f"{path}/".startswith(own):
                continue
            named = f"{name(path)}: {' '.join(queries)}"
            yield "packages", named, today.of("packages", named)
        for path, names in touched.absent_modules.items():
            if f"{path}/".startswith(own):
                continue
            named = f"{name(path)}: {' '.join(names)}"
            yield "modules", named, today.of("modules", named)
            if path.endswith(PACKAGES):
                yield "paths", name(path), today.of("paths", name(path))
        for folder, distribution in distributions_of(folders):
            named = f"{name(folder)}: {distribution}"
            yield "distribution", named, today.of("distribution", named)

    def _all_inputs(
        self, key: Mapping[str, Json], touched: Touched, common: Touched | None, own: Iterable[Path]
    ) -> tuple[list[Input], list[Input], list[str]]:
        """The inputs of work, those of its worker, and what keeps a result of them from being remembered."""
        below = tuple(f"{folder}/" for folder in own)
        reasons = [*touched.unseen]
        if INSTALLED in key:
            below += self._installed
        inputs = {*self._inputs(touched, reasons, below), *self._programs(touched), *self._libraries(touched)}
        inputs.update(self._own_place(key, touched))
        reasons += [
            f"{path} stays there and decided what was done: write it below tempfile.gettempdir()"
            for path in touched.left
            if not path.startswith(below)
        ]
        shared, more = self._shared(common, below) if common else ([], [])
        return sorted(inputs), shared, reasons + more

    def _shared(self, common: Touched, own: tuple[str, ...]) -> tuple[list[Input], list[str]]:
        """What a worker touched before any work, and what keeps it from being remembered.

        Computed once. If one of these files changes later, the worker still has the old content, and `find`
        sees the difference."""
        for known, inputs, reasons in self._commons:
            if known is common:
                return inputs, reasons
        reasons = [*common.unseen]
        inputs = sorted({*self._inputs(common, reasons, own), *self._libraries(common)})
        self._commons.append((common, inputs, reasons))
        return inputs, reasons

    def _searched(self, touched: Touched) -> set[str]:
        """Look-ups that found nothing on the way to a program, of which `_programs` records where it is.

        Only those of a whole search count as such: it asked in every folder of PATH before the program's."""
        folders = [part.rstrip("/") for part in self._environ.get("PATH", os.defpath).split(os.pathsep)]
        lookups: dict[str, set[str]] = {}
        for path in (*touched.opened, *touched.looked):
            folder, _, name = path.rpartition("/")
            if folder in folders:
                lookups.setdefault(name, set()).add(folder)
        paths: set[str] = set()
        for name, where in lookups.items():
            program = shutil.which(name, path=os.pathsep.join(folders))
            home = program.rpartition("/")[0] if program else ""
            before = folders[: folders.index(home)] if home in folders else folders
            if where.issuperset(before):
                paths |= {f"{folder}/{name}" for folder in before}
        return {path for path in paths if touched.looked.get(path) == "absent"}

    def _programs(self, touched: Touched) -> Iterator[Input]:
        """Programs that were looked up on PATH."""
        folders = {part.rstrip("/") for part in self._environ.get("PATH", os.defpath).split(os.pathsep)}
        paths = (*touched.opened, *touched.looked)
        for name in sorted(
            {file for path in paths for folder, file in [os.path.split(path)] if folder in folders}
        ):
            yield "program", name, self._current_state().of("program", name)

    def _is_users(self, path: str) -> bool:
        """Whether its time may mean something: what is installed has other times on other machines."""
        names = ("toolkit", "python", "base", "store", "packages")
        places = self.roots.named.items()
        ours = [str(place) for root, place in places if root in names or root.endswith("_ROOT")]
        ours += ["/usr", "/etc", "/lib", "/bin"]
        return not f"{path}/".startswith(tuple(f"{folder}/" for folder in ours))

    def _own_place(self, key: Mapping[str, Json], touched: Touched) -> Iterator[Input]:
        """Files that name the folder of their own repository mean that one, wherever they are copied to."""
        root = str(self.roots.named.get("suite", "")).rstrip("/")
        if not root or root == str(self.roots.named.get("toolkit", "")):
            return
        spelt = {root, os.path.realpath(root)}
        # Bytecode always names its source, which counts in its place.
        inside = (
            path
            for path in touched.opened
            if self.roots.name(path).startswith("{suite}/") and not source_of(path)
        )
        if any(place in json.dumps(key) for place in spelt) or any(_names(path, spelt) for path in inside):
            yield "place", "suite", os.path.realpath(root)

    def _installed_since(self, path: str, stamp: Stamp) -> bool:
        """Whether a file of a distribution is newer than what the key has of it."""
        if not path.startswith(self._installed) or path.endswith(".pyc"):
            return False
        store = self.roots.named.get("store")
        sites = site_folders(self.roots.named.get("packages"))
        swept_at = min(swept(site, Path(store) if store else None).time for site in sites)
        return max(stamp[1], stamp[2]) > swept_at and not as_installed(path)

    def _libraries(self, touched: Touched) -> Iterator[Input]:
        """Libraries that ld.so found by its cache, by the names that lead to them."""
        for name, paths in libraries_by_name().items():
            if str(paths[0]) in touched.opened:
                yield "library", name, self.roots.name(str(paths[0]))

    def _write(
        self,
        subject: str,
        key: Mapping[str, Json],
        result: Mapping[str, Any],
        inputs: Sequence[Input],
        shared: Sequence[Input],
        product: Path | None,
        asked: Mapping[str, str],
        maker: Maker,
    ) -> CachedResult:
        names = [self._write_set(shared)] if shared else []
        name = key_of({"inputs": [list(input_) for input_ in inputs], "sets": names})[:32]
        top = self._folder(key)
        top.mkdir(parents=True, exist_ok=True)
        files: dict[str, str] = {}
        folder: Path | None = None
        if product is not None:
            paths = sorted(path for path in product.rglob("*") if path.is_file())
            files = {path.relative_to(product).as_posix(): hash_file(path) for path in paths}
            # Named by its content, so it is never replaced while another process reads it.
            folder = top / f"{name}-{key_of(dict(files))[:16]}"
            if self._damage(folder, files):
                shutil.rmtree(folder, ignore_errors=True)
                product.rename(folder)
            else:
                shutil.rmtree(product, ignore_errors=True)
        document = {
            "inputs": [list(input_) for input_ in inputs],
            "sets": names,
            "result": dict(result),
            "folder": folder.name if folder else None,
            "files": files,
            "asked": dict(asked),
            "maker": list(maker),
        }
        _store(top / f"{name}.json", document)
        _store(self._subject(subject), {"parts": dict(key)})
        for path in list(self._entries(key))[ENTRIES:]:
            path.unlink(missing_ok=True)
        self._remove(key, FAILED)
        blobs = {name: self._set_file(name) for name in names}
        if folder:
            blobs |= {digest: folder / file for file, digest in files.items()}
        self._pack(key, document, blobs)
        return CachedResult(dict(result), folder, cached=False)

    def _origin(self, path: Path) -> str:
        if self._restored is None:
            self._restored = ("", frozenset())
            with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
                known = json.loads((self._top / RESTORED).read_text(encoding="utf-8"))
                self._restored = (str(known["origin"]), frozenset(known["names"]))
        origin, names = self._restored
        return origin if path.relative_to(self._top).as_posix() in names else "store"

    def _pack(self, key: Mapping[str, Json], document: Mapping[str, Any], blobs: Mapping[str, Path]) -> None:
        if self.results:
            pack(Path(self.results), self._remote_key(key), document, blobs)

    def _remote_key(self, key: Mapping[str, Json]) -> str:
        return hashlib.sha256(f"{self._kind.name} {key_of(key)}".encode()).hexdigest()

    def _shared_entry(self, key: Mapping[str, Json]) -> CachedResult | None:
        """What another machine remembers, put into our own store; nothing for work that failed since, here or
        there."""
        if self.remote is None or any(
            (mark := _load(path)) is None or not self._change(mark) for path in self._entries(key, FAILED)
        ):
            return None
        for document in self.remote.find(self._remote_key(key)):
            with contextlib.suppress(OSError, KeyError, TypeError, ValueError):
                if not self._is_current(document, self.remote):
                    continue
                if FAILED in document:
                    return None
                if entry := self._take(key, document, self.remote):
                    return entry
        return None

    def _is_current(self, document: Mapping[str, Any], remote: Remote) -> bool:
        for name in document["sets"]:
            if self._set(name) is None:
                text = remote.text(name)
                if text is None:
                    return False
                replace_text(self._set_file(name), text.decode())
                del self._sets[name]
        return not self._change(document)

    def _take(
        self, key: Mapping[str, Json], document: Mapping[str, Any], remote: Remote
    ) -> CachedResult | None:
        files: dict[str, str] = dict(document["files"])
        if any(Path(name).is_absolute() or ".." in Path(name).parts for name in files):
            return None
        top = self._folder(key)
        name = key_of({"inputs": document["inputs"], "sets": document["sets"]})[:32]
        folder = top / f"{name}-{key_of(files)[:16]}" if document["folder"] else None
        if folder and self._damage(folder, files):
            scratch = self.scratch()
            for file, digest in files.items():
                (scratch / file).parent.mkdir(parents=True, exist_ok=True)
                if not remote.download(digest, scratch / file):
                    shutil.rmtree(scratch, ignore_errors=True)
                    return None
            top.mkdir(parents=True, exist_ok=True)
            shutil.rmtree(folder, ignore_errors=True)
            scratch.rename(folder)
        names = ("inputs", "sets", "result", "files", "asked", "maker")
        kept = {name: document[name] for name in names if name in document}
        _store(top / f"{name}.json", {**kept, "folder": folder.name if folder else None})
        result, asked = dict(document["result"]), document["asked"]
        maker = Maker(*document.get("maker", ()))
        return CachedResult(result, folder, origin="remote", asked=asked, maker=maker)

    def _set_file(self, name: str) -> Path:
        return self._top / "sets" / name[:2] / f"{name}.json"

    def _write_set(self, inputs: Sequence[Input]) -> str:
        name, text = _set_of(inputs)
        if self._set(name) is None:
            replace_text(self._set_file(name), text)
            self._sets[name] = tuple(inputs)
        return name


def _set_of(inputs: Sequence[Sequence[str]]) -> tuple[str, str]:
    """The name of a set of inputs, and its text."""
    text = json.dumps([list(input_) for input_ in inputs], separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest(), text


@cache
def processor_kind() -> str:
    """Of this machine: its name, and a digest of what libraries choose their code by."""
    lines: list[str] = []
    with contextlib.suppress(OSError):
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
        lines = text.partition("\n\n")[0].splitlines()
    fields = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    known = {name: fields[name] for name in OF_PROCESSOR if name in fields}
    return f"{fields.get('model name', platform.machine())} {key_of(known)[:8]}"


def _names(path: str, texts: Iterable[str]) -> bool:
    """Whether a file has one of the texts in it."""
    with (
        contextlib.suppress(OSError, ValueError),
        Path(path).open("rb") as stream,
        mmap.mmap(stream.fileno(), 0, prot=mmap.PROT_READ) as content,
    ):
        return any(content.find(os.fsencode(text)) >= 0 for text in texts)
    return False


def _load(path: Path) -> dict[str, Any] | None:
    """A stored document. A damaged one is removed and gives None."""
    try:
        whole = json.loads(path.read_text(encoding="utf-8"))
        if whole["digest"] == key_of(whole["document"]):
            document: dict[str, Any] = whole["document"]
            return document
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        pass
    with contextlib.suppress(OSError):
        path.unlink(missing_ok=True)
    return None


def _store(path: Path, document: dict[str, Any]) -> None:
    replace_text(path, json.dumps({"digest": key_of(document), "document": document}))


def _flat(parts: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in parts.items():
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


def _abbreviated(value: Any) -> str:
    text = "nothing" if value is None else str(value)
    return text if len(text) <= 40 else f"{text[:37]}…"


def prune(top: Path, pause: float = 0.0) -> None:
    """Remove entries that were not used for a long time, folders without an entry, and leftovers of killed
    runs; nothing if that was done in the last `pause` seconds, since it reads every entry."""
    try:
        # Use the file system's clock, which all machines that share the store have in common.
        clock, pruned = top / "clock", top / "pruned"
        clock.touch()
        now = clock.stat().st_mtime
        if pruned.exists() and now - pruned.stat().st_mtime < pause:
            return
        pruned.touch()
    except OSError:
        return
    for kind in (path for path in top.glob("*") if path.is_dir()):
        patterns = ("*/*.json", "??/*/*.json", f"??/*/*.{FAILED}", f"??/*/*.{RUN}")
        for path in (path for pattern in patterns for path in kind.glob(pattern)):
            _remove_unused(path, now - UNUSED_SECONDS)
        for folder in (*kind.glob("work/*"), *kind.glob("??/*/*-*")):
            entry = folder.with_name(f"{folder.name.partition('-')[0]}.json")
            named = _load(entry) if folder.parent.name != "work" else None
            if folder.is_dir() and not (named and named.get("folder") == folder.name):
                _remove_unused(folder, now - ORPHAN_SECONDS)


def _remove_unused(path: Path, before: float) -> None:
    with contextlib.suppress(OSError):
        if path.stat().st_mtime < before:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
