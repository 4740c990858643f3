"""Ways round the cache that only a system's administrator has, on mounts that the test alone sees."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from provisioning.base.settings import ROOT
from tests.support.needs import program
from tests.support.small_disk import OWN_MOUNTS

pytestmark = [pytest.mark.small_disk, pytest.mark.heavy]

BEGIN = """
import subprocess, sys
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


@pytest.mark.needs("clang++", "ld.lld")
def test_another_library_is_first_for_the_loader(tmp_path: Path) -> None:
    for number, name in enumerate(("one", "two"), 1):
        (tmp_path / name).mkdir()
        (tmp_path / "which.c").write_text(f"int which(void) {{ return {number}; }}")
        library = str(tmp_path / name / "libqnnci.so.1")
        build = (
            program("clang++"),
            "-x",
            "c",
            str(tmp_path / "which.c"),
            "-shared",
            "-nostdlib",
            "-fuse-ld=lld",
        )
        subprocess.run([*build, "-Wl,-soname,libqnnci.so.1", "-o", library], check=True)
    printed = result_of(LOADED.replace("LDCONFIG", repr(program("ldconfig"))), tmp_path).splitlines()
    assert printed[0] == "1 (1, '')"
    assert printed[1].startswith("(2, ") and "libqnnci.so.1" in printed[1]


MOUNTED = """
import os
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
print(place.do())
"""


@pytest.mark.needs("mksquashfs", "squashfuse")
def test_another_image_is_mounted_with_the_same_stamps(tmp_path: Path) -> None:
    printed = result_of(MOUNTED, tmp_path).splitlines()
    assert printed[0] == "1 ('1', '')"
    assert printed[1].startswith(f"('2', '{tmp_path}")
