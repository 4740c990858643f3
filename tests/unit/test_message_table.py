"""Which program prints a message: the table of what is provisioned, and what a newer build changes in it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from ci.inspect import diagnose
from ci.inspect.messages import (
    PrintedMessage,
    messages_of,
    of_store,
    printer_of,
    printers,
    told,
)
from provisioning.base.errors import CheckFailed, EnvironmentLacking
from provisioning.base.findings import Severity
from provisioning.base.stage_run import StageRun
from tests.support.typed import run_here

OLD = b"\x7fELF\0Stub lib id mismatch: expected (%s), detected (%s)\0Failed to load node %d of 12\0"
NEW = b"\x7fELF\0Failed to load node %u of 13\0QNN_GRAPH_ERROR_INVALID_HANDLE: cannot be used here\0"


def of_store_alone(store: Path, words: Sequence[str]) -> list[PrintedMessage]:
    """Without the runners of the clone in which this runs."""
    return of_store(store, words, store)


def tree(store: Path, version: str, content: bytes) -> Path:
    library = store / "trees" / f"qnn-sdk-{version}-{'0' * 12}" / "lib" / "libQnnHtp.so"
    library.parent.mkdir(parents=True)
    library.write_bytes(content)
    return library


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    packages = tmp_path / "environments" / "onnx" / "lib" / "python3.11" / "site-packages"
    (packages / "torchao").mkdir(parents=True)
    (packages / "torchao" / "quant.py").write_text(
        "def f(n):\n    raise ValueError(f'no scale for {n} here')\n"
    )
    (packages / "torchao-0.18.0.dist-info").mkdir()
    (packages / "torchao-0.18.0.dist-info" / "RECORD").write_text("")
    monkeypatch.setenv("QNN_CI_ENVIRONMENTS", str(tmp_path / "environments"))
    monkeypatch.setenv("QNN_CI_STORE", str(tmp_path / "store"))
    tree(tmp_path / "store", "2.47.0.260601", OLD)
    tree(tmp_path / "store", "2.49.40.260810", NEW)
    return tmp_path / "store"


def test_a_message_is_found_with_library_version_and_meaning(store: Path) -> None:
    (row,) = of_store_alone(store, ["lib", "MISMATCH"])
    assert (row.library, row.version, row.meaning) == ("libQnnHtp.so", "QNN 2.47.0.260601", "stub-mismatch")
    (row,) = of_store_alone(store, ["cannot be used"])
    assert row.meaning == "qnn graph error invalid handle"
    (row,) = of_store_alone(store, ["no scale"])
    assert (row.library, row.version) == ("torchao/quant.py", "torchao 0.18.0")
    assert {row.version for row in of_store_alone(store, ["failed to load node"])} == {
        "QNN 2.47.0.260601",
        "QNN 2.49.40.260810",
    }
    with pytest.raises(CheckFailed):
        of_store_alone(store, ["nobody says this"])


def test_a_line_of_a_log_is_traced_to_the_library_that_prints_it(store: Path) -> None:
    row = printer_of(store, ["nothing", "[ERROR] Failed to load node 7 of 12"])
    assert row and (row.library, row.version) == ("libQnnHtp.so", "QNN 2.47.0.260601")
    assert printer_of(store, ["nobody says this"]) is None


def test_the_table_of_a_build_is_made_once_and_that_of_another_build_anew(store: Path) -> None:
    before = {printer.version: messages_of(printer, store) for printer in printers(store, store)}
    for library in (store / "trees").rglob("*.so"):
        library.write_bytes(b"\x7fELF\0Failed to do something else\0")
    assert {printer.version: messages_of(printer, store) for printer in printers(store, store)} == before
    tree(store, "2.51.0.260929", b"\x7fELF\0Failed to do something else\0")
    assert len(of_store_alone(store, ["something else"])) == 1


def test_a_kept_table_that_is_damaged_is_made_anew(store: Path) -> None:
    wanted = of_store_alone(store, [])
    for kept in (store / "cache" / "messages").iterdir():
        kept.write_text("{")
    assert of_store_alone(store, []) == wanted


def test_without_anything_provisioned_the_command_says_what_to_type(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QNN_CI_ENVIRONMENTS", str(tmp_path))
    with pytest.raises(EnvironmentLacking):
        printers(tmp_path, tmp_path)


def test_the_command_prints_words_for_people_and_rows_for_programs(
    store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_here(diagnose, "--messages", "scale") == 0
    assert "torchao/quant.py (torchao 0.18.0)" in capsys.readouterr().out
    assert "5  messages" in told(of_store_alone(store, []), searched=False)
    assert run_here(diagnose, "--messages", "scale", "--json") == 0
    (row,) = json.loads(capsys.readouterr().out)["printed"]
    assert row["key"] == "no scale for … here"


def test_a_bundle_of_reports_is_of_the_stage_that_failed(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, sdk = tmp_path / "reports", tmp_path / "sdk" / "lib" / "x86_64-linux-clang"
    sdk.mkdir(parents=True)
    (sdk / "libQnnSystem.so").write_bytes(b"\x7fELF v2.47.0.260601123456 ")
    monkeypatch.setenv("QNN_SDK_ROOT", str(tmp_path / "sdk"))
    stages = {"one": Severity.WARNING, "test_lowering": Severity.ERROR, "a_later": Severity.ERROR}
    for number, (name, severity) in enumerate(stages.items()):
        began = f"2026-11-24T10:00:0{number}+00:00"
        stage = StageRun(name, "wheels", "x86_64-linux", f"qnn-ci {name} --soc SM8750", started=began)
        place = Path("/", "home", "jane", "net")
        stage.add("lowering-cpu-operator", severity, "net/8a8w/SM8750", f"aten.erf stays in {place}")
        stage.finish().write(folder)
    # A command for one model keeps no log.
    assert run_here(diagnose, "--bundle", folder) == 0
    without_log = capsys.readouterr().out
    assert "| command | qnn-ci test_lowering --soc SM8750 |" in without_log
    assert "lowering-cpu-operator  net/8a8w/SM8750\naten.erf stays in ~/net" in without_log
    (folder / "logs").mkdir()
    (folder / "logs" / "test_lowering.log").write_text("Failed to validate op aten_erf with error 0xc26\n")
    assert run_here(diagnose, "--bundle", folder) == 0
    text = capsys.readouterr().out
    for wanted in (
        "| command | qnn-ci test_lowering --soc SM8750 |",
        "| chips named | SM8750 |",
        "| libQnnSystem.so | v2.47.0.260601123456 |",
        "| QNN builds provisioned | 2.47.0.260601, 2.49.40.260810 |",
        "torchao 0.18.0",
        "lowering-cpu-operator  net/8a8w/SM8750\naten.erf stays in ~/net",
        "op-refused",
        "Failed to validate op aten_erf",
    ):
        assert wanted in text, wanted
    assert "qnn-ci one" not in text and "a_later" not in text
