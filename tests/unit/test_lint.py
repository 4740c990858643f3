"""The tree's hygiene rules fire on what they forbid and stay silent on what they allow."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import pytest

from ci.dev import lint, lint_tools
from provisioning.base.errors import EnvironmentLacking
from provisioning.base.files import hash_file
from provisioning.base.findings import Outcome, Report
from tests.support.http_server import FileServer
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


@pytest.fixture
def archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The pinned archive, on a server of this test, with an actionlint that complains."""
    program = b"#!/bin/sh\necho .github/workflows/pr.yml:3:1: BAD; exit 1\n"
    file = tmp_path / "server" / "actionlint.tar.gz"
    file.parent.mkdir()
    with tarfile.open(file, "w:gz") as members:
        member = tarfile.TarInfo("actionlint")
        member.size = len(program)
        members.addfile(member, io.BytesIO(program))
    manifest_of(file).write_text(
        'schema = 1\n[tools.actionlint]\nurl = "https://tools.example/actionlint.tar.gz"\n'
        f'sha256 = "{hash_file(file)}"\n'
    )
    monkeypatch.setenv("PATH", "/nowhere")
    return file


def manifest_of(archive: Path) -> Path:
    return archive.with_name("lint_tools.toml")


def test_actionlint_is_downloaded_where_it_is_required_and_else_named_as_not_run(
    archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (finding,) = lint.actionlint_findings(tmp_path, manifest_of(archive))
    assert (finding.rule, finding.severity.value) == ("lint-did-not-run", "note")
    monkeypatch.setenv(lint_tools.REQUIRED, "required")
    with FileServer(archive.read_bytes()) as server:
        monkeypatch.setenv("QNN_CI_MIRROR", server.url(""))
        (finding,) = lint.actionlint_findings(tmp_path, manifest_of(archive))
    assert (finding.subject, finding.message) == (".github/workflows/pr.yml:3", "BAD")
    (finding,) = lint.actionlint_findings(
        tmp_path, manifest_of(archive)
    )  # from its download, without the server
    assert finding.message == "BAD"


def test_an_actionlint_of_other_bytes_is_an_error_and_not_run(
    archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive.write_bytes(archive.read_bytes()[:-1] + b"0")
    monkeypatch.setenv(lint_tools.REQUIRED, "required")
    with FileServer(archive.read_bytes()) as server:
        monkeypatch.setenv("QNN_CI_MIRROR", server.url(""))
        (finding,) = lint.actionlint_findings(tmp_path, manifest_of(archive))
    assert (finding.rule, finding.severity.value) == ("lint-did-not-run", "error")


def test_without_a_git_checkout_lint_says_so_and_reports_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "none"))
    with pytest.raises(EnvironmentLacking, match="not a git repository"):
        run_here(lint, "--only", "tree", "--reports", tmp_path)
    assert Report.read(tmp_path / "lint.json").outcome is Outcome.ERROR
