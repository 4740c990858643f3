"""What reaches the work of a user: the closed environment, whoever asks, and the same on every machine."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from ci.engine.closed import closed, declared, key_of_declared, not_passed
from ci.engine.inputs import key_of
from ci.engine.workers.child import THREADS
from ci.engine.workers.parent import Worker
from tests.support.watched_work import Place, start

NAME = "NET_WIDTH"
SPAWNED = "import os\ndef read(name): return os.environ.get(name)\n"
READERS = {
    "os.environ": "return os.environ.get(NAME)",
    "os.environb": "return os.fsdecode(os.environb.get(NAME.encode()) or b'') or None",
    "a loop over all": "return dict(os.environ).get(NAME)",
    "posix": "import posix\n return os.fsdecode(posix.environ.get(NAME.encode(), b'')) or None",
    "C": "import ctypes\n libc = ctypes.CDLL(None)\n libc.getenv.restype = ctypes.c_char_p\n"
    " return os.fsdecode(libc.getenv(NAME.encode()) or b'') or None",
    "/proc": "return NAME in open('/proc/self/environ').read() or None",
    "a shell": "import subprocess\n return subprocess.getoutput('echo $' + NAME) or None",
    "a fork": "from multiprocessing import get_context\n"
    " with get_context('fork').Pool(1) as pool: return pool.apply(os.getenv, [NAME])",
    "a spawned process": "from concurrent.futures import ProcessPoolExecutor\n"
    " from multiprocessing import get_context\n import spawned\n"
    " with ProcessPoolExecutor(1, mp_context=get_context('spawn')) as pool:\n"
    "  return pool.submit(spawned.read, NAME).result()",
    "execv": "import subprocess, sys\n"
    " text = subprocess.check_output([sys.executable, '-c',"
    " 'import os; print(os.getenv(\"' + NAME + '\"))'])\n"
    " return None if text == b'None\\n' else text.decode()",
    "a script of a library": "import library\n return library.run(NAME) or None",
}


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    place = Place(tmp_path / "clone", tmp_path / "store", Worker.__new__(Worker))
    place.write("spawned.py", SPAWNED)
    place.write(
        "lib/site-packages/library.py",
        "import subprocess\ndef run(name): return subprocess.getoutput('sh HERE/lib/script.sh ' + name)\n",
    )
    place.write("lib/script.sh", 'eval "echo \\$$1"')
    place.path.append(str(place.folder / "lib/site-packages"))
    yield place
    place.worker.end()


@pytest.mark.parametrize("reader", READERS)
def test_what_is_not_declared_is_nowhere_and_the_rest_is_in_the_key(reader: str, place: Place) -> None:
    """Stale cases 5 to 8."""
    place.write("net.py", f"import os\nNAME = {NAME!r}\ndef work():\n {READERS[reader]}\n")
    users = {**os.environ, NAME: "1", "TZ": "Asia/Tokyo", "LC_ALL": "tr_TR"}
    place.environ = closed(users)
    place.worker = start(place.store / "logs", place.environ)
    assert place.do()[0] is None
    place.worker.end()
    place.worker = start(place.store / "logs", {**place.environ, **declared([NAME], users)})
    assert place.do(reuse=False)[0]
    assert key_of_declared([NAME], users) != key_of_declared([NAME], {**users, NAME: "2"})


def test_time_zone_and_language_are_the_same_everywhere(place: Place) -> None:
    found = "(time.tzname, locale.getpreferredencoding(), os.environ['TZ'])"
    place.write("net.py", f"import locale, os, time\ndef work(): return str({found})")
    answers = set()
    for zone, language in (("UTC", "C.UTF-8"), ("Asia/Tokyo", "C")):
        place.environ = closed({**os.environ, "TZ": zone, "LC_ALL": language, "LANG": language})
        place.worker = start(place.store / "logs", place.environ)
        answers.add(place.do(reuse=False)[0])
        place.worker.end()
    assert len(answers) == 1


def test_two_users_with_two_numbers_of_jobs_differ_by_their_homes_alone(place: Place, tmp_path: Path) -> None:
    place.write(
        "net.py",
        "import os\ndef work():\n"
        " own = dict(line.split('=', 1) for line in open('/proc/self/environ').read().split('\\0') if line)\n"
        " return sorted(os.environ.items()), sorted(own.items()), open('/proc/self/cmdline').read()",
    )
    users: dict[str, Mapping[str, str]] = {
        "1": {"HOME": str(tmp_path / "ann"), "USER": "ann", "CI": "1"},
        "4": {"HOME": str(tmp_path / "bob"), "USER": "bob", "SHLVL": "3", "OMP_NUM_THREADS": "4"},
    }
    keys, seen = set(), []
    for threads, user in users.items():
        for folder in ("libs", "libs/lib"):
            Path(user["HOME"], folder).mkdir(parents=True, exist_ok=True)
        libraries = {"PYTHONPATH": f"{user['HOME']}/libs", "LD_LIBRARY_PATH": f"{user['HOME']}/libs/lib"}
        place.environ = closed({"PATH": os.environ["PATH"], **user, **libraries})
        place.worker = start(place.store / "logs", {**place.environ, THREADS: threads})
        key = place.key(place.memo())
        assert key["environment"].pop("HOME")
        keys.add(key_of(key))
        environment, initial, words = place.do(reuse=False)[0]
        place.worker.end()
        assert THREADS not in str((environment, initial, words))
        text = str(([pair for pair in environment if "qnn-ci-" not in pair[1]], initial))
        seen.append(text.replace(user["HOME"], "~"))
    assert len(keys) == 1
    assert seen[0] == seen[1]


def test_who_asks_for_what_is_set_and_not_passed_is_told_the_line_to_add(place: Place) -> None:
    place.write(
        "net.py",
        "import os\nfrom multiprocessing import get_context\nfrom spawned import read\ndef work():\n"
        " os.environ.get('NET_WIDTH'); 'NET_UNSET' in os.environ\n"
        " with get_context('fork').Pool(1) as pool: pool.apply(read, ['NET_TOKEN'])",
    )
    place.worker = start(place.store / "logs", place.environ)
    place.do()
    users = {"NET_WIDTH": "3", "NET_TOKEN": "hunter2", "CI": "1"}
    assert list(not_passed(place.worker.asked, users)) == [
        ("NET_TOKEN", "secrets"),
        ("NET_WIDTH", "variables"),
    ]
