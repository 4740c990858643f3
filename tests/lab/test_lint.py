"""The tree's hygiene rules fire on what they forbid and stay silent on what they allow."""

from __future__ import annotations

from pathlib import Path

import pytest

from lab import lint
from provisioning.base.errors import EnvironmentLacking
from provisioning.base.findings import Outcome, Report
from tests.support.typed import run_here

HOST = ".".join(("pypi", "org"))


def rules_for(tmp_path: Path, text: bytes) -> set[str]:
    path = tmp_path / "file.py"
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


def test_without_a_git_checkout_lint_says_so_and_reports_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "none"))
    with pytest.raises(EnvironmentLacking):
        run_here(lint, "--only", "tree", "--reports", tmp_path)
    assert Report.read(tmp_path / "lint.json").outcome is Outcome.ERROR
