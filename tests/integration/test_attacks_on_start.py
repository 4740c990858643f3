"""What a worker has from its start counts, or is the same for all."""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path

import pytest

from ci.engine.closed import closed
from ci.engine.workers.parent import Worker
from provisioning.base.settings import ROOT
from tests.support.needs import program
from tests.support.small_disk import OWN_MOUNTS
from tests.support.watched_work import Place, start


@contextmanager
def umask() -> Iterator[None]:
    before = os.umask(0o077)
    try:
        yield
    finally:
        os.umask(before)


@contextmanager
def limited(name: str, most: int) -> Iterator[None]:
    number = getattr(resource, f"RLIMIT_{name}")
    before = resource.getrlimit(number)
    resource.setrlimit(number, (most, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(number, before)


LIMIT = "import resource\n return resource.getrlimit(resource.RLIMIT_{})"
MAPPED = "return [line.split()[-1] for line in open('/proc/self/maps') if 'libm.so' in line]"


def libm() -> Path:
    """The one that every Python here has loaded."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    return Path(next(line.split()[-1] for line in lines if "libm.so" in line))


ROWS: dict[str, tuple[str, Callable[[Path], object]]] = {
    "umask": ("return os.umask(0)", lambda folder: umask()),
    "files it may open": (LIMIT.format("NOFILE"), lambda folder: limited("NOFILE", 256)),
    "its stack": (LIMIT.format("STACK"), lambda folder: limited("STACK", 4 << 20)),
    "HOME": ("return os.environ['HOME']", lambda folder: {"HOME": str(folder / "other")}),
    "~": ("return os.path.expanduser('~')", lambda folder: {"HOME": str(folder / "other")}),
    "PATH": ("return os.environ['PATH']", lambda folder: {"PATH": f"{folder}/bin:{os.environ['PATH']}"}),
    "an entry of PATH that is the working folder": (
        "return os.environ['PATH'][0]",
        lambda folder: {"PATH": f":{os.environ['PATH']}"},
    ),
    "a place that it did not name before": (
        "return os.environ.get('HF_HOME')",
        lambda folder: {"HF_HOME": str(Path.home() / ".cache/huggingface")},
    ),
    "a folder of temporary files": ("return os.environ.get('TEMP') == '/'", lambda folder: {"TEMP": "/"}),
    "PATH of a child": (
        "import subprocess\n return subprocess.getoutput('echo $PATH')",
        lambda folder: {"PATH": f"{folder}/bin:{os.environ['PATH']}"},
    ),
    "a library that comes first": (MAPPED, lambda folder: shutil.copy(libm(), folder / "lib")),
    "a library for this processor": (
        MAPPED,
        lambda folder: shutil.copy(libm(), folder / "lib/glibc-hwcaps/x86-64-v3"),
    ),
    "what Python starts with": (
        "import sys\n return 'sitecustomize' in sys.modules",
        lambda folder: (folder / "search/sitecustomize.py").write_text(""),
    ),
    "a module that comes first": (
        "import importlib.util\n return importlib.util.find_spec('x') is None",
        lambda folder: (folder / "search/x.py").write_text(""),
    ),
    "a package that is asked for": (
        "from importlib import metadata\n return len(list(metadata.distributions()))",
        lambda folder: (folder / "search/x-1.dist-info").mkdir(),
    ),
    "a folder of the search path that is made": (
        "import importlib.util\n return importlib.util.find_spec('y') is None",
        lambda folder: str(shutil.copytree(folder / "modules", folder / "none")),
    ),
}  # fmt: skip


OTHER_FORMS = {"its stack", "~", "an entry of PATH that is the working folder", "PATH of a child"}
OTHER_FORMS |= {"a library for this processor", "a folder of the search path that is made"}
LONG = pytest.mark.long("three workers start, as for another of these variables, limits or folders")


@pytest.mark.parametrize("row", [pytest.param(row, marks=LONG if row in OTHER_FORMS else ()) for row in ROWS])
def test_work_of_another_start_is_fresh(row: str, tmp_path: Path) -> None:
    code, change = ROWS[row]
    place = Place(tmp_path / "clone", tmp_path / "store", Worker.__new__(Worker))
    place.write("net.py", f"import os\ndef work():\n {code}\n")
    for name in ("bin", "lib/glibc-hwcaps/x86-64-v3", "search", "other"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules/y.py").write_text("")
    search = {"PYTHONPATH": f"{tmp_path}/search:{tmp_path}/none", "LD_LIBRARY_PATH": f"{tmp_path}/lib"}
    users = {**os.environ, **search}

    def done(*, reuse: bool = True) -> tuple[object, str]:
        place.environ = closed(users)
        place.worker = start(tmp_path / "logs", place.environ)
        try:
            return place.do(reuse=reuse)
        finally:
            place.worker.end()

    first, _ = done()
    assert done() == (first, "")
    other = change(tmp_path)
    if isinstance(other, dict):
        users |= other
    with other if isinstance(other, AbstractContextManager) else nullcontext():
        cached, why = done()
        assert why or cached == done(reuse=False)[0]


BEGIN = """
import os, subprocess, sys
from pathlib import Path
from tests.support.watched_work import Place, start

here = Path(sys.argv[1])
place = Place(here / "clone", here / "store", start(here / "logs"))
"""


def result_of(script: str, here: Path) -> str:
    """What a script prints that works in a store of its own, as root of its own mounts."""
    command = [*OWN_MOUNTS, sys.executable, "-c", BEGIN + script, str(here)]
    done = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


LOADED = """
place.write("net.py", "import ctypes\\ndef work(): return ctypes.CDLL('libqnnci.so.1').which()")

def ldconfig(*folders):
    cache = here / f"cache-{folders[0].name}"
    (here / "conf").write_text("\\n".join(map(str, folders)) + "\\ninclude /etc/ld.so.conf\\n")
    subprocess.run([LDCONFIG, "-X", "-f", here / "conf", "-C", cache], check=True, capture_output=True)
    subprocess.run(["mount", "--bind", cache, "/etc/ld.so.cache"], check=True)

ldconfig(here / "one", here / "two")
print(place.do()[0], place.do())
ldconfig(here / "two", here / "one")
print(place.do())
"""


@pytest.mark.small_disk
@pytest.mark.heavy
@pytest.mark.needs("clang++", "ld.lld")
def test_another_library_is_first_for_the_loader(tmp_path: Path) -> None:
    flags = ["-x", "c", "which.c", "-shared", "-nostdlib", "-fuse-ld=lld", "-Wl,-soname,libqnnci.so.1"]
    for number, name in enumerate(("one", "two"), 1):
        (tmp_path / name).mkdir()
        (tmp_path / "which.c").write_text(f"int which(void) {{ return {number}; }}")
        build = [program("clang++"), *flags, "-o", f"{name}/libqnnci.so.1"]
        subprocess.run(build, cwd=tmp_path, check=True)
    printed = result_of(LOADED.replace("LDCONFIG", repr(program("ldconfig"))), tmp_path).splitlines()
    assert printed[0] == "1 (1, '')"
    assert printed[1].startswith("(2, ")


MOUNTED = """
(here / "image").mkdir()
place.write("net.py", f"def work(): return open({str(here / 'image' / 'w')!r}).read()")

def mounted(text):
    subprocess.run(["umount", here / "image"], check=False, capture_output=True)
    (here / "made").mkdir(exist_ok=True)
    (here / "made" / "w").write_text(text)
    flags = ["-noappend", "-all-root", "-mkfs-time", "0", "-all-time", "0", "-quiet", "-no-progress"]
    subprocess.run(["mksquashfs", here / "made", here / "file", *flags], check=True, capture_output=True)
    subprocess.run(["squashfuse", here / "file", here / "image"], check=True)
    info = os.stat(here / "image" / "w")
    return info.st_size, info.st_mtime_ns, info.st_ctime_ns, info.st_ino

first = mounted("1")
print(place.do()[0], place.do())
assert mounted("2") == first
print(place.do()[0])
"""


@pytest.mark.small_disk
@pytest.mark.heavy
@pytest.mark.needs("mksquashfs", "squashfuse")
def test_another_image_is_mounted_with_the_same_stamps(tmp_path: Path) -> None:
    assert result_of(MOUNTED, tmp_path).splitlines() == ["1 ('1', '')", "2"]
