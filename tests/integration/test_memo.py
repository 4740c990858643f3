"""What is remembered of work, on small real work: what changes, is done again; what does not, is not."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ci.engine.closed import closed
from ci.engine.digests import Digests
from ci.engine.entries import prune
from ci.engine.inputs import key_of
from ci.engine.memo import ENTRIES, CachedResult, Miss, WorkDone
from ci.engine.watch import YOUNG_SECONDS, Touched, stamp_of
from ci.engine.workers.parent import Worker, WorkerDied
from tests.support.watched_work import Place, later, start

NATIVE = """
import ctypes
libc = ctypes.CDLL(None)
libc.fopen.restype = ctypes.c_void_p
libc.fgetc.argtypes = [ctypes.c_void_p]
def work():
    stream = libc.fopen(b"HERE/w.bin", b"r")
    return libc.fgetc(stream) if stream else -1
"""


@pytest.fixture(scope="module")
def worker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worker]:
    """One for all tests: it stays as it is, since each order is done in a fork."""
    worker = start(tmp_path_factory.mktemp("logs"))
    yield worker
    worker.end()


@pytest.fixture
def place(tmp_path: Path, worker: Worker) -> Iterator[Place]:
    place = Place(tmp_path / "clone", tmp_path / "store", worker)
    yield place
    if place.worker is not worker:
        place.worker.end()


def repoint(link: Path, target: str) -> None:
    link.unlink()
    link.symlink_to(target)


def upgrade(packages: Path) -> None:
    (packages / "part-1.0.dist-info").rename(packages / "part-2.0.dist-info")
    later(packages / "part" / "__init__.py", "x = 2")


Change = tuple[dict[str, str], Callable[[Place], object], str]


def of_file(code: str) -> Change:
    return {"net.py": code, "w.bin": "1"}, lambda place: later(place.folder / "w.bin", "2"), "w.bin changed"


CHANGES: dict[str, Change] = {
    "a module that it imports": (
        {"net.py": "import part\ndef work(): return part.x", "part.py": "x = 1"},
        lambda place: later(place.folder / "part.py", "x = 2"),
        "part.py changed",
    ),
    "a file that native code reads": of_file(NATIVE),
    "a file that a child process reads": of_file(
        "from subprocess import getoutput\ndef work(): return getoutput('cat HERE/w.bin')"
    ),
    "a file that it reads by way of its working directory": of_file(
        "import os\ndef work():\n os.chdir('HERE')\n return open('/proc/self/cwd/w.bin').read()"
    ),
    "a file that it could not open to write": of_file(
        "import resource\nfrom resource import RLIMIT_NOFILE as files\ndef work():\n"
        " soft, hard = resource.getrlimit(files)\n resource.setrlimit(files, (0, hard))\n"
        " try: open('HERE/w.bin', 'w')\n except OSError: pass\n"
        " resource.setrlimit(files, (soft, hard))\n return open('HERE/w.bin').read()"
    ),
    "a file that must not be there": of_file(
        "def work():\n try: open('HERE/w.bin', 'x')\n except OSError: return open('HERE/w.bin').read()"
    ),
    "what a folder holds": (
        {"net.py": "import os\ndef work(): return len(os.listdir('HERE/data'))", "data/a": ""},
        lambda place: place.write("data/b", ""),
        "other files are in data",
    ),
    "what a folder of the search path holds, where packages are looked for too": (
        {
            "net.py": "import os\nfrom importlib import metadata\ndef work():\n"
            " list(metadata.entry_points(group='net'))\n return len(os.listdir('HERE'))"
        },
        lambda place: place.write("b", ""),
        "other files are in ",
    ),
    "what is installed in a folder that is no site-packages": (
        {
            "net.py": "from importlib import metadata\ndef work():\n"
            " return [point.name for point in metadata.entry_points(group='net')]",
            "lib/x": "",
        },
        lambda place: [
            place.write("lib/part-1.0.dist-info/METADATA", "Name: part\nVersion: 1.0\n"),
            place.write("lib/part-1.0.dist-info/entry_points.txt", "[net]\nx = part:x\n"),
        ],
        "other modules or packages are in ",
    ),
    "whether a file exists": (
        {"net.py": "import os\ndef work(): return os.path.exists('HERE/flag')"},
        lambda place: place.write("flag", ""),
        "flag is there now",
    ),
    "a module that shadows another": (
        {"net.py": "import part\ndef work(): return part.x", "lib/part.py": "x = 1"},
        lambda place: place.write("part.py", "x = 2"),
        "part.py is there now",
    ),
    "where a link leads": (
        {"net.py": "def work(): return open('HERE/w.pt').read()", "v1.pt": "1", "v2.pt": "2"},
        lambda place: repoint(place.folder / "w.pt", "v2.pt"),
        "w.pt changed",
    ),
    "where a resolved link leads": (
        {
            "net.py": "from pathlib import Path\ndef work(): return Path('HERE/w.pt').resolve().read_text()",
            "v1.pt": "1",
            "v2.pt": "2",
        },
        lambda place: repoint(place.folder / "w.pt", "v2.pt"),
        "w.pt changed",
    ),
    "where the link of a working directory leads": (
        {
            "net.py": "import os\ndef work():\n os.chdir('HERE/now')\n return open('a').read()",
            "v1/a": "1",
            "v2/a": "2",
        },
        lambda place: repoint(place.folder / "now", "v2"),
        "now changed",
    ),
    "a file that it makes if need be": (
        {
            "net.py": "import os\ndef work():\n file = os.open('HERE/a', os.O_RDWR | os.O_CREAT)\n"
            " if not (text := os.read(file, 9)): os.unlink('HERE/a')\n return text.decode()",
        },
        lambda place: later(place.folder / "a", "2"),
        "a is there now",
    ),
    "a folder of the search path that was not there": (
        {"net.py": "import part\ndef work(): return part.x", "search/part.py": "x = 1"},
        lambda place: place.write("none/part.py", "x = 2"),
        "other modules or packages are in ",
    ),
    "an optional package that is installed editable": (
        {
            "net.py": "try:\n import part\n x = part.x\nexcept ImportError:\n x = 1\ndef work(): return x",
            "project/part.py": "x = 2",
            "venv/site-packages/a.pth": "",
        },
        lambda place: place.write("venv/site-packages/__editable__.part.pth", "HERE/project"),
        "other modules or packages are in ",
    ),
    "a package that is installed in another version": (
        {
            "net.py": "import part\ndef work(): return part.x",
            "lib/site-packages/part/__init__.py": "x = 1",
            "lib/site-packages/part-1.0.dist-info/RECORD": "part/__init__.py,,\n",
        },
        lambda place: upgrade(place.folder / "lib" / "site-packages"),
        "part/__init__.py changed",
    ),
    "a package whose version it asks for": (
        {
            "net.py": "from importlib import metadata\n"
            "def work():\n try: return metadata.version('my.part')\n"
            " except metadata.PackageNotFoundError: return '0'",
            "lib/site-packages/x": "",
        },
        lambda place: place.write(
            "lib/site-packages/my_part-1.0.dist-info/METADATA", "Name: my-part\nVersion: 1.0\n"
        ),
        "other modules or packages are in ",
    ),
    "what is installed at all": (
        {
            "net.py": "from importlib.metadata import distributions\n"
            "def work(): return len(list(distributions()))",
            "lib/site-packages/x": "",
        },
        lambda place: place.write(
            "lib/site-packages/part-1.0.dist-info/METADATA", "Name: part\nVersion: 1.0\n"
        ),
        "other modules or packages are in ",
    ),
    "where the home folder is": (
        {
            "net.py": "from library import work",
            "venv/site-packages/library.py": "import os\n"
            "def work(): return open(os.path.expanduser('~/w.bin')).read()",
            "homes/a/w.bin": "1",
            "homes/b/w.bin": "2",
        },
        lambda place: place.environ.update(HOME=f"{place.folder}/homes/b"),
        "environment.HOME",
    ),
    "a module that shadows another of its package": (
        {"net.py": "import part.one\ndef work(): return part.one.x", "part/__init__.py": ""}
        | {"part/one.py": "x = 1"},
        lambda place: place.write("part/one/__init__.py", "x = 2"),
        "part/one is there now",
    ),
    "a package that its worker imports from a folder": (
        {"net.py": "import base.one\ndef work(): return base.one.x", "over/base/__init__.py": ""}
        | {"over/base/one.py": "x = 1"},
        lambda place: place.write("over/base/one/__init__.py", "x = 2"),
        "other modules or packages are in ",
    ),
    "which program it finds": (
        {
            "net.py": "from subprocess import check_output\n"
            "def work(): return check_output(['tool']).decode()",
            "bin/tool": "#!/bin/sh\necho 1",
            "more/tool": "#!/bin/sh\necho 2",
        },
        lambda place: place.environ.update(PATH=f"{place.folder}/more:{place.environ['PATH']}"),
        "PATH",
    ),
    "a file in a folder of PATH that no search looked for": (
        {"net.py": "import os\ndef work(): return os.path.exists('HERE/bin/settings')", "bin/tool": ""},
        lambda place: place.write("bin/settings", ""),
        "bin/settings is there now",
    ),
}

NO_INPUTS: dict[str, tuple[dict[str, str], Callable[[Place], object]]] = {
    # urllib3 binds to any free port when it is imported.
    "a port that nobody knows": (
        {"net.py": "import socket\ndef work(): socket.socket().bind(('127.0.0.1', 0))"},
        lambda place: None,
    ),
    "its own files and temporary files": (
        {
            "net.py": "import os, tempfile\ndef work():\n"
            " d = tempfile.mkdtemp(); open(d + '/x', 'w').write('1'); os.listdir(d)\n"
            " os.makedirs('HERE/own', exist_ok=True); open('HERE/own/y', 'w').write(d)\n"
            " return open(d + '/x').read()",
        },
        lambda place: None,
    ),
    "a file beside a module that asks which packages there are": (
        {
            "net.py": "from importlib import metadata\ndef work():\n"
            " try: metadata.version('my.part')\n except metadata.PackageNotFoundError: pass\n"
            " return [point.name for point in metadata.entry_points(group='net')]",
        },
        lambda place: place.write("report.json", ""),
    ),
}


OF_WORKERS = ("search", "venv", "over", "bin", "homes")
"""Folders that a worker has from its start."""


def prepare(place: Place, files: dict[str, str]) -> None:
    for name, text in files.items():
        place.write(name, text)
    for tool in place.folder.glob("*/tool"):
        tool.chmod(0o755)
    (place.folder / "w.pt").symlink_to("v1.pt")
    (place.folder / "now").symlink_to("v1")
    place.path += [str(place.folder / "lib"), str(place.folder / "lib" / "site-packages")]
    if any((place.folder / OF_worker).exists() for OF_worker in OF_WORKERS):
        place.environ |= {
            "HOME": f"{place.folder}/homes/a",
            "PATH": f"{place.folder}/bin:{os.environ['PATH']}",
        }


def start_if_need_be(place: Place) -> None:
    """A worker of its own, where the environment is another."""
    if place.worker is not place.shared_worker:
        place.worker.end()
    if place.environ == closed(os.environ):
        return
    search = ":".join(f"{place.folder}/{name}" for name in ("none", "search", "over"))
    added = f"import site; site.addsitedir('{place.folder}/venv/site-packages')\n"
    if (place.folder / "over").exists():
        added += "import base.one\n"
    place.worker = start(place.store / "logs", {**place.environ, "PYTHONPATH": search}, added)


@pytest.mark.parametrize("what", CHANGES)
def test_work_is_done_again_when_it_changes(what: str, place: Place) -> None:
    files, change, why = CHANGES[what]
    prepare(place, files)
    start_if_need_be(place)
    first, _ = place.do()
    assert place.do() == (first, "")
    change(place)
    start_if_need_be(place)
    second, reason = place.do()
    assert why in reason
    assert first != second
    assert place.do() == (second, "")


@pytest.mark.parametrize("what", NO_INPUTS)
def test_work_is_not_done_again_for_what_is_no_input(what: str, place: Place) -> None:
    files, change = NO_INPUTS[what]
    prepare(place, files)
    start_if_need_be(place)
    for _ in range(2):
        # What it leaves behind once is there from then on.
        place.do()
    change(place)
    start_if_need_be(place)
    assert place.do()[1] == ""


def test_two_clones_share_what_is_equal_and_nothing_that_differs(place: Place, tmp_path: Path) -> None:
    other = Place(tmp_path / "other", place.store, place.worker)
    for copy in (place, other):
        copy.write("net.py", "from src import part\ndef work(): return part.x")
        copy.write("src/part.py", "x = 1")
    place.do()
    assert other.do() == (1, "")
    later(other.folder / "src" / "part.py", "x = 2")
    assert other.do() == (2, "src/part.py changed")
    # Both are remembered beside each other now.
    assert (place.do(), other.do()) == ((1, ""), (2, ""))


def test_copies_without_a_repository_share_nothing(place: Place, tmp_path: Path) -> None:
    other = Place(tmp_path / "other", place.store, place.worker)
    for copy in (place, other):
        (copy.folder / ".git").rmdir()
        copy.write("net.py", "def work(): return 1")
    place.do()
    assert other.do()[1]
    assert (place.do(), other.do()) == ((1, ""), (1, ""))


def test_each_program_has_the_files_that_its_module_reads_at_its_top(place: Place) -> None:
    place.write("shared.py", "text = open('HERE/w.bin').read()")
    place.write("w.bin", "1")
    for name in ("one", "two"):
        place.write(f"{name}.py", "import shared\ndef work(): return shared.text")
        place.do(name)
    later(place.folder / "w.bin", "2")
    assert [place.do(name)[0] for name in ("one", "two")] == ["2", "2"]


@pytest.mark.parametrize("back", [100.0, 10_000_000.0])
def test_an_edit_of_the_same_size_with_the_time_put_back_is_seen(back: float, place: Place) -> None:
    path = place.write("net.py", "def work(): return 1")
    times = path.stat()
    place.do()
    later(path, "def work(): return 2")
    os.utime(path, (times.st_atime, times.st_mtime if back == 100.0 else times.st_mtime - back))
    assert place.do()[0] == 2


def test_a_file_that_changed_just_now_is_read_again_though_its_stamp_is_equal(tmp_path: Path) -> None:
    """Two writes can fall into one tick of the file system's clock."""
    now = time.time_ns()
    file, digests = tmp_path / "w.bin", Digests(tmp_path / "store", lambda info: (1, now, now, 1))
    file.write_text("1")
    first, _ = digests.of(str(file))
    file.write_text("2")
    assert digests.of(str(file))[0] != first


def test_a_file_that_has_changed_is_read_again_by_another_memory_of_the_process(tmp_path: Path) -> None:
    def digest(text: str, store: str) -> str:
        file = tmp_path / "w.bin"
        file.write_text(text)
        return Digests(tmp_path / store, lambda info: (1, int(text), 1, 1)).of(str(file))[0]

    assert digest("1", "first") != digest("2", "second") == digest("2", "third")


def test_what_another_memory_of_the_process_has_kept_since_is_known(tmp_path: Path) -> None:
    file = tmp_path / "w.bin"

    def opened() -> Digests:
        return Digests(tmp_path, lambda info: (info.st_size, 1, 1, 1))

    def kept(text: str) -> str:
        file.write_text(text)
        digests = opened()
        digest, _ = digests.of(str(file))
        digests.save()
        return digest

    assert opened().earlier(str(file)) == ""
    first = kept("1")
    assert opened().earlier(str(file)) == first
    second = kept("11")
    assert opened().earlier(str(file)) == second != first


def test_a_row_of_a_memory_that_is_cut_short_is_none(tmp_path: Path) -> None:
    (file := tmp_path / "w.bin").write_text("1")
    digests = Digests(tmp_path, lambda _: (1, 1, 1, 1))
    digest, _ = digests.of(str(file))
    digests.save()
    (kept,) = tmp_path.rglob("digests.json")
    kept.write_text(json.dumps({str(file): [1, 1, 1, 1], "other": [1]}))
    damaged = Digests(tmp_path, lambda _: (1, 1, 1, 1))
    assert damaged.earlier("other") == "" and damaged.of(str(file))[0] == digest


def test_what_changes_while_it_is_read_is_not_remembered(place: Place) -> None:
    place.write(
        "net.py",
        "def work():\n x = open('HERE/w.bin').read()\n open('HERE/w.bin', 'a').write('1')\n return x",
    )
    place.write("w.bin", "1")
    assert "w.bin changed while it was read" in place.do()[1]


def test_a_store_that_takes_nothing_costs_the_memory_alone(place: Place) -> None:
    place.write("net.py", "def work(): return 1")
    (place.store / "cache" / "memo").mkdir(parents=True)
    (place.store / "cache" / "memo" / "test").touch()
    assert place.do() == (1, "not run before; not remembered: Not a directory")


UDP = "import socket\nudp = socket.socket(type=socket.SOCK_DGRAM)\ndef work(): return udp."
UNSEEN = {
    "import socket\ndef work(): return socket.socket().connect_ex(('127.0.0.1', 9))": "used the network",
    f"{UDP}sendto(b'x', ('127.0.0.1', 9))": "used the network",
    f"{UDP}sendmsg([b'x'], [], 0, ('127.0.0.1', 9))": "used the network",
    "import socket\ndef work(): return socket.socket(socket.AF_UNIX).connect_ex('/tmp/none')": "the socket",
    "import os\ndef work():\n try: os.chroot('/')\n except OSError: pass": "what paths mean",
    "import os\ndef work(): os.open('HERE/pipe', os.O_RDONLY | os.O_NONBLOCK)": "a pipe or a device",
}


@pytest.mark.parametrize("code", UNSEEN)
def test_what_cannot_be_seen_is_not_remembered(code: str, place: Place) -> None:
    os.mkfifo(place.folder / "pipe")
    place.write("net.py", code)
    assert UNSEEN[code] in place.do()[1]
    assert "not run before" in place.do()[1]


def test_no_cache_does_the_work_and_remembers_it(place: Place) -> None:
    place.write("net.py", "def work(): return 1")
    assert place.do(reuse=False)[1] == "--no-cache"
    assert place.do(reuse=False)[1] == "--no-cache"
    assert place.do() == (1, "")


def test_a_failure_removes_what_was_remembered_of_the_same_work(place: Place) -> None:
    place.write("net.py", "def work(): return 1")
    place.do()
    memo = place.memo()
    memo.forget(place.key(memo))
    assert place.do()[1] == "its remembered result is gone"


def test_folders_on_the_way_to_the_files_that_work_writes_are_no_inputs(place: Place) -> None:
    """Another clone has none yet."""
    reports, memo = place.folder / "reports", place.memo()
    logs = reports / "upstream" / "passes"
    logs.mkdir(parents=True)
    looked = dict.fromkeys(map(str, (reports, logs.parent, logs)), "directory")
    assert not memo.remember("a", {"a": 1}, {}, WorkDone(Touched(looked=looked), own=(logs,))).not_remembered
    memo.close()
    shutil.rmtree(reports)
    assert isinstance(place.memo().find("a", {"a": 1}), CachedResult)


def test_what_a_worker_read_before_any_work_counts_as_it_was_then(place: Place) -> None:
    shared = place.write("shared.py", "one = 1")
    common = Touched(opened={str(shared): stamp_of(shared.stat())})
    memo = place.memo()
    memo.remember("a", {"work": "a"}, {"value": 1}, WorkDone(common=common))
    later(shared, "one = 2")
    memo.remember("b", {"work": "b"}, {"value": 1}, WorkDone(common=common))
    for name in ("a", "b"):
        assert place.memo().find(name, {"work": name}) == Miss("shared.py changed")


def test_a_result_keeps_its_files_and_is_gone_with_any_of_them(place: Place) -> None:
    place.write("net.py", "def work(): return 1")
    place.do(files=True)
    memo = place.memo()
    entry = memo.find("net", place.key(memo))
    assert isinstance(entry, CachedResult)
    assert entry.folder
    assert (entry.folder / "out.txt").read_text(encoding="utf-8") == "1"
    (entry.folder / "out.txt").write_text("2", encoding="utf-8")
    assert place.do(files=True)[1] == "out.txt of the result is damaged"
    shutil.rmtree(entry.folder)
    assert place.do(files=True)[1] == "out.txt of the result is missing"
    assert place.do(files=True) == (1, "")


@pytest.mark.parametrize("damage", ["", "{", '{"digest": "0", "document": {}}', "cut"])
def test_damaged_entries_are_misses(damage: str, place: Place) -> None:
    place.write("net.py", "def work(): return 1")
    place.do()
    for path in place.store.rglob("*.json"):
        text = path.read_text(encoding="utf-8")
        path.write_text(text[: len(text) // 2] if damage == "cut" else damage, encoding="utf-8")
    assert place.do()[1]
    assert place.do() == (1, "")


def test_entries_of_one_key_are_bounded_and_the_last_used_stay(place: Place) -> None:
    path = place.write("net.py", "def work(): return 0")
    for number in range(ENTRIES + 2):
        later(path, f"def work(): return {number}")
        place.do()
    assert place.do() == (ENTRIES + 1, "")
    later(path, "def work(): return 0")
    assert place.do()[1]


def test_old_entries_and_folders_without_one_go(place: Place) -> None:
    place.write("net.py", "def work(): return 1")
    place.do(files=True)
    top = place.store / "cache" / "memo"
    (top / "test" / "work" / "killed").mkdir(parents=True)
    prune(top)
    assert place.do(files=True) == (1, "")
    for path in {*top.rglob("*")} - {top / "pruned"}:
        os.utime(path, (0, 0))

    def left() -> set[str]:
        return {path.name for path in top.rglob("*") if path.is_file()} - {"digests.json", "clock", "pruned"}

    prune(top, 3600)
    assert left()
    prune(top)
    assert not left()


def test_a_crash_or_a_timeout_costs_the_order_and_leaves_the_worker(place: Place) -> None:
    place.write("crash.py", "import ctypes\ndef work(): ctypes.string_at(0)")
    place.write("hang.py", "import subprocess\ndef work(): subprocess.run(['sleep', '600'])")
    place.write("net.py", "def work(): return 1")
    with pytest.raises(WorkerDied, match="SIGSEGV"):
        place.do("crash")
    with pytest.raises(WorkerDied, match="1 s"):
        place.worker.ask({"module": "hang", "path": place.path, "into": ""}, timeout=1)
    assert place.do() == (1, "not run before")


def test_where_nothing_can_be_watched_nothing_is_remembered(place: Place) -> None:
    # A second listener is refused: so a process that is watched already cannot watch its own children.
    blocked = (
        "import os, threading, fcntl; from ci.engine.watch import install, Supervisor; import socket\n"
        "a, b = socket.socketpair()\n"
        "if os.fork():\n"
        " s = Supervisor(socket.recv_fds(a, 1, 1)[1][0])\n"
        " import select\n"
        " p = select.poll(); p.register(s.listener, select.POLLIN)\n"
        " while p.poll()[0][1] & select.POLLIN: s.answer()\n"
        " os._exit(0)\n"
        "fd = install(b.fileno()); socket.send_fds(b, [b'+'], [fd]); os.close(fd)\n"
    )
    place.write("net.py", "def work(): return 1")
    place.worker = start(place.store / "logs", before=blocked)
    assert "what native code opens cannot be seen here" in place.do()[1]
    assert place.do()[0] == 1


def test_inputs_of_another_type_are_another_key_and_their_order_is_none() -> None:
    inputs: list[dict[str, Any]] = [{"a": 1}, {"a": "1"}, {"a": True}, {"a": None}, {"a": [1]}, {"b": 1}]
    assert len({key_of(input_) for input_ in inputs}) == len(inputs)
    assert key_of({"a": 1, "b": 2}) == key_of({"b": 2, "a": 1})


def test_a_file_of_which_work_makes_a_hard_link_is_remembered(place: Place) -> None:
    place.write("w.bin", "1")
    place.write(
        "net.py",
        "import os, tempfile\ndef work():\n own = tempfile.mkdtemp() + '/w'\n os.link('HERE/w.bin', own)\n"
        " return open(own).read()",
    )
    # What has just changed is read at once, linked or not.
    time.sleep(YOUNG_SECONDS + 0.1)
    assert place.do() == ("1", "not run before")
    assert place.do() == ("1", "")
