"""Change one input that a remembered program has on record, in a way that its kind allows, and undo it."""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from ci.engine.memo import Input, Roots

Environ = dict[str, str]


def recorded(store: Path, folders: Iterable[Path]) -> list[Input]:
    """All inputs of the entries whose results lie in these folders."""
    top = store / "cache" / "memo"
    found: set[Input] = set()
    for folder in folders:
        path = folder.with_name(f"{folder.name.partition('-')[0]}.json")
        document = json.loads(path.read_text())["document"]
        sets = [top / "sets" / name[:2] / f"{name}.json" for name in document["sets"]]
        lists = [document["inputs"], *(json.loads(each.read_text()) for each in sets)]
        found |= {(kind, name, state) for each in lists for kind, name, state in each}
    return sorted(found)


class Changes:
    """Of inputs below `base`; what lies elsewhere belongs to others."""

    def __init__(self, roots: Roots, base: Path, chance: random.Random) -> None:
        self.roots, self.base, self.chance = roots, str(base.resolve()), chance

    def possible(self, one: Input) -> bool:
        kind, name, _ = one
        if kind in ("variable", "native", "program"):
            return True
        if kind == "entry" and any(Path(self.roots.path(name)).glob("**/*.toml")):
            # Without its suite there is no program to look for.
            return False
        folder = name.rpartition(": ")[0] if kind in ("modules", "packages", "distribution") else name
        parent = os.path.realpath(Path(self.roots.path(folder)).parent)
        return f"{parent}/".startswith(f"{self.base}/")

    @contextmanager
    def change(self, one: Input, environ: Mapping[str, str]) -> Iterator[Environ]:
        """The environment in which to look again."""
        kind, name, state = one
        make: Callable[[str, str], Iterator[Environ]] = getattr(self, f"_{kind}")
        for changed in make(name, state):
            yield {**environ, **changed}

    def _file(self, name: str, state: str) -> Iterator[Environ]:
        path = Path(self.roots.path(name))
        aside = path.with_name(f"{path.name}.aside")
        path.rename(aside)
        content, times = bytearray(aside.read_bytes()), aside.stat()
        way = self.chance.choice(["longer", "same length", "same times", "elsewhere", "removed"])
        try:
            if way == "elsewhere":
                path.symlink_to(shutil.copy(aside, f"{aside}.copy"))
            elif way != "removed":
                where = self.chance.randrange(len(content) + (way == "longer" or not content))
                content[where : where + (way != "longer")] = bytes(
                    [content[where] ^ 1 if where < len(content) else 1]
                )
                path.write_bytes(content)
                if way == "same times":
                    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
            yield {}
        finally:
            path.unlink(missing_ok=True)
            Path(f"{aside}.copy").unlink(missing_ok=True)
            aside.rename(path)

    def _entry(self, name: str, state: str) -> Iterator[Environ]:
        path = Path(self.roots.path(name))
        if state.startswith("absent"):
            yield from self._made(path)
            return
        aside = path.with_name(f"{path.name}.aside")
        path.rename(aside)
        yield {}
        aside.rename(path)

    def _listing(self, name: str, state: str) -> Iterator[Environ]:
        yield from self._made(Path(self.roots.path(name), "another.txt"))

    def _paths(self, name: str, state: str) -> Iterator[Environ]:
        yield from self._made(Path(self.roots.path(name), "another.pth"))

    def _modules(self, name: str, state: str) -> Iterator[Environ]:
        folder, _, names = name.rpartition(": ")
        yield from self._made(Path(self.roots.path(folder), f"{self.chance.choice(names.split())}.py"))

    def _packages(self, name: str, state: str) -> Iterator[Environ]:
        folder, _, queries = name.rpartition(": ")
        kind, _, value = self.chance.choice(queries.split()).partition(":")
        place = Path(self.roots.path(folder), f"{value if kind == 'name' else 'another'}-1.0.dist-info")
        yield from self._made(place / "entry_points.txt", f"[{value or 'a'}]\na = a:a\n")

    def _distribution(self, name: str, state: str) -> Iterator[Environ]:
        folder, _, distribution = name.rpartition(": ")
        (info,) = Path(self.roots.path(folder)).glob(f"{distribution}-*.dist-info")
        other = info.rename(info.with_name(f"{distribution}-0.0.7.dist-info"))
        yield {}
        other.rename(info)

    def _variable(self, name: str, state: str) -> Iterator[Environ]:
        yield {"ANOTHER_VARIABLE" if name == "*" else name: "another value"}

    def _native(self, name: str, state: str) -> Iterator[Environ]:
        yield {self.chance.choice([each for each in name.split() if each.startswith("X")]): "another value"}

    def _program(self, name: str, state: str) -> Iterator[Environ]:
        for _ in self._made(Path(self.base, "programs", name)):
            Path(self.base, "programs", name).chmod(0o755)
            yield {"PATH": f"{self.base}/programs:{os.environ['PATH']}"}

    @staticmethod
    def _made(path: Path, text: str = "") -> Iterator[Environ]:
        first = next(each for each in (path, *path.parents) if each.parent.exists())
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        yield {}
        shutil.rmtree(first) if first.is_dir() else first.unlink()
