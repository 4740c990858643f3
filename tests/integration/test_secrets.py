"""Do the remote cache's secrets reach code that is not ours?"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from provisioning.base.secrets import READ_TOKEN, SIGNING_KEY, TOKEN, URL
from provisioning.base.settings import ROOT
from tests.support.cache_machines import OURS, pems
from tests.support.cache_server import serving
from tests.support.repositories import write
from tests.support.typed import typed
from tests.support.wheels import SRC_PROJECT

HUSH = "hush-hush-token"
LOOK = f"""
import glob
import os


def look(seen):
    found = [name for name, value in os.environ.items() if {HUSH!r} in value]
    for path in glob.glob("/proc/[0-9]*/environ"):
        try:
            with open(path, "rb") as file:
                if {HUSH!r}.encode() in file.read():
                    with open(path.replace("environ", "cmdline"), "rb") as line:
                        found.append(line.read().replace(b"\\0", b" ").decode())
        except OSError:
            continue
    with open(seen, "a") as file:
        file.write(repr(found) + "\\n")
"""
"""Writes who has the token: this process, or one whose environment it may read."""
MODEL = f"""{LOOK}

def net():
    import torch

    look("seen.txt")
    return torch.nn.Linear(4, 4), (torch.ones(1, 4),)
"""
INSTALL = """
import sys
from pathlib import Path
from provisioning.base.secrets import hide
hide()
from ci.pipeline.models.own_packages import Needs, installed
installed(Needs(project=Path(sys.argv[1])), Path(sys.argv[2]))
"""


def seen_in(folder: Path) -> set[str]:
    lines = (folder / "seen.txt").read_text().splitlines()
    assert lines
    return set(lines)


@pytest.mark.long("makes an environment, and lowers in it")
@pytest.mark.heavy
def test_neither_a_model_nor_another_python_finds_the_token_that_reads(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(MODEL)
    public, _ = pems(OURS)
    with serving() as server:
        server.token = HUSH
        variables = {URL: server.url, f"{URL}_PUBLIC_KEYS": public, READ_TOKEN: HUSH}
        command = ("compile", "net.py:net", "--verify", "none", "--no-cache", "-o", "out")
        for more in ((), ("--python", sys.executable)):
            ended = typed(*command, *more, cwd=tmp_path, env={**os.environ, **variables}, anew=True)
            assert ended.returncode == 0, ended.stdout + ended.stderr
            assert HUSH not in ended.stdout + ended.stderr
    assert seen_in(tmp_path) == {"[]"}


@pytest.mark.long("builds a package in an environment of its own")
def test_a_build_backend_of_a_suites_project_finds_none_either(tmp_path: Path) -> None:
    setup = f"{LOOK}\nlook({str(tmp_path / 'seen.txt')!r})\nimport setuptools\nsetuptools.setup()\n"
    project = SRC_PROJECT.replace('"einops>=0.7"', "")
    write(tmp_path / "project", {"pyproject.toml": project, "setup.py": setup, "src/mynet/__init__.py": ""})
    command = [sys.executable, "-c", INSTALL, str(tmp_path / "project"), str(tmp_path / "store")]
    subprocess.run(command, cwd=ROOT, env={**os.environ, READ_TOKEN: HUSH}, check=True)
    assert seen_in(tmp_path) == {"[]"}


def test_a_command_that_finds_what_writes_runs_no_foreign_code(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(MODEL)
    for name in (SIGNING_KEY, f"{TOKEN}_FILE"):
        for words in (("compile", "net.py:net", "-o", "out"), ("test_lowering",), ("gate",)):
            ended = typed(*words, cwd=tmp_path, env={**os.environ, name: "secret"})
            assert ended.returncode == 2, ended.stdout + ended.stderr
            assert name in ended.stderr and "cache -- push" in ended.stderr
    assert not (tmp_path / "seen.txt").exists()
    told = typed("diagnose", "14001", env={**os.environ, SIGNING_KEY: "secret"})
    assert told.returncode == 0, told.stderr
