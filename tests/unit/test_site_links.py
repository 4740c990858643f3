"""Where findings and diagnose link to, if the user names a site."""

from __future__ import annotations

import pytest

from ci.diagnose.rules import ERRORS, FAULTS, RULES
from ci.inspect import diagnose
from ci.report.renderings import markdown
from ci.report.summary import github_annotations
from provisioning.base.findings import Severity
from provisioning.base.settings import ROOT
from provisioning.base.stage_run import StageRun
from tests.support.typed import run_here

SITE = "https://somebody.example/qnn"


@pytest.mark.parametrize(("site", "linked"), [("", False), (f"{SITE}/", True), ("javascript:x", False)])
def test_findings_link_to_the_site_that_the_user_named(
    site: str, linked: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stage = StageRun("test_lowering", "wheels", "x86_64-linux", "qnn-ci test_lowering")
    stage.add("lowering-cpu-operator", Severity.ERROR, "net", "stays on the CPU")
    report, place = stage.finish(), f"{SITE}/{RULES}#lowering-cpu-operator"
    monkeypatch.setenv("QNN_CI_SITE", site)
    assert (place in github_annotations([report])) is linked
    assert (f"]({place})" in markdown([report])) is linked
    assert run_here(diagnose, "lowering-cpu-operator") == 0
    assert (f"page:  {place}" in capsys.readouterr().out) is linked


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
