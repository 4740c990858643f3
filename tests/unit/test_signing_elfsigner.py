"""Consent to elfsigner's disclaimer, and a Python that elfsigner runs on."""

from __future__ import annotations

import stat
import sys
from pathlib import Path

import pytest

from ci.signing.lpai import elfsigner
from ci.signing.lpai.elfsigner import Consent
from provisioning import licences
from provisioning.base.errors import EnvironmentLacking
from tests.support.elfsigner_stand_in import DISCLAIMER


def consent(store: Path, shown: list[str], **more: object) -> Consent:
    return Consent(store, "6.5.0.0", show=shown.append, **more)  # type: ignore[arg-type]


def test_the_disclaimer_is_shown_and_accepted_once(tmp_path: Path) -> None:
    shown: list[str] = []
    answers = [consent(tmp_path, shown, accept=True)(DISCLAIMER) for _ in range(2)]
    assert (answers, len(shown)) == ([True, True], 1)
    record = next(iter(licences.recorded(tmp_path).values()))
    assert (record.component, record.version, record.means) == (
        "hexagon-sdk",
        "6.5.0.0",
        "--accept-disclaimer",
    )


def test_another_wording_is_asked_again(tmp_path: Path) -> None:
    shown: list[str] = []
    consent(tmp_path, shown, accept=True)(DISCLAIMER)
    assert not consent(tmp_path, shown)(DISCLAIMER + "and your first-born")
    assert len(shown) == 2


def test_a_person_is_asked_when_nothing_was_said_beforehand(tmp_path: Path) -> None:
    questions: list[str] = []
    person = consent(tmp_path, [], ask=lambda question: not questions.append(question))  # type: ignore[func-returns-value]
    assert person(DISCLAIMER) and questions == ["Do you accept this? [y/N] "]


def fake_python(path: Path, version: str) -> str:
    path.write_text(f"#!/bin/sh\necho {version}\n", encoding="utf-8")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def test_one_on_path_is_found_when_ours_is_too_new(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = fake_python(tmp_path / "python3.9", "3 9")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "executable", fake_python(tmp_path / "new", "3 13"))
    assert elfsigner.interpreter(None, (3, 12)) == Path(found)


def test_which_to_install_is_said_when_none_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "executable", fake_python(tmp_path / "new", "3 13"))
    with pytest.raises(EnvironmentLacking, match=r"before 3.12, found .*new \(3.13\)") as caught:
        elfsigner.interpreter(None, (3, 12))
    assert "uv python install 3.11" in caught.value.remedy
