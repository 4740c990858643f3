"""The packages installed in a directory: distributions, their files, and answers to metadata queries."""

from __future__ import annotations

import configparser
import contextlib
import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

from ci.engine.interpreter import ALL


@dataclass(frozen=True)
class DistributionMetadata:
    """The metadata of a distribution, from its folder `name-version.dist-info`."""

    folder: Path

    def answer(self, query: str) -> str:
        """The part of the metadata that decides the result of a query (`name:part`, `group:plugins` or `*`);
        empty if none does."""
        kind, _, value = query.partition(":")
        if kind == "name":
            name, _, version = self.folder.stem.partition("-")
            return version or "installed" if _normal(name) == _normal(value) else ""
        text = self._entry_points if kind == ALL else self._group(value)
        digest = hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()
        return f"{self.folder.name} {digest}" if text or kind == ALL else ""

    @cached_property
    def _entry_points(self) -> str:
        with contextlib.suppress(OSError):
            return (self.folder / "entry_points.txt").read_text(encoding="utf-8", errors="surrogateescape")
        return ""

    def _group(self, name: str) -> str:
        if name not in self._entry_points:
            return ""
        parser = configparser.ConfigParser(delimiters="=", interpolation=None, strict=False)
        try:
            parser.read_string(self._entry_points)
            return repr(sorted(parser.items(name))) if parser.has_section(name) else ""
        except configparser.Error:
            return self._entry_points


def packages_in(directory: str) -> list[DistributionMetadata]:
    return [
        DistributionMetadata(path) for path in Path(directory).glob("*.*-info") if path.suffix in _METADATA
    ]


_METADATA = (".dist-info", ".egg-info")


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def distributions_of(paths: Iterable[str]) -> set[tuple[str, str]]:
    """The installed distributions that files belong to, each with the directory where it is installed."""
    distributions = set()
    for path in paths:
        for mark in ("/site-packages/", "/dist-packages/"):
            folder, _, rest = path.rpartition(mark)
            if folder:
                home = folder + mark.rstrip("/")
                distributions |= {(home, owner) for owner in _owners(home).get(rest.partition("/")[0], ())}
    return distributions


@cache
def _owners(folder: str) -> dict[str, set[str]]:
    """By top-level name in a directory: the distributions that have files there."""
    owners: dict[str, set[str]] = {}
    for record in Path(folder).glob("*.dist-info/RECORD"):
        distribution = record.parent.name.removesuffix(".dist-info").rpartition("-")[0]
        with contextlib.suppress(OSError):
            for line in record.read_text(encoding="utf-8", errors="replace").splitlines():
                top = line.partition(",")[0].partition("/")[0].strip('"')
                owners.setdefault(top, set()).add(distribution)
    return owners
