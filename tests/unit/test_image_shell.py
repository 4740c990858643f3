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


def test_runs_as_the_caller(tmp_path: Path) -> None:
    said = argv(tmp_path, "1234:99")
    assert said[said.index("--user") + 1] == "1234:99"


def test_nothing_of_the_image_can_be_written(tmp_path: Path) -> None:
    assert "--read-only" in argv(tmp_path)


def test_the_checkout_keeps_its_path(tmp_path: Path) -> None:
    assert f"type=bind,source={tmp_path},target={tmp_path}" in argv(tmp_path)


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
    """Which runs us in the toolkit's folder."""
    became: list[Sequence[str]] = []

    def become(argv: Sequence[str], _: object) -> int:
        became.append(argv)
        return 0

    monkeypatch.setattr(Parser, "started_in", str(tmp_path))
    monkeypatch.setattr("ci.image.engine.connect", lambda: Engine.__new__(Answering))
    monkeypatch.setattr(shell, "check", lambda *_: None)
    monkeypatch.setattr("provisioning.verbs.shell.become", become)
    assert shell.run(argparse.Namespace(image="wheels", command=command)) == 0
    start = became[0].index("--workdir")
    assert list(became[0][start:]) == ["--workdir", str(tmp_path), PLAN.tag, *ran]
    assert "--tty" not in became[0]


def test_starts_where_the_caller_is(tmp_path: Path) -> None:
    said = argv(tmp_path, where=tmp_path / "docs")
    assert said[said.index("--workdir") + 1] == str(tmp_path / "docs")


def test_a_place_inside_the_checkout_is_not_mounted_again(tmp_path: Path) -> None:
    assert [word for word in argv(tmp_path, where=tmp_path / "docs") if word.startswith("type=bind")] == [
        f"type=bind,source={tmp_path},target={tmp_path}"
    ]


def test_a_terminal_is_handed_on(tmp_path: Path) -> None:
    said = docker_run(PLAN, ["true"], owner="1:1", terminal=True, environ={}, where=tmp_path, root=tmp_path)
    assert "--tty" in said and "--tty" not in argv(tmp_path)


def test_a_place_outside_the_checkout_is_mounted_too(tmp_path: Path) -> None:
    said = argv(tmp_path / "checkout", where=tmp_path / "models")
    assert f"type=bind,source={tmp_path / 'models'},target={tmp_path / 'models'}" in said


def test_a_path_with_a_comma_is_one_path(tmp_path: Path) -> None:
    assert f'type=bind,"source={tmp_path}/a,b","target={tmp_path}/a,b"' in argv(tmp_path / "a,b")


@pytest.mark.parametrize(("owner", "named"), [("1000:1000", False), ("0:0", False), ("1234:99", True)])
def test_a_caller_whom_the_image_does_not_know_gets_a_name(tmp_path: Path, owner: str, named: bool) -> None:
    assert any("target=/etc/passwd,readonly" in word for word in argv(tmp_path, owner)) == named


def test_the_names_are_in_the_files_that_are_mounted(tmp_path: Path) -> None:
    argv(tmp_path, "1234:99")
    for name, text in accounts("1234:99").items():
        assert (tmp_path / "build" / "image" / f"{name}-1234").read_text() == text


def test_the_name_has_the_callers_ids() -> None:
    said = accounts("1234:99")
    assert "dev:x:1234:99:" in said["passwd"] and "dev:x:99:" in said["group"]


def test_the_roots_group_keeps_its_name() -> None:
    assert accounts("1234:0")["group"].count(":0:") == 1


def test_each_user_has_a_volume_of_their_own(tmp_path: Path) -> None:
    volumes = [[w for w in argv(tmp_path, owner) if "type=volume" in w] for owner in ("1:1", "2:2")]
    assert volumes[0] != volumes[1]


def test_only_known_variables_pass(tmp_path: Path) -> None:
    said = argv(tmp_path, QNN_CI_SOC="SM8750", QNN_SDK_ROOT="/mine")
    assert "QNN_CI_SOC" in said and "QNN_SDK_ROOT" not in said


def test_the_command_comes_last(tmp_path: Path) -> None:
    assert argv(tmp_path)[-2:] == [PLAN.tag, "true"]


class Holding(Engine):
    """Stands for an engine that has an image with these labels, or none."""

    def __init__(self, **said: str) -> None:
        self.said = said

    def image_id(self, reference: str) -> str | None:
        return "sha256:1" if self.said else None

    def attributes(self, reference: str) -> dict[str, Any]:
        return {"Config": {"Labels": self.said}}


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


def test_an_image_that_was_not_built_names_the_command_that_builds_it(client: Path) -> None:
    with pytest.raises(EnvironmentLacking) as caught:
        check(PLAN, Holding())
    assert caught.value.remedy == "nox -s image -- wheels"


def test_an_image_that_was_not_built_is_not_entered(client: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ci.image.engine.connect", lambda: Engine.__new__(Answering))
    monkeypatch.setattr("provisioning.verbs.shell.become", lambda *_: 0)
    with pytest.raises(EnvironmentLacking, match="was not built on this machine"):
        shell.run(argparse.Namespace(image="wheels", command=[]))


def test_an_image_of_these_manifests_is_entered_without_a_word(
    client: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    check(PLAN, Holding(**labels(PLAN, "b", "sha256:2")))
    assert capsys.readouterr().err == ""


def test_an_image_of_other_manifests_is_told(client: Path, capsys: pytest.CaptureFixture[str]) -> None:
    check(PLAN, Holding(**{**labels(PLAN, "b", "sha256:2"), "qnn-ci.manifest": "0"}))
    assert "`nox -s image -- wheels` renews it" in capsys.readouterr().err
