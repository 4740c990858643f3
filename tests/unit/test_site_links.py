"""Where findings and diagnose link to, if the user names a site."""

from __future__ import annotations

import pytest

from ci.diagnose.rules import ERRORS, FAULTS, RULES
from ci.inspect import diagnose
from provisioning.base.settings import ROOT
from tests.support.typed import run_here

SITE = "https://somebody.example/qnn"


@pytest.mark.parametrize(
    ("name", "page"),
    [("lowering-cpu-operator", RULES), ("qnn-graph-node-not-added", ERRORS), ("bias-used-twice", FAULTS)],
)
def test_each_link_leads_to_an_anchor_of_a_page(
    name: str, page: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("QNN_CI_SITE", SITE)
    assert run_here(diagnose, name) == 0
    assert f"{SITE}/{page}#{name}" in capsys.readouterr().out
    source = (ROOT / "docs" / page).with_suffix(".md").read_text(encoding="utf-8")
    assert f'<a id="{name}"></a>' in source
