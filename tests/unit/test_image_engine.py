"""The container engine, and the command line that enters an image."""

from __future__ import annotations

from pathlib import Path

import pytest

from ci.__main__ import VERBS
from ci.image.contents import plan_of
from ci.image.shell import docker_run
from provisioning.base.command_line import main


def test_the_verb_ends_with_3_and_no_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")
    assert main("python -m ci", "", VERBS, ["image", "wheels", "--reports", str(tmp_path)]) == 3
    assert "Traceback" not in capsys.readouterr().err
    assert '"outcome": "error"' in (tmp_path / "image.json").read_text()


PLAN = plan_of("wheels")


def argv(tmp_path: Path, owner: str = "1000:1000", where: Path | None = None, **environ: str) -> list[str]:
    return docker_run(
        PLAN,
        ["true"],
        owner=owner,
        terminal=False,
        environ=environ,
        where=where or tmp_path,
        root=tmp_path,
    )


def test_a_command_runs_as_the_caller_in_the_checkout_and_writes_nothing_to_the_image(tmp_path: Path) -> None:
    words = argv(tmp_path, "1234:99", where=tmp_path / "docs", QNN_CI_SOC="SM8750", QNN_SDK_ROOT="/mine")
    assert words[words.index("--user") + 1] == "1234:99"
    assert "--read-only" in words and "--tty" not in words
    assert words[words.index("--workdir") + 1] == str(tmp_path / "docs")
    assert words.count("--volume") == 1 and f"{tmp_path}:{tmp_path}" in words
    assert "QNN_CI_SOC" in words and "QNN_SDK_ROOT" not in words
    assert words[-2:] == [PLAN.tag, "true"]


def test_packages_of_a_suite_come_from_the_users_index_whose_password_no_process_list_shows(
    tmp_path: Path,
) -> None:
    words = argv(tmp_path, PIP_INDEX_URL="https://ann:secret@index.example/simple")
    assert words[words.index("PIP_INDEX_URL") - 1] == "--env" and "secret" not in " ".join(words)
