"""The command line that enters an image."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from ci.image import shell
from ci.image.engine import Engine
from ci.image.plan import plan_of
from ci.image.shell import accounts, check, docker_run
from ci.image.verb import labels
from provisioning.base.command_line import Parser
from provisioning.base.errors import EnvironmentLacking

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
    checkout = f"type=bind,source={tmp_path},target={tmp_path}"
    assert [word for word in words if word.startswith("type=bind") and "etc" not in word] == [checkout]
    assert "QNN_CI_SOC" in words and "QNN_SDK_ROOT" not in words
    assert words[-2:] == [PLAN.tag, "true"]


class Answering(Engine):
    owner = "1000:1000"

    def image_id(self, reference: str) -> str | None:
        return None


@pytest.mark.parametrize(
    ("command", "ran"),
    [(["--", "ls", "-l"], ["ls", "-l"]), (["ls", "--", "x"], ["ls", "--", "x"]), ([], ["bash"])],
)
def test_starts_where_nox_was_called_what_was_typed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: list[str], ran: list[str]
) -> None:
    """nox itself runs in the toolkit's folder."""
    calls: list[Sequence[str]] = []

    def become(argv: Sequence[str], _: object) -> int:
        calls.append(argv)
        return 0

    monkeypatch.setattr(Parser, "started_in", str(tmp_path))
    monkeypatch.setattr("ci.image.engine.connect", lambda: Engine.__new__(Answering))
    monkeypatch.setattr(shell, "check", lambda *_: None)
    monkeypatch.setattr("provisioning.verbs.shell.become", become)
    assert shell.run(argparse.Namespace(image="wheels", command=command)) == 0
    start = calls[0].index("--workdir")
    assert list(calls[0][start:]) == ["--workdir", str(tmp_path), PLAN.tag, *ran]
    assert "--tty" not in calls[0]


def test_a_terminal_is_passed_on(tmp_path: Path) -> None:
    words = docker_run(PLAN, ["true"], owner="1:1", terminal=True, environ={}, where=tmp_path, root=tmp_path)
    assert "--tty" in words


@pytest.mark.parametrize("name", ["models", "a,b"])
def test_a_folder_outside_the_checkout_is_mounted_too_with_any_comma_quoted(
    tmp_path: Path, name: str
) -> None:
    where = tmp_path / name
    words = [f"source={where}", f"target={where}"]
    quoted = ",".join(f'"{word}"' if "," in word else word for word in words)
    assert f"type=bind,{quoted}" in argv(tmp_path / "checkout", where=where)


@pytest.mark.parametrize(("owner", "named"), [("1000:1000", False), ("0:0", False), ("1234:99", True)])
def test_a_caller_whom_the_image_does_not_know_gets_a_name(tmp_path: Path, owner: str, named: bool) -> None:
    assert any("target=/etc/passwd,readonly" in word for word in argv(tmp_path, owner)) == named
    for name, text in accounts(owner).items() if named else ():
        assert (tmp_path / "build" / "image" / f"{name}-1234").read_text() == text


def test_the_name_has_the_callers_ids_and_roots_group_keeps_its_own() -> None:
    texts = accounts("1234:99")
    assert "dev:x:1234:99:" in texts["passwd"] and "dev:x:99:" in texts["group"]
    assert accounts("1234:0")["group"].count(":0:") == 1


def test_each_user_has_a_volume(tmp_path: Path) -> None:
    volumes = [[word for word in argv(tmp_path, owner) if "type=volume" in word] for owner in ("1:1", "2:2")]
    assert volumes[0] != volumes[1]


class Holding(Engine):
    """An engine with an image of these labels, or with none."""

    def __init__(self, **labels: str) -> None:
        self.labels = labels

    def image_id(self, reference: str) -> str | None:
        return "sha256:1" if self.labels else None

    def attributes(self, reference: str) -> dict[str, Any]:
        return {"Config": {"Labels": self.labels}}


@pytest.fixture
def client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    program = tmp_path / "bin" / "docker"
    program.parent.mkdir()
    program.touch(0o755)
    monkeypatch.setenv("PATH", str(program.parent))
    return program


def test_an_engine_without_its_command_says_what_to_install(client: Path) -> None:
    client.unlink()
    with pytest.raises(EnvironmentLacking, match="not on PATH"):
        check(PLAN, Holding(**labels(PLAN, "b", "sha256:2")))


def test_an_image_that_was_not_built_is_not_entered(client: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ci.image.engine.connect", lambda: Engine.__new__(Answering))
    monkeypatch.setattr("provisioning.verbs.shell.become", lambda *_: 0)
    with pytest.raises(EnvironmentLacking, match="was not built on this machine") as caught:
        shell.run(argparse.Namespace(image="wheels", command=[]))
    assert caught.value.remedy == "nox -s image -- wheels"


def test_an_image_of_these_manifests_is_entered_silently(
    client: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    check(PLAN, Holding(**labels(PLAN, "b", "sha256:2")))
    assert capsys.readouterr().err == ""


def test_an_image_of_other_manifests_gets_a_note(client: Path, capsys: pytest.CaptureFixture[str]) -> None:
    check(PLAN, Holding(**{**labels(PLAN, "b", "sha256:2"), "qnn-ci.manifest": "0"}))
    assert "`nox -s image -- wheels` renews it" in capsys.readouterr().err
