"""Ways to a stale verdict, made from a table: what is called × what changes × when × where × whose.

A case does small work for the first time, changes something, and does the work again. If that says "cached",
the result must be what the work gives now."""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ci.engine.closed import closed
from ci.engine.workers.parent import Worker, WorkerDied
from tests.support.watched_work import Place, start

IMPORTS = """\
import ctypes, mmap, os, pkgutil, shutil, signal, subprocess, sys, tempfile
from importlib import metadata
from pathlib import Path
"""
READ = "return (d / 'w').read_text()"
MADE = "if not (d / 'x').exists(): (d / 'x').write_text('1')\nreturn (d / 'x').read_text()"
TEMPORARY = "own = Path(tempfile.mkdtemp())\n"
NEWEST = "return max((d / name for name in {}), key=os.path.getmtime).name"

CALLS = {
    "read": READ,
    "read by C": "libc = ctypes.CDLL(None); libc.fopen.restype = ctypes.c_void_p\n"
    "libc.fgetc.argtypes = [ctypes.c_void_p]\nstream = libc.fopen(os.fsencode(d / 'w'), b'r')\n"
    "return libc.fgetc(stream) if stream else -1",
    "read by a child": "return subprocess.getoutput(f'cat {d}/w')",
    "read by mmap": "with open(d / 'w') as f:\n"
    " return bytes(mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ)).decode()",
    "read by the working folder": "os.chdir(d)\nreturn open('w').read() + str(len(os.listdir('.')))",
    "read by /proc": "os.chdir(d)\nreturn open('/proc/self/cwd/w').read()",
    "read by a descriptor of the folder": "f = os.open(d, os.O_RDONLY)\n"
    "return os.read(os.open('w', os.O_RDONLY, dir_fd=f), 9).decode()",
    "exists": "return [(d / name).exists() for name in ('w', 'x')]",
    "kind": "return [(d / 'w').is_file(), (d / 'w').is_dir(), (d / 'w').is_symlink()]",
    "size": "return os.path.getsize(d / 'w')",
    "time": "return os.path.getmtime(d / 'w')",
    "time of its last change": "return os.path.getctime(d / 'w')",
    "time, and read": "return os.path.getmtime(d / 'w'), (d / 'w').read_text()",
    "all of stat": "info = os.stat(d / 'w')\nreturn [*info[:7], info.st_mtime_ns]",
    "all of an open file": "with open(d / 'w') as f: info = os.fstat(f.fileno())\n"
    "return [*info[:7], info.st_mtime_ns]",
    "attributes of an open file": "with open(d / 'w') as f: return sorted(os.listxattr(f.fileno()))",
    "all of lstat": "info = os.lstat(d / 'w')\nreturn [*info[:7], info.st_mtime_ns]",
    "time of an open file": "with open(d / 'w') as f: return os.path.getmtime(f.fileno())",
    "statx by a child": "return subprocess.getoutput(f'stat -c \"%s %Y %a %u %h %i %d\" {d}/w')",
    "may run": "return os.access(d / 'w', os.X_OK)",
    "link": "return os.readlink(d / 'w')",
    "real path": "return os.path.relpath(os.path.realpath(d / 'w'), d)",
    "attribute": "return os.getxattr(d / 'w', 'user.a').decode()",
    "attributes": "return sorted(os.listxattr(d / 'w'))",
    "newest file": NEWEST.format("('w', 'v')"),
    "newest folder": NEWEST.format("('a', 'b')"),
    "newest folder, and read": "newest = max((d / name for name in 'ab'), key=os.path.getmtime)\n"
    "return (newest / 'f').read_text()",
    "names": "return sorted(os.listdir(d))",
    "scandir": "return sorted((e.name, e.is_dir(), e.is_symlink(), e.stat().st_size) for e in os.scandir(d))",
    "walk": "return sorted((len(folders), len(files)) for _, folders, files in os.walk(d))",
    "glob": "return sorted(path.name for path in d.glob('*'))",
    "glob by a child": "return subprocess.getoutput(f'cd {d}; echo *')",
    "import": "sys.path.insert(0, str(d))\nimport w_module\nreturn w_module.x",
    "import if there": "sys.path.insert(0, str(d))\ntry: import x\nexcept ImportError: return 0\n"
    "return x.__file__ and 1",
    "import without source": "sys.path.insert(0, str(d / 'bare'))\nimport bare_module\nreturn bare_module.x",
    "import of a vendored folder": "sys.path.insert(0, str(d / 'site-packages'))\n"
    "import vendored\nreturn vendored.x",
    "list of modules": "return sorted(module.name for module in pkgutil.iter_modules([str(d)]))",
    "list of distributions": "sys.path.insert(0, str(d))\n"
    "return sorted(str(each.metadata['Name']) for each in metadata.distributions(path=[str(d)]))",
    "folder made if need be": "(d / 'new').mkdir(exist_ok=True)\n" + MADE,
    "folder that must not be there": "try: os.mkdir(d / 'x')\nexcept FileExistsError: return 'there'\n"
    "return 'made'",
    "open x": "try: open(d / 'x', 'x').write('1')\nexcept OSError: return 'there'\nreturn 'made'",
    "made if need be": MADE,
    "made if need be by a child": "return subprocess.getoutput(f'cd {d}; test -f x || echo 1 > x; cat x')",
    "made aside and moved": "if not (d / 'x').exists():\n (d / 'p').write_text('1')\n"
    " os.replace(d / 'p', d / 'x')\n"
    "return (d / 'x').read_text()",
    "the only one of a folder that it fills": "if not os.listdir(d / 'e'): (d / 'e' / 'f').write_text('1')\n"
    "return (d / 'e' / os.listdir(d / 'e')[0]).read_text()",
    "append and tell": "with open(d / 'x', 'a') as f:\n where = f.tell(); f.write('1')\nreturn where",
    "open to read and write": "f = os.open(d / 'x', os.O_RDWR | os.O_CREAT)\ntext = os.read(f, 9)\n"
    "os.write(f, b'1')\nreturn text.decode()",
    "symlink": "try: os.symlink('w', d / 'x')\nexcept FileExistsError: return 'there'\nreturn 'made'",
    "hard link": "try: os.link(d / 'w', d / 'x')\nexcept FileExistsError: return 'there'\nreturn 'made'",
    "unlink": "try: os.unlink(d / 'x')\nexcept FileNotFoundError: return 'none'\nreturn 'removed'",
    "rmdir": "try: os.rmdir(d / 'x')\nexcept OSError as error: return error.errno\nreturn 'removed'",
    "rename": "try: os.rename(d / 'x', d / 'y')\nexcept OSError: return 'none'\nreturn 'moved'",
    "truncate": "try: os.truncate(d / 'x', 1)\nexcept OSError: return 'none'\nreturn (d / 'x').read_text()",
    "chmod": "try: os.chmod(d / 'x', 0o600)\nexcept OSError: return 'none'\nreturn 'changed'",
    "copy": TEMPORARY + "shutil.copy2(d / 'w', own)\nreturn (own / 'w').read_text()",
    "copy with its time": TEMPORARY + "shutil.copy2(d / 'w', own)\nreturn os.path.getmtime(own / 'w')",
    "its own link to a file": TEMPORARY + "os.symlink(d / 'w', own / 'w')\nreturn (own / 'w').read_text()",
    "its own link to a folder": TEMPORARY + "os.symlink(d, own / 'd')\nreturn (own / 'd/w').read_text()",
    "its own hard link": TEMPORARY + "os.link(d / 'w', own / 'w')\nreturn (own / 'w').read_text()",
    "a child's hard links": TEMPORARY + "subprocess.run(['cp', '-al', d, own / 'd'])\n"
    "return (own / 'd/w').read_text()",
    "moved away and back": TEMPORARY + "os.rename(d / 'w', own / 'w')\ntext = (own / 'w').read_text()\n"
    "os.rename(own / 'w', d / 'w')\nreturn text",
    "shared memory of processes": "shared = ctypes.CDLL(None).shmget(0x51, 4096, 0o1600)\n"
    "return shared > 0 and (d / 'w').read_text()",
    "messages of processes": "queue = ctypes.CDLL(None).msgget(0x51, 0o1600)\n"
    "return queue >= 0 and (d / 'w').read_text()",
    "environment of another process": "return open(f'/proc/{os.getppid()}/environ').read()",
    "the names of its folders": "return Path(__file__).parts[-3:]",
    "the working folder's name": "return os.path.basename(os.getcwd()) and (d / 'w').read_text()",
    "beside bytecode": "return (d / '__pycache__' / 'w').read_text()",
    "may there be something beside bytecode": "return (d / '__pycache__' / 'x').exists()",
}  # fmt: skip
"""What the work calls; `d` is the folder with what may change."""

LEAVES = {
    "append and tell",
    "open to read and write",
    "moved away and back",
    "shared memory of processes",
    "messages of processes",
    "environment of another process",
    "a child's hard links",
    "truncate",
}
"""Work that may never be cached: it changes each time what it uses."""
OF_OTHERS = {name for name in LEAVES if "process" in name}
"""Work that never is: other processes decide it."""


def _same_stamp(path: Path, text: str) -> None:
    """Other bytes in the same file, of the same size and time."""
    info = path.stat()
    with path.open("r+", encoding="utf-8") as stream:
        stream.write(text)
    os.utime(path, ns=(info.st_atime_ns, info.st_mtime_ns))


def _other_inode(d: Path) -> None:
    shutil.copy2(d / "w", d / "w.new")
    (d / "w.new").replace(d / "w")


def _into_link(d: Path) -> None:
    (d / "w").rename(d / "w2")
    (d / "w").symlink_to("w2")


def _into_folder(d: Path) -> None:
    (d / "w").unlink()
    (d / "w").mkdir()


def _appear(d: Path) -> None:
    for name in ("x", "x.py", "__pycache__/x", "e/g"):
        if not (d / name).exists():
            (d / name).write_text("9")
    (d / "x.dist-info").mkdir()
    (d / "x.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: x\nVersion: 9\n")


def _modules(d: Path) -> None:
    """Of the same size, with the times put back."""
    for name in ("w_module.py", "site-packages/vendored.py"):
        _same_stamp(d / name, "x = 2")
    write_bytecode(d / "bare" / "bare_module.pyc", 2)


def write_bytecode(path: Path, x: int) -> None:
    import importlib.util
    import marshal

    code = compile(f"x = {x}", "bare_module.py", "exec")
    path.write_bytes(importlib.util.MAGIC_NUMBER + bytes(12) + marshal.dumps(code))


def _mode_and_back(folder: Path) -> None:
    for mode in (0o600, 0o644):
        (folder / "w").chmod(mode)


CHANGES: dict[str, Callable[[Path], object]] = {
    "bytes, with size and time put back": lambda d: _same_stamp(d / "w", "2"),
    "size": lambda d: (d / "w").write_text("123"),
    "time": lambda d: os.utime(d / "w", (2e9, 2e9)),
    "mode": lambda d: (d / "w").chmod(0o755),
    "mode, and back": _mode_and_back,
    "owner": lambda d: os.chown(d / "w", 12345, 12345),
    "attribute": lambda d: os.setxattr(d / "w", "user.a", b"1"),
    "names": _appear,
    "its name": lambda d: (d / "w").unlink(),
    "inode": _other_inode,
    "another name": lambda d: os.link(d / "w", d / "w3"),
    "a link": _into_link,
    "a folder": _into_folder,
    "time of a folder": lambda d: os.utime(d / "a", (2e9, 2e9)),
    "time of the other folder": lambda d: os.utime(d / "b", (1, 1)),
    "bytes of what is there twice": lambda d: _same_stamp(d / "a" / "f", "3"),
    "modules": _modules,
    "bytes of what the work made": lambda d: [
        path.write_text("7") for name in ("x", "y", "new", "e/f") if (path := d / name).is_file()
    ],
    "bytes beside bytecode": lambda d: _same_stamp(d / "__pycache__" / "w", "2"),
}

OWN = "Path(__file__).parent"
PLACES = {
    "inside the repository": f"{OWN} / 'data'",
    "inside, by way of its folder": f"{OWN} / '../repository/data'",
    "inside, by an absolute path": "Path('FIRST/data')",
    "inside, by the home folder": "Path('~/one/repository/data').expanduser()",
    "inside, by the variable": "Path(os.environ['HOME']) / 'one/repository/data'",
    "inside, by a link": "Path.home() / 'link' / 'data'",
    "beside it": f"{OWN}.parent / 'data'",
    "outside": "Path('WORLD/outside')",
    "in the home folder": "Path.home() / 'data'",
    "in the folder for temporary files": "Path('WORLD/tmp/data')",
    "in shared memory": "Path('SHARED')",
}
"""Where the folder is, as the work says it."""

OF_EACH = ("inside the repository", "inside, by way of its folder", "beside it")
"""Of these, each clone has its own."""

WHEN = ("before", "while", "after")
WHOSE = ("the same clone", "a second clone", "a second copy")


@dataclass(frozen=True, order=True)
class Case:
    call: str
    change: str
    when: str
    place: str
    whose: str


def cases(call: str) -> Iterator[Case]:
    yield from (Case(call, *rest) for rest in itertools.product(CHANGES, WHEN, PLACES, WHOSE))


FEW = 12
"""Of so many cases of a call the ordinary run has one."""
OF_ALL = "all of stat"
"""The call of which nearly every change gives another result: the ordinary run has each."""


def sample(call: str, *, few: bool) -> list[Case]:
    """Each change when the work is done, and every third one in another way too: `few` of them, other changes
    for each call, or the rest."""
    plain = [Case(call, change, "after", "inside the repository", "the same clone") for change in CHANGES]
    offset, places = list(CALLS).index(call), list(PLACES)
    drawn = [
        Case(call, change, WHEN[1 + (at // 3) % 2], places[at % len(places)], WHOSE[(at // 6) % 3])
        for at, change in enumerate(CHANGES, offset)
        if at % 3 == 0
    ]
    every = len(plain) if call == OF_ALL else 0
    of_few = [at < every or (at - offset) % FEW == 0 for at in range(len(plain + drawn))]
    return [case for case, in_few in zip(plain + drawn, of_few, strict=True) if in_few is few]


class World:
    """A home folder with clones, and a worker whose home it is."""

    def __init__(self, folder: Path, shared: Path) -> None:
        self.folder, self.shared, self._count = folder, shared, itertools.count()
        self.home = folder / "home"
        self.home.mkdir(parents=True)
        self.environ = closed({**os.environ, "HOME": str(self.home)})
        self.worker = start(folder / "logs", self.environ, IMPORTS)

    def close(self) -> None:
        self.worker.end()
        shutil.rmtree(self.shared, ignore_errors=True)

    def stale(self, case: Case) -> str:
        """How the memo is wrong; empty if it is not."""
        for name in ("one", "two", "data", "link"):
            path = self.home / name
            path.unlink() if path.is_symlink() else shutil.rmtree(path, ignore_errors=True)
        for path in (self.folder / "outside", self.folder / "tmp", self.shared):
            shutil.rmtree(path, ignore_errors=True)
        copied = case.whose == "a second copy"
        store = self.folder / f"store-{next(self._count)}"
        first = self._place("one", store, case, repository=not copied)
        place = first
        if case.whose != "the same clone":
            place = self._place("two", store, case, repository=not copied)
        folder = self._data(place if case.place in OF_EACH else first, case)
        change = CHANGES[case.change]
        if case.when == "before":
            change(folder)
        waits = case.when == "while"
        self._do(first, (lambda: change(folder)) if waits else None)
        if case.when == "after":
            change(folder)
        cached, why = self._do(place, (lambda: None) if waits else None)
        if why:
            return ""
        now, _ = self._do(place, (lambda: None) if waits else None, reuse=False)
        return "" if now == cached else f"{case}: cached {cached}, now {now}"

    def settles(self, call: str) -> tuple[str, bool]:
        """Why it is not cached at first, and whether it is at last where nothing changes."""
        case = Case(call, "size", "after", "inside the repository", "the same clone")
        shutil.rmtree(self.home / "one", ignore_errors=True)
        place = self._place("one", self.folder / f"store-{next(self._count)}", case, repository=True)
        why = self._do(place)[1]
        return why, any(self._do(place)[1] == "" for _ in range(3))

    def _place(self, name: str, store: Path, case: Case, *, repository: bool) -> Place:
        place = Place(self.home / name / "repository", store, self.worker)
        if not repository:
            (place.folder / ".git").rmdir()
        place.environ = self.environ
        folder = PLACES[case.place].replace("WORLD", str(self.folder)).replace("SHARED", str(self.shared))
        folder = folder.replace("FIRST", str(self.home / "one" / "repository"))
        body = "".join(f"  {line}\n" for line in CALLS[case.call].splitlines())
        waits = "".join(f" {line}\n" for line in WAITS.splitlines()) if case.when == "while" else ""
        place.write(
            "net.py",
            f"{IMPORTS}def called():\n try:\n  d = {folder}\n{body} except Exception as error:\n"
            f"  return type(error).__name__\ndef work():\n value = called()\n{waits} return value\n",
        )
        if not (self.home / "link").is_symlink():
            (self.home / "link").symlink_to("one/repository")
        self._fill(self._data(place, case))
        if case.place.startswith("inside"):
            # A second clone has its own too, whichever the work means.
            self._fill(place.folder / "data")
        return place

    def _data(self, place: Place, case: Case) -> Path:
        first = self.home / "one" / "repository"
        where = {
            "beside it": place.folder.parent / "data",
            "outside": self.folder / "outside",
            "in the home folder": self.home / "data",
            "in the folder for temporary files": self.folder / "tmp" / "data",
            "in shared memory": self.shared,
        }
        return where.get(case.place, (place.folder if case.place in OF_EACH else first) / "data")

    def _fill(self, folder: Path) -> None:
        if folder.exists():
            return
        files = {"w": "1", "v": "22", "a/f": "1", "b/f": "2", "w_module.py": "x = 1", "__pycache__/w": "1"}
        files |= {"site-packages/vendored.py": "x = 1"}
        for name, text in files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text)
        for name in ("bare", "e"):
            (folder / name).mkdir()
        write_bytecode(folder / "bare" / "bare_module.pyc", 1)
        old = time.time() - 100
        for number, path in enumerate(sorted(folder.rglob("*"), reverse=True)):
            os.utime(path, (old + number, old + number))

    def _do(
        self, place: Place, meanwhile: Callable[[], object] | None = None, **options: Any
    ) -> tuple[Any, str]:
        done = threading.Event()
        thread = threading.Thread(target=_while_it_waits, args=[self.worker, meanwhile, done])
        if meanwhile:
            thread.start()
        try:
            return place.do(**options)
        except WorkerDied as gone:
            return None, str(gone)
        finally:
            done.set()
            if meanwhile:
                thread.join()


WAITS = """\
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
with open('/proc/self/comm', 'w') as me: me.write('qnn:called')
signal.sigtimedwait([signal.SIGUSR1], 5)"""
"""The work says by its process's name that it has called, and waits for a signal."""


def _while_it_waits(worker: Worker, change: Callable[[], object], done: threading.Event) -> None:
    while not done.wait(0.002):
        for process in _forks(worker):
            name = Path(f"/proc/{process}/comm")
            try:
                if name.read_text().strip() == "qnn:called":
                    change()
                    os.kill(int(process), signal.SIGUSR1)
                    return
            except OSError:
                continue


def _forks(worker: Worker) -> Iterable[str]:
    try:
        tasks = list(Path(f"/proc/{worker._process.pid}/task").iterdir())
        return [part for task in tasks for part in (task / "children").read_text().split()]
    except OSError:
        return []
