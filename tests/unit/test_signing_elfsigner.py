"""Consent to elfsigner's disclaimer, and a Python that elfsigner runs on."""

from __future__ import annotations

from pathlib import Path

from ci.signing.lpai.elfsigner import Consent
from provisioning import licences
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
