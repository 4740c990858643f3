"""Consent to what elfsigner asks, by the hash of its text."""

from __future__ import annotations

from pathlib import Path

from ci.signing.lpai.elfsigner import Consent
from provisioning import licences
from tests.support.elfsigner_stand_in import QUESTION, TLS_WARNING


def consent(store: Path, shown: list[str], *accepted: str) -> Consent:
    hashes = dict.fromkeys(map(Consent.digest, accepted), "--accept-disclaimer")
    return Consent(store, "6.5.0.0", hashes, show=shown.append)


def test_what_elfsigner_asks_is_shown_and_accepted_once(tmp_path: Path) -> None:
    shown: list[str] = []
    answers = [consent(tmp_path, shown, QUESTION)(QUESTION) for _ in range(2)]
    assert (answers, len(shown)) == ([True, True], 1)
    record = next(iter(licences.recorded(tmp_path).values()))
    assert (record["component"], record["version"], record["means"]) == (
        "hexagon-sdk",
        "6.5.0.0",
        "--accept-disclaimer",
    )


def test_only_exactly_the_accepted_text_is_accepted(tmp_path: Path) -> None:
    shown: list[str] = []
    answer = consent(tmp_path, shown, QUESTION)
    assert answer(QUESTION)
    assert not answer("and your first-born\n" + QUESTION)
    assert not answer(TLS_WARNING)
    assert [Consent.digest(TLS_WARNING) in text for text in shown] == [False, False, True]
