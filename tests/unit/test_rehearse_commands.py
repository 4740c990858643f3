"""Environment files and workflow commands are read as GitHub's runner reads them."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ci.github.rehearse.commands import FORBIDDEN, Annotation, StepOutput, masked, pairs
from provisioning.base.errors import CheckFailed
from provisioning.base.rendering.variables import github
from provisioning.base.rendering.workflow_commands import command


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


def test_an_annotation_of_ours_is_understood() -> None:
    told = StepOutput()
    told.read(command("error", "50% of\nlines", title="a: b, c", file="x.py", line="3"))
    assert told.annotations == [Annotation("error", "a: b, c", "50% of\nlines", "x.py", "3")]


def test_a_masked_value_is_hidden_longest_first() -> None:
    told = StepOutput()
    told.read("::add-mask::secret")
    told.read("::add-mask::secret-and-more")
    assert masked("secret-and-more, secret", told.masks) == "***, ***"


def test_commands_stop_when_told_to() -> None:
    told = StepOutput()
    for line in ("::stop-commands::tok", "::error::hidden", "::tok::", "::warning::seen"):
        told.read(line)
    assert [one.message for one in told.annotations] == ["seen"]


def test_text_that_only_looks_like_a_command_is_no_annotation() -> None:
    told = StepOutput()
    for line in ("error::x", "::error x", "say ::error::x", "::group::g"):
        told.read(line)
    assert told.annotations == []


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


def test_of_a_steps_annotations_only_ten_of_a_level_are_shown() -> None:
    told = StepOutput()
    for number in range(12):
        told.read(f"::error::{number}")
    told.read("::notice::last")
    assert [one.message for one in told.shown()] == [*map(str, range(10)), "last"]
    assert told.dropped() == 2
