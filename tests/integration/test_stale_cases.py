"""Ways round the cache that were found once: no row says "cached" of work whose result would be another.

Each is real work in a watched fork; the ways that only an administrator has are in test_stale_system. A row
that cannot be followed says why it is not cached; others are done again when what they depend on changes."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ci.engine.workers.parent import Worker
from tests.support.watched_work import Place, later, start


@pytest.fixture(scope="module")
def worker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worker]:
    worker = start(tmp_path_factory.mktemp("logs"))
    yield worker
    worker.end()


@pytest.fixture
def place(tmp_path: Path, worker: Worker) -> Place:
    place = Place(tmp_path / "clone", tmp_path / "store", worker)
    place.write("w.bin", "1")
    place.write("old/a.pt", "1")
    place.write("old/b.pt", "2")
    place.write("data/__pycache__/w.bin", "1")
    (place.folder / "hanging").symlink_to("nowhere-1")
    place.path.append(str(place.folder / "lib"))
    return place


def touch(place: Place, name: str, time: float = 2e9) -> None:
    os.utime(place.folder / name, (time, time))


def relink(place: Place) -> None:
    (place.folder / "hanging").unlink()
    (place.folder / "hanging").symlink_to("nowhere-22")


WEIGHTS = "def work():\n import os, pathlib, subprocess\n folder = pathlib.Path('HERE/cache')\n"
OWN = "import os, pathlib, shutil, subprocess, tempfile\ndef work():\n own = tempfile.mkdtemp()\n"


def another_package(place: Place) -> None:
    place.write("lib/models/net.py", "x = 2")
    place.write("lib/models/__init__.py", "")


def into_a_folder(place: Place) -> None:
    (place.folder / "old/a.pt").unlink()
    (place.folder / "old/a.pt").mkdir()


def into_a_link(place: Place) -> None:
    (place.folder / "old/a.pt").rename(place.folder / "a.pt")
    (place.folder / "old/a.pt").symlink_to("../a.pt")


Change = Callable[[Place], object]
IN_CACHE: Change = lambda place: later(place.folder / "cache" / "w", "2")  # noqa: E731
INPUT: Change = lambda place: later(place.folder / "w.bin", "2")  # noqa: E731

NEWEST = "import os\ndef work():\n files = ['HERE/old/a.pt', 'HERE/old/b.pt']\n"
NEWEST += " return open(max(files, key=os.path.getmtime)).read()"

LEFT = {
    "1: a folder made if need be, with weights": (
        f"{WEIGHTS} folder.mkdir(exist_ok=True)\n file = folder / 'w'\n"
        " if not file.exists(): file.write_text('1')\n return file.read_text()",
        IN_CACHE,
    ),
    "2: a file made by open x": (
        f"{WEIGHTS} folder.mkdir(exist_ok=True)\n try:\n  open(folder / 'w', 'x').write('1')\n  return '1'\n"
        " except FileExistsError: return open(folder / 'w').read()",
        IN_CACHE,
    ),
    "2: a file that a child makes if need be": (
        f"{WEIGHTS} return subprocess.getoutput('mkdir -p HERE/cache; cd HERE/cache;"
        " test -f w || echo 1 > w; cat w')",
        IN_CACHE,
    ),
    "a checkpoint that is moved into its place": (
        f"{WEIGHTS} folder.mkdir(exist_ok=True)\n if not (folder / 'w').exists():\n"
        "  (folder / 'part').write_text('1')\n  os.replace(folder / 'part', folder / 'w')\n"
        " return (folder / 'w').read_text()",
        IN_CACHE,
    ),
    "the newest of a folder that it fills": (
        f"{WEIGHTS} folder.mkdir(exist_ok=True)\n if not os.listdir(folder): (folder / 'w').write_text('1')\n"
        " return (folder / os.listdir(folder)[0]).read_text()",
        IN_CACHE,
    ),
}
UNSEEN = {
    "3: a hard link of its own": f"{OWN} os.link('HERE/w.bin', own + '/w')\n return open(own + '/w').read()",
    "3: cp -al": f"{OWN} subprocess.run(['cp', '-al', 'HERE/old', own + '/old'])\n"
    " return open(own + '/old/a.pt').read()",
    "3: an input that it moves": f"{OWN} os.rename('HERE/w.bin', own + '/w')\n"
    " return open(own + '/w').read()",
    "15: shared memory of System V": "import ctypes\ndef work():\n"
    " return ctypes.CDLL(None).shmget(0, 4096, 0o1600) > 0",
}
CHANGES: dict[str, tuple[str, Change]] = {
    "3: a link of its own to an input": (
        f"{OWN} os.symlink('HERE/w.bin', own + '/w')\n return open(own + '/w').read()",
        INPUT,
    ),
    "3: a link of its own to a folder": (
        f"{OWN} os.symlink('HERE', own + '/all')\n return open(own + '/all/w.bin').read()",
        INPUT,
    ),
    "3: a child's link, renamed": (
        f"{OWN} subprocess.run(['sh', '-c', 'ln -s HERE/w.bin part && mv part w'], cwd=own)\n"
        " return open(own + '/w').read()",
        INPUT,
    ),
    "3: a copy": (f"{OWN} shutil.copy2('HERE/w.bin', own)\n return open(own + '/w.bin').read()", INPUT),
    "4: the newest by getmtime": (
        NEWEST,
        lambda place: touch(place, "old/a.pt"),
    ),
    "4: the newest by getmtime, the one it reads grown old": (
        NEWEST,
        lambda place: touch(place, "old/b.pt", 1e6),
    ),
    "4: a time": (
        "import os\ndef work(): return os.stat('HERE/w.bin').st_mtime",
        lambda place: touch(place, "w.bin"),
    ),
    "4: a size": (
        "import os\ndef work(): return os.path.getsize('HERE/w.bin')",
        lambda place: later(place.folder / "w.bin", "12"),
    ),
    "4: sizes of a folder": (
        "import os\ndef work(): return sum(each.stat().st_size for each in os.scandir('HERE/old'))",
        lambda place: later(place.folder / "old/a.pt", "12"),
    ),
    "4: what is a folder": (
        "import os\ndef work(): return [each.name for each in os.scandir('HERE/old') if each.is_dir()]",
        into_a_folder,
    ),
    "4: what is a link": (
        "import os\ndef work(): return [each.name for each in os.scandir('HERE/old') if each.is_symlink()]",
        into_a_link,
    ),
    "4: a mode": (
        "import os\ndef work(): return os.stat('HERE/w.bin').st_mode",
        lambda place: (place.folder / "w.bin").chmod(0o700),
    ),
    "4: an extended attribute": (
        "import os\ndef work():\n try: return os.getxattr('HERE/w.bin', 'user.a').decode()\n"
        " except OSError: return ''",
        lambda place: os.setxattr(place.folder / "w.bin", "user.a", b"1"),
    ),
    "4: where a link leads that leads nowhere": (
        "import os\ndef work(): return os.readlink('HERE/hanging')",
        relink,
    ),
    "9: a package beside one without __init__": (
        "import models.net\ndef work(): return models.net.x",
        another_package,
    ),
    "10: modules that it lists": (
        "import pkgutil\ndef work(): return len(list(pkgutil.iter_modules(['HERE/lib'])))",
        lambda place: place.write("lib/plugin.py", ""),
    ),
    "10: a package that a child imports if it is there": (
        "import subprocess, sys\ndef work():\n"
        " return subprocess.check_output([sys.executable, '-c', 'import optional'], cwd='HERE').decode()",
        lambda place: place.write("plugin.py", ""),
    ),
    "15: a file beside bytecode": (
        "import os\ndef work(): return open('HERE/data/__pycache__/w.bin').read()",
        lambda place: later(place.folder / "data/__pycache__/w.bin", "2"),
    ),
    "15: whether there is a file beside bytecode": (
        "import os\ndef work(): return os.path.exists('HERE/data/__pycache__/more')",
        lambda place: place.write("data/__pycache__/more", ""),
    ),
}


@pytest.mark.parametrize("row", LEFT)
def test_what_it_leaves_behind_and_reads_is_named_and_an_input_afterwards(row: str, place: Place) -> None:
    code, change = LEFT[row]
    place.write("net.py", code)
    first, why = place.do()
    assert f"not remembered: {place.folder}/cache/w " in why and "gettempdir" in why
    assert place.do()[0] == first
    assert place.do() == (first, "")
    change(place)
    assert place.do()[0] != first


@pytest.mark.parametrize("row", UNSEEN)
def test_what_cannot_be_followed_is_not_cached_and_says_why(row: str, place: Place) -> None:
    place.write("net.py", UNSEEN[row])
    assert "not remembered: " in place.do()[1]


@pytest.mark.parametrize("row", CHANGES)
def test_what_decided_the_result_does_the_work_again(row: str, place: Place) -> None:
    code, change = CHANGES[row]
    place.write("models/net.py", "x = 1")
    place.write("optional.py", "try:\n import plugin\n print(1)\nexcept ImportError: print(0)\n")
    place.write("net.py", code)
    first, _ = place.do()
    assert place.do() == (first, "")
    change(place)
    second, why = place.do()
    assert why
    assert second != first


def test_a_file_that_is_only_written_is_no_reason(place: Place) -> None:
    place.write(
        "net.py",
        "import os\ndef work():\n os.makedirs('HERE/own', exist_ok=True)\n"
        " open('HERE/own/y', 'a').write('1')",
    )
    place.do()
    assert place.do()[1] == ""


def test_a_semaphore_is_no_reason(place: Place) -> None:
    """Its name is made by a link."""
    place.write("net.py", "import multiprocessing\ndef work(): return bool(multiprocessing.Lock())")
    place.do()
    assert place.do()[1] == ""


def test_processes_that_meet_in_the_temporary_folder_are_followed(place: Place) -> None:
    """As DataLoader's do."""
    place.write(
        "net.py",
        "import os, socket, tempfile\ndef work():\n name = tempfile.mkdtemp() + '/s'\n"
        " one = socket.socket(socket.AF_UNIX); one.bind(name); one.listen()\n"
        " socket.socket(socket.AF_UNIX).connect(name)",
    )
    place.do()
    assert place.do()[1] == ""


def test_a_clone_whose_files_name_another_one_does_not_share_with_it(place: Place, tmp_path: Path) -> None:
    """Case 14."""
    place.write("net.py", "def work(): return open('HERE/w.bin').read()")
    place.do()
    assert place.do() == ("1", "")
    other = Place(tmp_path / "other", place.store, place.worker)
    shutil.copytree(place.folder, other.folder, dirs_exist_ok=True, symlinks=True)
    later(place.folder / "w.bin", "2")
    assert other.do()[0] == "2"
