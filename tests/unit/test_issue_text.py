"""The text for an issue: what is provisioned, and of reports the stage that failed."""

from __future__ import annotations

from pathlib import Path

import pytest

from ci.inspect import diagnose_verb
from provisioning.base.findings import Severity
from provisioning.base.stage_run import StageRun
from tests.support.typed import run_here


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("QNN_CI_STORE", str(tmp_path / "store"))
    for version, selection in (("2.47.0.260601", "0"), ("2.49.40.260810", "0"), ("2.49.40.260810", "1")):
        (tmp_path / "store" / "trees" / f"qnn-sdk-{version}-{selection * 12}").mkdir(parents=True)
    return tmp_path / "store"


def test_a_bundle_of_reports_is_of_the_stage_that_failed(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, sdk = tmp_path / "reports", tmp_path / "sdk" / "lib" / "x86_64-linux-clang"
    sdk.mkdir(parents=True)
    (sdk / "libQnnHtp.so").write_bytes(b"\x7fELF v2.47.0.260601123456 ")
    monkeypatch.setenv("QNN_SDK_ROOT", str(tmp_path / "sdk"))
    stages = {"one": Severity.WARNING, "test_lowering": Severity.ERROR, "a_later": Severity.ERROR}
    for number, (name, severity) in enumerate(stages.items()):
        began = f"2026-11-24T10:00:0{number}+00:00"
        stage = StageRun(name, "wheels", "x86_64-linux", f"qnn-ci {name} --soc SM8750", started=began)
        place = Path("/", "home", "jane", "net")
        stage.add("lowering-cpu-operator", severity, "net/8a8w/SM8750", f"aten.erf stays in {place}")
        stage.finish().write(folder)
    # A command for one model keeps no log.
    assert run_here(diagnose_verb, "--bundle", folder) == 0
    without_log = capsys.readouterr().out
    assert "| command | qnn-ci test_lowering --soc SM8750 |" in without_log
    assert "lowering-cpu-operator  net/8a8w/SM8750\naten.erf stays in ~/net" in without_log
    (folder / "logs").mkdir()
    (folder / "logs" / "test_lowering.log").write_text("Failed to validate op aten_erf with error 0xc26\n")
    assert run_here(diagnose_verb, "--bundle", folder) == 0
    text = capsys.readouterr().out
    for wanted in (
        "| command | qnn-ci test_lowering --soc SM8750 |",
        "| QNN_SDK_ROOT | v2.47.0.260601123456 |",
        "| QNN builds provisioned | 2.47.0.260601, 2.49.40.260810 |",
        "torchao 0.18.0",
        "lowering-cpu-operator  net/8a8w/SM8750\naten.erf stays in ~/net",
        "op-refused",
        "Failed to validate op aten_erf",
    ):
        assert wanted in text, wanted
    assert "qnn-ci one" not in text and "a_later" not in text
