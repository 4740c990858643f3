"""Known failures are explained from real logs, and unknown text is said to be unknown."""

from __future__ import annotations

import io
import json
import zipfile
from pathlib import Path

import pytest

from ci.__main__ import VERBS
from provisioning.base import diagnosis
from provisioning.base.command_line import main
from provisioning.base.errors import ManifestError


def verb(*argv: str) -> int:
    return main("python -m ci", "", {"diagnose": VERBS["diagnose"]}, ["diagnose", *argv])


def test_every_entry_explains_its_own_excerpt_first() -> None:
    first = {entry.id: diagnosis.explain(entry.example)[:1] for entry in diagnosis.knowledge().entries}
    assert first and [name for name, found in first.items() if [each.id for each in found] != [name]] == []


def test_no_pattern_of_an_entry_is_in_a_healthy_log() -> None:
    patterns = [pattern for entry in diagnosis.knowledge().entries for pattern in entry.patterns]
    assert patterns and [each.pattern for each in patterns if each.search(HEALTHY_LOG)] == []


HEALTHY_LOG = """\
[INFO 2026-11-20 08:18:56,087 qnn_sdk_setup.py:60] [QNN] Using QNN SDK at sdk (from QNN_SDK_ROOT)
[WARNING] [Qnn ExecuTorch]: Qnn API version 2.38.0 is used. The version is tested against 2.27.0.
[INFO] [Qnn ExecuTorch]: create QNN Logger with log_level 1
[INFO 2026-11-20 08:18:37,147 qnn_partitioner.py:136] [QnnPartitioner] aten.add.Tensor | True
[INFO] [Qnn ExecuTorch]: Caching: Caching is in SAVE MODE.
[INFO] [Qnn ExecuTorch]: QnnContextCustomProtocol expected magic number: 0x5678abcd but get: 0x2000000
[INFO] [Qnn ExecuTorch]: Destroy Qnn backend
"""


# Public excerpts that no entry was written from, with the id that answers each.
HELD_OUT = [
    (
        '<E> "GridSample" generated: could not create op\n<E> RouterFastRPC graph prepare failed 12\n'
        "<E> Failed to finalize graph (id: 1) with err 1002",
        "op-not-created",
    ),
    (
        "QnnDsp <E> Failed to get serialized binary\n"
        "QnnDsp <E> Failed to get context binary size with err 0x7532\n"
        "Can't determine the size of graph binary to be saved to cache. Error 30002\n"
        "E 00:01:45.674883 executorch:QnnManager.cpp:484] Fail to get context binary.\n"
        "[ERROR] [Qnn ExecuTorch]: QnnDsp <E> Context binary size calculation failed",
        "context-binary-not-generated",
    ),
    (
        '[ ERROR ] A single op, "q::ForceFormat_Crouton", requires 0x2400000 bytes of TCM,'
        " which is greater than the TCM size of 0x800000!\n"
        "[ ERROR ] Finalize Graph for Idx = 0 failed with error = 1002",
        "tcm-exceeded",
    ),
    (
        '[ERROR] "Could not create context from binary for context index = 0 : err 5005"\n'
        '[ERROR] "Create From Binary FAILED!"',
        "context-binary-newer",
    ),
    (
        "E [Qnn ExecuTorch]: QnnDsp <E> Failed to create transport for device, error: 4000\n"
        "E [Qnn ExecuTorch]: QnnDsp <E> Failed to load skel, error: 4000\n"
        "E [Qnn ExecuTorch]: QnnDsp <E> Failed to parse default platform info: 14001",
        "skel-not-loaded",
    ),
    (
        "E0000 re2.cc:237] Error parsing '(\\<\\|2228\\|\\>|\\<\\|2229': invalid UTF-8\n"
        "E tokenizers:pcre2_regex.cpp:36] PCRE2 compilation failed at offset 275",
        "tokenizer-regex",
    ),
    (
        "QNN SetupBackend failed qnn_backend_manager.cc:56 GetQnnInterfaceProvider"
        " Unable to load backend, error: load library failed",
        "qnn-library-not-found",
    ),
    ("##[error]Process completed with exit code 137.", "host-memory"),
    (
        '[ERROR] "Could not create context from binary for context index = 2 : err 1007"\n'
        '[ERROR] "Create From Binary FAILED!"\n[ERROR] "Failed to free device: 14003"',
        "subsystem-restart",
    ),
]


@pytest.mark.parametrize(
    ("log", "name"), HELD_OUT, ids=[f"{n}-{name}" for n, (_, name) in enumerate(HELD_OUT)]
)
def test_an_excerpt_that_no_entry_was_written_from_is_answered(log: str, name: str) -> None:
    assert diagnosis.explain(log)[0].id == name


def test_github_time_stamps_and_colours_hide_nothing() -> None:
    log = "2026-11-20T08:18:37.1234567Z \x1b[31mMemoryError\x1b[0m\r\n"
    assert [found.id for found in diagnosis.explain(log)] == ["host-memory"]


def test_of_a_folder_and_of_an_archive_the_logs_with_a_known_failure_are_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    failing = diagnosis.knowledge().entry("libcxx-missing").example
    folder = tmp_path / "logs" / "test"
    folder.mkdir(parents=True)
    (folder / "1_Set up.txt").write_text(HEALTHY_LOG, encoding="utf-8")
    (folder / "2_Test.txt").write_text(failing, encoding="utf-8")
    archive = tmp_path / "logs_42.zip"
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("0_test.txt", HEALTHY_LOG + failing)
        file.writestr("test/2_Test.txt", failing)
    for given, subject in ((tmp_path / "logs", "2_Test.txt"), (archive, "0_test.txt")):
        assert verb("--json", str(given)) == 0
        (only,) = json.loads(capsys.readouterr().out)["inputs"]
        assert only["subject"].endswith(subject)
        assert [shown["id"] for shown in only["explanations"]] == ["libcxx-missing"]


def test_an_archive_that_is_none_is_a_usage_error(tmp_path: Path) -> None:
    (tmp_path / "logs.zip").write_bytes(b"PK\x03\x04 cut off")
    assert verb(str(tmp_path / "logs.zip")) == 2


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
        (14001, 14001, "QNN_DEVICE_ERROR_INVALID_CONFIG"),
        (0x36B1, 14001, "QNN_DEVICE_ERROR_INVALID_CONFIG"),
        (0x80000406, 0x80000406, "FastRPC: unable to load"),
        (-2147482618, 0x80000406, "FastRPC: unable to load"),
        (0x7000036B1, 14001, "QNN_DEVICE_ERROR_INVALID_CONFIG"),
        (0xC26, 3110, "QNN_OP_PACKAGE_ERROR_VALIDATION_FAILURE"),
    ],
)
def test_a_code_is_named_however_it_is_written(given: int, code: int, name: str) -> None:
    found = diagnosis.code_named(given)
    assert (found.code, found.name) == (code, name)


@pytest.mark.parametrize(
    ("code", "name"),
    [("10008", "gpu-not-on-host"), ("4950", "onnx-context-size"), ("6001", "graph-handle-lost")],
)
def test_a_code_alone_is_explained_even_if_qnn_has_no_name_for_it(
    code: str, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert verb("--json", code) == 0
    (only,) = json.loads(capsys.readouterr().out)["inputs"]
    assert name in [shown["id"] for shown in only["explanations"]]


def test_one_unexplained_input_of_several_fails(tmp_path: Path) -> None:
    log = tmp_path / "run.log"
    log.write_text("all is well\n", encoding="utf-8")
    assert verb("14001", str(log)) == 1


def test_stdin_is_read_without_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    text = io.TextIOWrapper(io.BytesIO(b"\xff Only signed offload is allowed on domain 3.\n"))
    monkeypatch.setattr("sys.stdin", text)
    assert verb() == 0


@pytest.mark.parametrize(
    ("text", "scheme"),
    [
        ("log@16a4w", "16a4w"),
        ("aten.log.default@w4a16", "16a4w"),
        ("quant_dtype=use_16a8w\n[QnnPartitioner] aten.log.default | True\n", "16a8w"),
    ],
)
def test_an_operator_that_loses_accuracy_in_a_scheme_is_named_with_the_command_that_shows_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, scheme: str
) -> None:
    log = tmp_path / "run.log"
    log.write_text(text, encoding="utf-8")
    assert verb(str(log) if "\n" in text else text) == 0
    shown = capsys.readouterr().out
    assert f"log at {scheme} loses accuracy" in shown and f"test_upstream -- values --flow {scheme}" in shown


def test_what_was_not_measured_is_not_explained() -> None:
    assert verb("never_heard_of@8a8w") == 1
    assert verb("log@8a9w") == 2


def test_an_unknown_id_in_unless_is_an_error_of_the_manifest(
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
