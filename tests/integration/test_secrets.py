"""Do the remote cache's secrets reach code that is not ours?"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from provisioning.base.secrets import READ_TOKEN, SIGNING_KEY, TOKEN, URL
from tests.support.cache_machines import OURS, pems
from tests.support.cache_server import serving
from tests.support.typed import typed

HUSH = "hush-hush-token"
LOOKS = f"""
import glob
import os
import torch


def net():
    found = [name for name, value in os.environ.items() if "hush" in value and "SEEN" not in name]
    for path in glob.glob("/proc/[0-9]*/environ"):
        try:
            with open(path, "rb") as file:
                if {HUSH!r}.encode() in file.read():
                    with open(path.replace("environ", "cmdline"), "rb") as line:
                        found.append(line.read().replace(b"\\0", b" ").decode())
        except OSError:
            continue
    with open("seen.txt", "a") as seen:
        seen.write(repr(found) + "\\n")
    return torch.nn.Linear(4, 4), (torch.ones(1, 4),)
"""


@pytest.mark.heavy
def test_neither_a_model_nor_another_python_finds_the_token_that_reads(tmp_path: Path) -> None:
    """By its own environment, and by that of every process that it may look at."""
    (tmp_path / "net.py").write_text(LOOKS)
    public, _ = pems(OURS)
    with serving() as server:
        server.token = HUSH
        variables = {URL: server.url, f"{URL}_PUBLIC_KEYS": public, READ_TOKEN: HUSH}
        command = ("compile", "net.py:net", "--verify", "none", "--no-cache", "-o", "out")
        for more in ((), ("--python", sys.executable)):
            ended = typed(*command, *more, cwd=tmp_path, env={**os.environ, **variables})
            assert ended.returncode == 0, ended.stdout + ended.stderr
            assert HUSH not in ended.stdout + ended.stderr
    seen = (tmp_path / "seen.txt").read_text().splitlines()
    assert len(seen) >= 2 and set(seen) == {"[]"}


def test_a_command_that_finds_what_writes_runs_no_foreign_code(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(LOOKS)
    for name in (SIGNING_KEY, f"{TOKEN}_FILE"):
        for words in (("compile", "net.py:net", "-o", "out"), ("test_lowering",), ("gate",)):
            ended = typed(*words, cwd=tmp_path, env={**os.environ, name: "secret"})
            assert ended.returncode == 2, ended.stdout + ended.stderr
            assert name in ended.stderr and "cache -- push" in ended.stderr
    assert not (tmp_path / "seen.txt").exists()
    told = typed("diagnose", "14001", env={**os.environ, SIGNING_KEY: "secret"})
    assert told.returncode == 0, told.stderr
