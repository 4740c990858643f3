"""`env` as people and scripts call it, over a directory that stands for the user's own SDK."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from provisioning.base.errors import UsageError
from provisioning.base.settings import ROOT
from provisioning.verbs import env
from tests.support.readers import read_github


@pytest.fixture
def sdk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Its path has what breaks careless quoting."""
    root = tmp_path / 'it\'s "an" $SDK'
    (root / "lib/x86_64-linux-clang").mkdir(parents=True)
    (root / "bin/x86_64-linux-clang").mkdir(parents=True)
    names = ("LD_LIBRARY_PATH", "QNN_CI_PROFILE", "QNN_CI_SOC", "HEXAGON_SDK_ROOT", "EXECUTORCH_ROOT")
    for name in (*names, "ANDROID_NDK_ROOT", "ANDROID_NDK_HOME", "ANDROID_NDK", "EXECUTORCH_RUNTIME_ROOT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("QNN_SDK_ROOT", str(root))
    monkeypatch.setenv("QNN_CI_STORE", str(tmp_path / "store"))
    return root


def _run(*argv: str) -> int:
    parser = argparse.ArgumentParser()
    env.configure(parser)
    return env.run(parser.parse_args(argv))


def test_eval_sets_the_environment_whatever_the_paths_hold(sdk: Path) -> None:
    script = f'eval "$("{sys.executable}" -m provisioning env)" && printf %s "$QNN_SDK_ROOT|$LD_LIBRARY_PATH"'
    ran = subprocess.run(
        ["sh", "-euc", script], cwd=ROOT, capture_output=True, text=True, check=True, timeout=60
    )
    assert ran.stdout == f"{sdk}|{sdk}/lib/x86_64-linux-clang"


def test_which_sdk_is_used_is_said_beside_the_output(sdk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _run()
    out, err = capsys.readouterr()
    assert err == f"using your own qnn-sdk: QNN_SDK_ROOT={sdk}\n"
    assert all(line.startswith("export ") for line in out.splitlines())


def test_quiet_says_nothing_beside_the_output(sdk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _run("--quiet")
    assert capsys.readouterr().err == ""


def test_one_value_is_printed_bare(sdk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _run("QNN_SDK_ROOT")
    assert capsys.readouterr().out == f"{sdk}\n"


def test_a_variable_that_is_not_set_is_wrong_use_and_lists_those_that_are(sdk: Path) -> None:
    with pytest.raises(UsageError, match="sets no QNN_SDK") as caught:
        _run("QNN_SDK")
    assert "QNN_SDK_ROOT" in caught.value.remedy


def test_json_is_one_object_of_strings(sdk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _run("--format", "json", "--soc", "SM8750")
    assert json.loads(capsys.readouterr().out)["QNN_CI_SOC"] == "SM8750"


def test_output_goes_to_a_file_when_named(sdk: Path, tmp_path: Path) -> None:
    _run("--format", "docker", "-o", str(tmp_path / "out.env"))
    assert f"QNN_SDK_ROOT={sdk}\n" in (tmp_path / "out.env").read_text()


def test_a_file_that_cannot_be_written_is_wrong_use(sdk: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot write"):
        _run("-o", str(tmp_path / "missing" / "out"))


def test_appending_on_github_adds_variables_and_path_to_their_files(
    sdk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("GITHUB_ENV", "GITHUB_PATH"):
        (tmp_path / name).write_text("BEFORE=1\n")
        monkeypatch.setenv(name, str(tmp_path / name))
    _run("--format", "github", "--append")
    variables = read_github((tmp_path / "GITHUB_ENV").read_text())
    assert (variables["BEFORE"], variables["QNN_SDK_ROOT"]) == ("1", str(sdk))
    assert "PATH" not in variables
    assert (tmp_path / "GITHUB_PATH").read_text() == f"BEFORE=1\n{sdk}/bin/x86_64-linux-clang\n"


def test_appending_needs_a_step_of_github(sdk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GITHUB_ENV", raising=False)
    with pytest.raises(UsageError, match="GITHUB_ENV"):
        _run("--format", "github", "--append")


def test_appending_is_for_github_alone(sdk: Path) -> None:
    with pytest.raises(UsageError, match="--append is for --format github alone"):
        _run("--append")


def test_paths_that_are_no_text_are_printed_as_they_are(
    sdk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    raw = os.fsdecode(bytes(tmp_path) + b"/caf\xe9")
    Path(raw, "lib/x86_64-linux-clang").mkdir(parents=True)
    monkeypatch.setenv("QNN_SDK_ROOT", raw)
    with subprocess.Popen(
        [sys.executable, "-m", "provisioning", "env", "QNN_SDK_ROOT"], cwd=ROOT, stdout=subprocess.PIPE
    ) as process:
        out, _ = process.communicate(timeout=60)
    assert (process.returncode, out) == (0, os.fsencode(raw) + b"\n")
