"""Committed files that are made from code: fresh, and named when they are not."""

from __future__ import annotations

from pathlib import Path

from ci.upkeep.generate import GENERATED, stale
from provisioning.base.settings import MANIFESTS, ROOT


def test_the_committed_files_are_fresh() -> None:
    assert list(stale()) == []


def test_a_changed_file_and_a_missing_one_are_named(tmp_path: Path) -> None:
    (tmp_path / "manifests/schema").mkdir(parents=True)
    (tmp_path / "manifests/schema/socs.json").write_text("{}")
    assert list(stale(["manifests/schema/socs.json"], tmp_path)) == ["manifests/schema/socs.json"]
    assert list(stale(["docs/checks.md"], tmp_path)) == ["docs/checks.md"]


def test_no_schema_is_committed_that_nothing_generates() -> None:
    assert {path.relative_to(ROOT).as_posix() for path in (MANIFESTS / "schema").iterdir()} <= set(GENERATED)
