"""The tree's hygiene rules fire on what they forbid and stay silent on what they allow."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from ci.upkeep import lint
from provisioning.base.errors import EnvironmentLacking
from provisioning.base.findings import Outcome, Report

HOST = ".".join(("pypi", "org"))


def rules_for(tmp_path: Path, text: bytes, name: str = "file.py") -> set[str]:
    path = tmp_path / name
    path.write_bytes(text)
    return {finding.rule for finding in lint.tree_findings(tmp_path, [path])}


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        (f"see https://{HOST}/simple".encode(), "tree-registry-host"),
        (b"cd /ho-me/ann/sdk".replace(b"-", b""), "tree-machine-path"),
        (b"# TO-DO: later".replace(b"-", b""), "tree-left-behind"),
        (b"raise Not-ImplementedError".replace(b"-", b""), "tree-left-behind"),
        (b"\x7fELF\0\0", "tree-binary"),
        (b"x" * (lint.LARGEST_FILE + 1), "tree-large-file"),
    ],
)
def test_what_is_forbidden_is_found(tmp_path: Path, text: bytes, rule: str) -> None:
    assert rules_for(tmp_path, text) == {rule}


@pytest.mark.parametrize(
    "text",
    [
        b"the package index",
        b"~/homework/x",
        b"$HOME/home/x",
        b"https://example.test/ho-me/ann".replace(b"-", b""),
        b"todo list",
    ],
)
def test_what_is_allowed_is_left_alone(tmp_path: Path, text: bytes) -> None:
    assert rules_for(tmp_path, text) == set()


def test_without_a_git_checkout_lint_says_so_and_reports_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lint, "ROOT", tmp_path)
    parser = argparse.ArgumentParser()
    lint.configure(parser)
    with pytest.raises(EnvironmentLacking, match="git ls-files: fatal: not a git repository"):
        lint.run(parser.parse_args(["--only", "tree", "--reports", str(tmp_path)]))
    assert Report.read(tmp_path / "lint.json").outcome is Outcome.ERROR


def test_scripts_and_the_lines_that_workflows_run_are_checked_as_shell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a stand-in that objects to every line with BAD."""
    tool = tmp_path / "bin" / "shellcheck"
    tool.parent.mkdir()
    tool.write_text('#!/bin/sh\nshift 3\n! grep -Hn BAD "$@" | sed "s/:echo/:1: note:/"\n')
    tool.chmod(0o755)
    monkeypatch.setattr(lint, "_environment", lambda: {"PATH": f"{tool.parent}:/usr/bin:/bin"})
    action = tmp_path / ".github" / "actions" / "a" / "action.yml"
    action.parent.mkdir(parents=True)
    action.write_text("runs: {using: composite, steps: [{name: greet, run: echo BAD 1, shell: bash}]}\n")
    script = tmp_path / "script"
    script.write_text("#!/usr/bin/env bash\necho BAD 2\n")
    python = tmp_path / "x.py"
    python.write_text("#!/usr/bin/env python3\n# BAD 3\n")
    found = [(one.subject, one.message) for one in lint.shell_findings(tmp_path, [script, python])]
    assert found == [
        (f"{script}:2", "note: BAD 2"),
        (".github/actions/a/action.yml: greet", "note: BAD 1"),
    ]


def test_actionlint_that_is_not_installed_says_that_it_did_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lint, "_environment", lambda: {"PATH": "/nowhere"})
    (finding,) = lint.actionlint_findings()
    assert (finding.severity.value, "did not run" in finding.message) == ("note", True)
