"""Known failures are explained from real logs, and unknown text is said to be unknown."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from ci.__main__ import VERBS
from provisioning.base import diagnosis
from provisioning.base.command_line import main
from provisioning.base.errors import ManifestError

ENTRIES = diagnosis.knowledge().entries


def verb(*argv: str) -> int:
    return main("python -m ci", "", {"diagnose": VERBS["diagnose"]}, ["diagnose", *argv])


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.id)
def test_an_entry_explains_its_own_excerpt_first(entry: diagnosis.Entry) -> None:
    assert [found.id for found in diagnosis.explain(entry.example)][:1] == [entry.id]


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.id)
def test_every_pattern_of_an_entry_is_needed_by_no_healthy_log(entry: diagnosis.Entry) -> None:
    assert not [p.pattern for p in entry.patterns if p.search(HEALTHY_LOG)]


HEALTHY_LOG = """\
[INFO 2026-11-20 08:18:56,087 qnn_sdk_setup.py:60] [QNN] Using QNN SDK at sdk (from QNN_SDK_ROOT)
[WARNING] [Qnn ExecuTorch]: Qnn API version 2.38.0 is used. The version is tested against 2.27.0.
[INFO] [Qnn ExecuTorch]: create QNN Logger with log_level 1
[INFO 2026-11-20 08:18:37,147 qnn_partitioner.py:136] [QnnPartitioner] aten.add.Tensor | True
[INFO] [Qnn ExecuTorch]: Caching: Caching is in SAVE MODE.
[INFO] [Qnn ExecuTorch]: QnnContextCustomProtocol expected magic number: 0x5678abcd but get: 0x2000000
[INFO] [Qnn ExecuTorch]: Destroy Qnn backend
"""


def test_a_healthy_log_is_not_explained() -> None:
    assert not diagnosis.diagnose(HEALTHY_LOG).explained


def test_a_device_log_is_explained_by_its_cause_and_not_by_the_chain_after_it() -> None:
    log = """\
[INFO] [Qnn ExecuTorch]: create QNN Logger with log_level 2
[ERROR] [Qnn ExecuTorch]:  <E> Stub lib id mismatch: expected (v2.28.0.241029232508), detected (v2.25.17.2410)
[ERROR] [Qnn ExecuTorch]:  <E> Unable to load Remote symbols 1008
[ERROR] [Qnn ExecuTorch]:  <E> Failed to load skel, error: 4000
[ERROR] [Qnn ExecuTorch]:  <E> Failed to parse platform config: 14001
[ERROR] [Qnn ExecuTorch]: Failed to create device_handle for Backend ID 6, error=14001
"""
    found = diagnosis.explain(log)
    assert [(shown.id, shown.line) for shown in found] == [("stub-mismatch", 2)]


@pytest.mark.parametrize(
    ("given", "code", "name"),
    [
        (14001, 14001, "device configuration"),
        (0x36B1, 14001, "device configuration"),
        (0x80000406, 0x80000406, "FastRPC: unable to load"),
        (-2147482618, 0x80000406, "FastRPC: unable to load"),
        (0x7000036B1, 14001, "device configuration"),
        (0xC26, 3110, "op configuration failed validation"),
    ],
)
def test_a_code_is_named_however_it_is_written(given: int, code: int, name: str) -> None:
    found = diagnosis.code_named(given)
    assert (found.code, found.name) == (code, name)


def test_codes_are_found_where_a_log_calls_them_errors() -> None:
    log = "<E> Failed to create transport for device, error: 4000\nError 0x80000416: open_dev\nport 1002\n"
    assert [code.code for code in diagnosis.codes_in(log)] == [4000, 0x80000416]


def test_every_code_of_an_entry_has_a_name() -> None:
    known = diagnosis.knowledge()
    assert {code for entry in known.entries for code in entry.codes} <= known.codes.keys()


def test_every_named_code_lies_in_a_range() -> None:
    assert all(diagnosis.code_named(code).component for code in diagnosis.knowledge().codes)


def test_a_log_file_is_explained_and_passes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "run.log"
    log.write_text("\n" + diagnosis.knowledge().entry("libcxx-missing").example, encoding="utf-8")
    assert verb(str(log)) == 0
    assert "libcxx-missing  (line 2: [ERROR]" in capsys.readouterr().out


def test_text_that_matches_nothing_says_so_and_fails(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "run.log"
    log.write_text("all is well\n", encoding="utf-8")
    assert verb(str(log)) == 1
    assert "nothing known matches" in capsys.readouterr().out


def test_one_unexplained_input_of_several_fails(tmp_path: Path) -> None:
    log = tmp_path / "run.log"
    log.write_text("all is well\n", encoding="utf-8")
    assert verb("14001", str(log)) == 1


def test_stdin_is_read_without_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    text = io.TextIOWrapper(io.BytesIO(b"\xff Only signed offload is allowed on domain 3.\n"))
    monkeypatch.setattr("sys.stdin", text)
    assert verb() == 0


def test_json_holds_the_same_explanations(capsys: pytest.CaptureFixture[str]) -> None:
    assert verb("--json", "0x80000481") == 0
    (only,) = json.loads(capsys.readouterr().out)["inputs"]
    assert [shown["id"] for shown in only["explanations"]] == ["skel-unsigned"]


def test_a_file_that_is_not_there_is_wrong_use(capsys: pytest.CaptureFixture[str]) -> None:
    assert verb("absent.log") == 2
    assert "absent.log: expected a number or a log" in capsys.readouterr().err


def test_an_unknown_id_in_unless_is_a_fault_of_the_manifest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = diagnosis.MANIFEST.read_text(encoding="utf-8").replace(
        'unless = ["per-channel-input-channels"]', 'unless = ["no-such-entry"]', 1
    )
    manifest = tmp_path / "diagnose.toml"
    manifest.write_text(text, encoding="utf-8")
    monkeypatch.setattr(diagnosis, "MANIFEST", manifest)
    with pytest.raises(ManifestError, match="no-such-entry"):
        diagnosis.knowledge.__wrapped__()
