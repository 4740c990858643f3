"""The inputs of work, from what it touched, and what keeps a result of them from being remembered."""

from __future__ import annotations

import json
import mmap
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from ci.engine.digests import Digests
from ci.engine.distributions import site_folders, swept
from ci.engine.inputs import (
    INSTALLED,
    NO_USER_CODE,
    SHARED,
    SYSTEM,
    CurrentState,
    Input,
    Roots,
    libraries_by_name,
)
from ci.engine.interpreter import OURS
from ci.engine.watch import Stamp, Touched, source_of, stamp_of_installed
from provisioning.base.findings import Metric as Json
from provisioning.base.settings import ROOT

MODULES = (".py", ".pyc", ".so")
"""Files that each import asks for the time of: they count by their bytes."""

OF_HOME = rb"""~/|'~'|"~"|HOME|expanduser|\.home"""
"""By which code finds the home folder, and below it its own repository, or another clone's."""
OF_PLACE = rb"getcwd|\.cwd\(|basename\(|in __file__|__file__[.[]|__file__(?s:.*)\.(?:name|parts)\b"
"""By which code decides by the names of the folders that it lies in."""

LARGEST_CODE = 1 << 20


@dataclass(frozen=True)
class Observed:
    inputs: list[Input] = field(default_factory=list)
    shared: list[Input] = field(default_factory=list)
    """Those of the worker, before any work."""
    reasons: list[str] = field(default_factory=list)
    """Why a result is not remembered."""

    @property
    def bound(self) -> bool:
        """Whether it holds for one folder of one machine."""
        return any(kind == "place" for kind, _, _ in self.inputs)


class Observation:
    """Turns what work touched into inputs, which name files by these roots."""

    def __init__(self, roots: Roots, digests: Digests) -> None:
        self._roots, self._digests = roots, digests
        self._sites = site_folders(roots.named.get("packages"))
        self._installed = tuple(
            {f"{spelt}/" for site in self._sites for spelt in (site, os.path.realpath(site))}
        )
        self._around = tuple(
            {f"{spelt}/" for root in roots.named.values() for spelt in (str(root), os.path.realpath(root))}
        )
        suite = roots.named.get("suite", ROOT)
        known = f"{suite}/".startswith(f"{ROOT}/") or os.path.lexists(f"{suite}/.git")
        self._shared_roots = SHARED if known else SHARED[1:]
        self._commons: list[tuple[Touched, list[Input], list[str]]] = []

    def observed(
        self, key: Mapping[str, Json], touched: Touched, common: Touched | None, own: Iterable[Path]
    ) -> Observed:
        """`own` are folders that the work writes to."""
        below = (*(f"{folder}/" for folder in own), *(self._installed if INSTALLED in key else ()))
        if NO_USER_CODE in key:
            touched = replace(touched, details={})
        reasons = list(touched.unseen)
        inputs = {*self._inputs(touched, reasons, below)}
        reasons += [
            f"{path} stays there and decided what was done: write it below tempfile.gettempdir()"
            for path in touched.left
            if not f"{path}/".startswith(below)
        ]
        shared, more = self._shared(common, below) if common else ([], [])
        if any(map(self._is_bound, (*inputs, *shared))) or self._names_its_place(key, touched):
            inputs.add(("place", "suite", CurrentState(self._roots, self._digests).of("place", "suite")))
        return Observed(sorted(inputs), shared, reasons + more)

    def _shared(self, common: Touched, own: tuple[str, ...]) -> tuple[list[Input], list[str]]:
        """What a worker touched before any work, and what keeps it from being remembered.

        Computed once. If one of these files changes later, the worker still has the old content, and `find`
        sees the difference."""
        for known, inputs, reasons in self._commons:
            if known is common:
                return inputs, reasons
        reasons = list(common.unseen)
        inputs = sorted({*self._inputs(common, reasons, own)})
        self._commons.append((common, inputs, reasons))
        return inputs, reasons

    def _inputs(self, touched: Touched, reasons: list[str], own: tuple[str, ...]) -> Iterator[Input]:
        name, today = self._roots.name, CurrentState(self._roots, self._digests)

        def is_own(path: str) -> bool:
            return f"{path}/".startswith(own)

        for path, stamp in touched.opened.items():
            if is_own(path):
                if self._installed_since(path):
                    reasons.append(f"{path} was installed while work was done")
                continue
            if source_of(path) in touched.opened:
                continue
            try:
                digest, changed = self._read(path, stamp, touched)
            except OSError:
                reasons.append(f"{path} is gone since it was read")
                return
            if changed:
                reasons.append(f"{path} changed while it was read")
                return
            yield "file", name(path), digest + today.target(path)

        def is_around(path: str) -> bool:
            """Roots and the work's own files are found through it wherever they are."""
            return self._is_around(path) or any(folder.startswith(f"{path}/") for folder in own)

        for path, state in touched.looked.items():
            through = is_around(path) and state == "directory" and not today.target(path)
            if not (is_own(path) or through or path in touched.opened):
                # Code that resolves a link opens the target by its own name.
                target = "" if state.startswith("absent") else today.target(path)
                yield "entry", name(path), state + target
        searched = {*touched.searched}
        for path, state in touched.details.items():
            # The times of what is around the work's own folders change with each work.
            if is_own(path) or path in searched or is_around(path) or self._is_fixed(path):
                continue
            if not path.endswith(MODULES):
                yield "details", name(path), state
            elif path not in touched.opened:
                yield "file", name(path), today.of("file", name(path))
        for kind, folders in (("listing", touched.listed), ("modules", touched.queried)):
            yield from ((kind, name(path), state) for path, state in folders.items() if not is_own(path))
        # By which name in ld.so's cache a library was found.
        for library, (first, *_) in libraries_by_name().items():
            if str(first) in touched.opened:
                yield "library", library, name(str(first))

    def _read(self, path: str, stamp: Stamp, touched: Touched) -> tuple[str, bool]:
        """The digest of a file, and whether it may have been another when it was read."""
        earlier, then = self._digests.earlier(path), touched.digests.get(path)
        digest, now = self._digests.of(path)
        moved = now != stamp or path in touched.suspect
        if moved and now[:2] == stamp[:2] and now[3] == stamp[3]:
            # Adding a hard link changes a file's ctime and nothing else.
            moved = digest not in (earlier, then)
        return digest, moved or (then or digest) != digest

    def _is_around(self, path: str) -> bool:
        return any(folder.startswith(f"{path}/".replace("//", "/")) for folder in self._around)

    def _is_fixed(self, path: str) -> bool:
        """Whether it lies where nobody changes anything but by installing it."""
        root = self._roots.name(path)[1:].partition("}")[0]
        return root in ("python", "base", "packages", "store") or root.endswith("_ROOT")

    def _is_bound(self, input_: Input) -> bool:
        """Whether the same name may mean another file for another clone or machine."""
        kind, name, state = input_
        if kind in ("details", "library", "place"):
            return kind != "library"
        if name.startswith("/dev/shm/") and state == "absent":
            return False
        return not all(map(self._is_shared, (name, *state.split(" -> ")[1:])))

    def _is_shared(self, name: str) -> bool:
        root = name[1:].partition("}")[0] if name.startswith("{") else ""
        return root in self._shared_roots or root.endswith("_ROOT") or f"{name}/".startswith(SYSTEM)

    def _names_its_place(self, key: Mapping[str, Json], touched: Touched) -> bool:
        """Whether a file, or the key, names the suite's own repository in another way than by where it is
        itself: that means this one, wherever it is copied to."""
        root = str(self._roots.named.get("suite", "")).rstrip("/")
        spelt = {root, os.path.realpath(root)} - {""}
        if not spelt:
            return False
        home = os.path.realpath(self._roots.named.get("HOME", "/nowhere"))
        at_home = any(f"{place}/".startswith(f"{home}/") for place in spelt)
        code = re.compile(OF_PLACE + (b"|" + OF_HOME) * at_home)
        # Bytecode always names its source, which counts in its place.
        inside = [
            path
            for path in touched.opened
            if self._roots.name(path).startswith(("{suite}/", "{toolkit}/"))
            and not source_of(path)
            and not path.startswith(OURS)
        ]
        return any(place in json.dumps(key) for place in spelt) or any(
            _has(path, [os.fsencode(place) for place in spelt], code) for path in inside
        )

    def _installed_since(self, path: str) -> bool:
        """Whether a file of a distribution is newer than what the key has of it."""
        if not path.startswith(self._installed) or source_of(path):
            return False
        store = self._roots.named.get("store")
        at = min(swept(site, Path(store) if store else None).time for site in self._sites)
        try:
            _, modified, changed, _ = stamp_of_installed(os.stat(path))
        except OSError:
            return True
        return max(modified, changed) > at


def _has(path: str, texts: Iterable[bytes], in_code: re.Pattern[bytes]) -> bool:
    """Whether a file has one of the texts in it, or is code with such a word."""
    try:
        with Path(path).open("rb") as stream, mmap.mmap(stream.fileno(), 0, prot=mmap.PROT_READ) as content:
            is_code = len(content) <= LARGEST_CODE and b"\0" not in content[:4096]
            return any(content.find(text) >= 0 for text in texts) or bool(is_code and in_code.search(content))
    except (OSError, ValueError):
        return False
