"""Each syntax of `env`, read back by whoever really reads it, and the command itself."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from provisioning.base.settings import ROOT
from provisioning.verbs.env import github, sh
from tests.support.workflows import pairs_in

HARD = [
    "",
    " ",
    "plain",
    "two words",
    "it's",
    "''",
    '"quoted"',
    "a'b\"c`d",
    "$HOME and $(id) and ${HOME}",
    "back\\slash",
    "ends in \\",
    "\\'",
    "\\n is not a newline",
    "a\nb\n",
    "\r\n",
    "# no comment",
    "a #b",
    "=x=",
    "!history !!",
    "tab\there",
    "größe 日本語 😀",
    "\u2028\x85\x0b",
    "-n",
    "~",
    "*?[a]",
    "EOF\nNAME<<EOF",
]
"""Values that have broken somebody's quoting."""

SHELLS = [shell for shell in ("bash", "dash") if shutil.which(shell)]

NO_NUL = st.characters(codec="utf-8", exclude_characters="\0")
AWKWARD = st.sampled_from("'\"\\$`{}() \t\n\r#=;!é日")
VALUES = st.one_of(st.sampled_from(HARD), st.text(NO_NUL, max_size=40), st.text(AWKWARD, max_size=12))
SETS = st.lists(VALUES, min_size=1, max_size=4).map(lambda vs: {f"NAME_{i}": v for i, v in enumerate(vs)})


def _by_shell(shell: str, variables: Mapping[str, str]) -> dict[str, str]:
    """What a process started by the shell sees after `eval "$(…)"`."""
    script = 'eval "$(cat)"; exec env -0'
    path = os.environ["PATH"]
    ran = subprocess.run(
        [str(shutil.which(shell)), "-c", script],
        input=os.fsencode(sh(variables)),
        env={"PATH": path},
        capture_output=True,
        check=True,
    )
    assert ran.stderr == b""
    pairs = (os.fsdecode(pair).partition("=") for pair in ran.stdout.split(b"\0") if pair)
    return {name: value for name, _, value in pairs if name.startswith("NAME_")}


@pytest.mark.parametrize("shell", SHELLS)
@given(variables=SETS)
def test_a_shell_gets_any_text_back(shell: str, variables: dict[str, str]) -> None:
    assert _by_shell(shell, variables) == variables


@given(variables=SETS)
def test_the_github_runner_gets_any_text_back(variables: dict[str, str]) -> None:
    assert pairs_in(github(variables)) == variables


def test_a_value_cannot_foresee_the_delimiter_that_ends_it() -> None:
    first, second = (github({"NAME": "x"}).splitlines()[0] for _ in range(2))
    assert first != second


@pytest.fixture
def sdk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Its path has what breaks careless quoting."""
    root = tmp_path / 'it\'s "an" $SDK'
    (root / "lib/x86_64-linux-clang").mkdir(parents=True)
    (root / "bin/x86_64-linux-clang").mkdir(parents=True)
    monkeypatch.delenv("LD_LIBRARY_PATH", raising=False)
    monkeypatch.setenv("QNN_SDK_ROOT", str(root))
    monkeypatch.setenv("QNN_CI_STORE", str(tmp_path / "store"))
    return root


def test_eval_sets_the_environment_whatever_the_paths_hold(sdk: Path) -> None:
    script = f'eval "$("{sys.executable}" -m provisioning env)" && printf %s "$QNN_SDK_ROOT|$LD_LIBRARY_PATH"'
    ran = subprocess.run(
        ["sh", "-euc", script], cwd=ROOT, capture_output=True, text=True, check=True, timeout=60
    )
    assert ran.stdout == f"{sdk}|{sdk}/lib/x86_64-linux-clang"
