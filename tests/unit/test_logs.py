"""A log is read however it comes: packed, in an archive or a folder; what is none is said to be none."""

from __future__ import annotations

import io
import json
import zipfile
from pathlib import Path

import pytest

from ci.__main__ import VERBS
from ci.diagnose.rules import failure_rules
from provisioning.base.command_line import main

FAILING = failure_rules()["libcxx-missing"].example.encode()


def verb(*argv: str) -> int:
    return main("python -m ci", "", {"diagnose": VERBS["diagnose"]}, ["diagnose", *argv])


def zipped(members: dict[str, bytes]) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return file.getvalue()


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("no-suffix", zipped({"run/stderr": FAILING, "run/picture.png": b"\x89PNG"})),
        ("bug.zip", zipped({"build.log": FAILING})),
        ("utf16.log", FAILING.decode().encode("utf-16")),
    ],
)
def test_a_log_is_read_however_it_is_packed(
    name: str, content: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / name).write_bytes(content)
    assert verb("--json", str(tmp_path / name)) == 0
    (only,) = json.loads(capsys.readouterr().out)["inputs"]
    assert [shown["id"] for shown in only["explanations"]] == ["libcxx-missing"]
    assert [path.name for path in tmp_path.rglob("*")] == [name]


def test_a_folder_shows_what_is_known_else_what_tells_of_trouble_and_no_binary(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert verb(str(tmp_path)) == 2
    assert "no log in it" in capsys.readouterr().err
    (tmp_path / "a.out").write_bytes(b"\x7fELF error: no such file" + bytes(range(20)) * 50)
    (tmp_path / "fine.log").write_text("[1/2] Compiling\n[2/2] Linking\n")
    (tmp_path / "odd.log").write_text("Genie: the engine's thread could not start\n")
    assert verb("--json", str(tmp_path)) == 1
    (only,) = json.loads(capsys.readouterr().out)["inputs"]
    assert only["subject"].endswith("odd.log") and only["told_by"] == "Genie"
    (tmp_path / "log.do_compile").write_bytes(FAILING)
    assert verb("--json", str(tmp_path)) == 0
    (only,) = json.loads(capsys.readouterr().out)["inputs"]
    assert only["subject"].endswith("log.do_compile")
