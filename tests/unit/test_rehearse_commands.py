"""Environment files and workflow commands are read as GitHub's runner reads them."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ci.github.rehearse.commands import FORBIDDEN, StepOutput, pairs
from provisioning.base.errors import CheckFailed
from provisioning.base.rendering.variables import github


def read(tmp_path: Path, text: str) -> dict[str, str]:
    path = tmp_path / "env"
    path.write_bytes(text.encode())
    return pairs(path)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("A=1\nB=two words \n", {"A": "1", "B": "two words "}),
        ("A=x<<EOF\n", {"A": "x<<EOF"}),
        ("A<<EOF\n1\n=2\nEOF\nB=\n", {"A": "1\n=2", "B": ""}),
        ("A<<EOF\nEOF\n", {"A": ""}),
        ("A<<x=y\n1\nx=y\n", {"A": "1"}),
        ("A=1\r\nB<<E\r\n2\r\nE\r\n", {"A": "1", "B": "2"}),
        ("A=1\nA=2\n\n", {"A": "2"}),
        ("", {}),
    ],
)
def test_names_and_values_are_read(tmp_path: Path, text: str, expected: dict[str, str]) -> None:
    assert read(tmp_path, text) == expected


@pytest.mark.parametrize("text", ["no sign", "A<<EOF\nnever ended\n", "=value", "A<<\nx\n"])
def test_what_the_runner_refuses_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(CheckFailed):
        read(tmp_path, text)


TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r\0"))


@given(st.dictionaries(st.from_regex(r"[A-Z_]{1,8}", fullmatch=True), TEXT))
def test_what_our_own_renderer_writes_is_read_back(
    tmp_path_factory: pytest.TempPathFactory, variables: dict[str, str]
) -> None:
    assert read(tmp_path_factory.mktemp("files"), github(variables)) == variables


@pytest.mark.parametrize("name", ["set-output", "set-env", "save-state", "add-path", "Set-Output"])
def test_commands_that_github_withdrew_fail(name: str) -> None:
    with pytest.raises(CheckFailed, match="no longer takes"):
        StepOutput().read(f"::{name} name=a::b")


@pytest.mark.parametrize(
    ("name", "forbidden"),
    [
        ("GITHUB_REF", True),
        ("github_ref", True),
        ("RUNNER_TEMP", True),
        ("NODE_OPTIONS", True),
        ("NODE_OPTIONS_2", False),
        ("MY_GITHUB_REF", False),
        ("QNN_SDK_ROOT", False),
    ],
)
def test_a_step_may_not_set_the_runners_own_variables(name: str, forbidden: bool) -> None:
    assert bool(FORBIDDEN.match(name)) is forbidden
