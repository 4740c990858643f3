"""A command that we print can be pasted: every value in it is quoted, whatever a path holds."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator

from hypothesis import given
from hypothesis import strategies as st

from provisioning.base.commands import quoted, session, typed
from provisioning.base.settings import ROOT
from tests.support.sources import parsed

HEAD = re.compile(
    r"(?:^|[\s`(:&;])(?:nox -s \S+|python3? -m|-m pip|git -C|rm -|chmod|chown|touch |mkdir|apt-get install"
    r"|docker run|adb -s|export \w+=|patchelf|ln -s|mv |cp -)[^,:]*$"
)
"""A command up to a value in it. The name after `nox -s` is ours; a comma or colon ends it."""
QUOTING = {"quoted", "session", "typed", "quote", "quoted_session"}

ELSEWHERE = {
    # Scripts that are run and not printed, and whose quoting their own tests hold.
    "ci/builds/script.py",
    "ci/device/bundle/scripts.py",
    "ci/device/claim.py",
    "ci/device/session.py",
}


def _texts(tree: ast.Module) -> Iterator[tuple[ast.JoinedStr, str]]:
    """F-strings that hold the beginning of a command, each with the values that are put in unquoted."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.JoinedStr):
            continue
        before = ""
        for part, following in zip(node.values, [*node.values[1:], None], strict=True):
            after = str(following.value) if isinstance(following, ast.Constant) else ""
            if isinstance(part, ast.Constant):
                before += str(part.value)
            elif isinstance(part, ast.FormattedValue):
                in_command = HEAD.search(before.rpartition("\n")[2]) or after.startswith(" -m ")
                if in_command and not _is_quoted(part.value):
                    yield node, ast.unparse(part.value)
                before += "x" if before.endswith("nox -s ") else "{}"


def _is_quoted(value: ast.expr) -> bool:
    """Quoted by the helper, or a constant of the code, which holds nothing of the user's."""
    if isinstance(value, ast.Call):
        name = value.func.attr if isinstance(value.func, ast.Attribute) else getattr(value.func, "id", "")
        return name in QUOTING
    name = value.attr if isinstance(value, ast.Attribute) else getattr(value, "id", "")
    return bool(name) and name == name.upper()


def test_no_command_is_printed_with_a_value_that_is_not_quoted() -> None:
    unquoted = []
    for folder in ("provisioning", "ci"):
        for file in sorted((ROOT / folder).rglob("*.py")):
            place = file.relative_to(ROOT).as_posix()
            if place in ELSEWHERE:
                continue
            for node, value in _texts(parsed(file)):
                unquoted.append(f"{place}:{node.lineno}: {{{value}}} goes through provisioning.base.commands")
    assert not unquoted, "\n".join(unquoted)


@given(st.lists(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])), min_size=1))
def test_a_shell_reads_the_words_that_were_given(words: list[str]) -> None:
    assert shlex.split(quoted(*words)) == words
    assert shlex.split(session("name", *words)) == ["nox", "-s", "name", "--", *words]
    assert shlex.split(typed("nox -s name --", words)) == ["nox", "-s", "name", "--", *words]
