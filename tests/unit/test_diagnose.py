"""Known failures are explained from real logs, and unknown text is said to be unknown."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable, Set
from html import escape
from io import BytesIO
from itertools import islice, permutations
from pathlib import Path
from textwrap import fill, indent

import pytest

from ci.__main__ import VERBS
from ci.operators.in_logs import inexact_in
from provisioning.base import diagnosis, log_text, patterns, repeats
from provisioning.base.command_line import main
from provisioning.base.settings import ROOT


def verb(*argv: str) -> int:
    return main("python -m ci", "", {"diagnose": VERBS["diagnose"]}, ["diagnose", *argv])


def test_every_entry_explains_its_own_excerpt_first() -> None:
    first = {entry.id: diagnosis.explain(entry.example)[:1] for entry in diagnosis.knowledge().entries}
    assert first and {name: [entry.id for entry in shown] for name, shown in first.items()} == {
        name: [name] for name in first
    }


def test_no_pattern_of_an_entry_is_in_a_healthy_log() -> None:
    patterns = [pattern for entry in diagnosis.knowledge().entries for pattern in entry.keys]
    assert patterns and [pattern.source for pattern in patterns if pattern.search(HEALTHY_LOG.encode())] == []


HEALTHY_LOG = """\
[INFO 2026-11-20 08:18:56,087 qnn_sdk_setup.py:60] [QNN] Using QNN SDK at sdk (from QNN_SDK_ROOT)
[WARNING] [Qnn ExecuTorch]: Qnn API version 2.38.0 is used. The version is tested against 2.27.0.
[INFO] [Qnn ExecuTorch]: create QNN Logger with log_level 1
[INFO 2026-11-20 08:18:37,147 qnn_partitioner.py:136] [QnnPartitioner] aten.add.Tensor | True
[INFO] [Qnn ExecuTorch]: Caching: Caching is in SAVE MODE.
[INFO] [Qnn ExecuTorch]: QnnContextCustomProtocol expected magic number: 0x5678abcd but get: 0x2000000
[INFO] [Qnn ExecuTorch]: Destroy Qnn backend
"""


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
    for logs, subject in ((tmp_path / "logs", "2_Test.txt"), (archive, "0_test.txt")):
        assert verb("--json", str(logs)) == 0
        (only,) = json.loads(capsys.readouterr().out)["inputs"]
        assert only["subject"].endswith(subject)
        assert [shown["id"] for shown in only["explanations"]] == ["libcxx-missing"]


@pytest.mark.parametrize(
    ("log", "told_by", "fault"),
    [
        (
            "E fastrpc_apps_user.c:1622: fastrpc_latency_init failed (Operation not permitted)",
            "FastRPC",
            "permitted",
        ),
        (
            "[E:onnxruntime:, qnn_model.cc:3 Run] QNN graph execute error. Error code: 1234",
            "ONNX Runtime's QNN",
            "execution",
        ),
        ("Genie: the engine's thread could not start", "Genie", "start"),
        ("CMake Error at CMakeLists.txt:7 (find_package): not found", "CMake", "not found"),
        ("MNN OpenCL推理失败", "MNN", "execution"),
        ("MNN 加载模型时内存不足", "MNN", "memory"),
    ],
)
def test_without_a_known_cause_who_speaks_and_the_class_are_told_with_what_to_collect(
    log: str, told_by: str, fault: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "a.log"
    path.write_text(log, encoding="utf-8")
    assert verb("--json", str(path)) == 1
    (only,) = json.loads(capsys.readouterr().out)["inputs"]
    assert only["explanations"] == [] and told_by in only["told_by"] and fault in only["fault"]
    assert verb(str(path)) == 1
    assert only["collect"] in capsys.readouterr().out


def test_of_what_is_explained_the_program_is_told_that_speaks_in_that_line() -> None:
    fastrpc = "D app: adsprpc/src/apps_std_imp.c:382: apps_std_fopen_fd done, error_code 0x0\n"
    dispatch = "E litert: [dispatch_delegate.cc:122] No usable Dispatch runtime found\n"
    alone, beside = diagnosis.read(fastrpc + "E fastrpc failed\n"), diagnosis.read(fastrpc + dispatch)
    assert alone.diagnosis("a log").told_by.startswith("FastRPC")
    assert beside.diagnosis("a log").told_by == "LiteRT"
    # All that is written in Python says so.
    missing = "FileNotFoundError: [Errno 2] No such file or directory: 'flatc'\n"
    assert "ExecuTorch" in diagnosis.read(f"executorch/exir/a.py\n{missing}").diagnosis("a log").told_by


def test_a_healthy_log_is_told_by_nobody() -> None:
    found = diagnosis.read(HEALTHY_LOG.replace("tested against", "checked with")).diagnosis("a log")
    assert (found.told_by, found.fault, found.explained) == ("", "", False)


GREEN = [
    "nox > uv binary not found. Falling back to pip.",
    "plugins: hypothesis-6.170.15, xdist-3.8.0, timeout-2.4.0",
    "[12/38] ran   2.5 s  op_cumprod/fp16/SM8650: fails as the suite expects: run: the runner ended with exit"
    " code 40: Error::OperatorMissing: kernel 'aten::cumprod.out' not found.",
    "tests/unit/test_a.py::test_error_when_failed[CUDA out of memory] PASSED      [ 42%]",
    "[gw1] [ 42%] PASSED tests/unit/test_a.py::test_error_when_failed[No module named qnn]",
    "tests/unit/test_a.py::test_error_when_failed[Failed to load skel, error: 4000] ",
    "11.87s call     tests/test_signing.py::test_hangs[hang-1-did not end within]",
    "tests/test_a.py::test_b SKIPPED (could not import 'qnn': No module named 'qnn')",
    "=================== 8 passed, 1 skipped, 1 xfailed in 0.20s ====================",
    "    Start 1: demo.error_invalid_argument\n"
    '1: Test command: /src/build/demo "invalid argument"\n'
    "1: Test timeout computed to be: 10000000\n"
    "1/5 Test #1: demo.error_invalid_argument ...   Passed    0.00 sec",
    "test tests::panics_on_abort - should panic ... ok",
    "[ RUN      ] Loader.FailsWhenFileNotFound\n[       OK ] Loader.FailsWhenFileNotFound (3 ms)",
    "[0.025s][info][class,load] java.lang.OutOfMemoryError source: shared objects file",
    "[INFO] [Qnn ExecuTorch]: options.cc:151:Option: vtcm_request_timeout = 0",
    "[V:onnxruntime:Default, qnn_backend_manager.cc:519 QnnLogging]  <V> HTP Prepare backend not loaded",
    "[V:onnxruntime:Default, qnn_backend_manager.cc:5 QnnLogging]  <E> unexpected GraphHtpSettings option 66",
    "DEBUG:torchao:Skipping import of cpp extensions: operator torchao::_linear_8bit does not exist",
    "/usr/FindPackageHandleStandardArgs.cmake(459):  set(FPHSA_FAIL_MESSAGE Could NOT find OpenCL )",
    "-- Could NOT find OpenCL (missing: OpenCL_LIBRARY OpenCL_INCLUDE_DIR)",
    "[ 14%] Building CXX object CMakeFiles/error_handling.dir/src/error_handling.cc.o",
    "/usr/bin/c++ -Dx -fPIC -Werror -o CMakeFiles/a.dir/error.cc.o -c /src/error.cc",
    '+ [[ -z x ]] && echo "error: QNN_SDK_ROOT is not set" && exit 1',
    '  if ! df /; then echo "No space left on device"; exit 1; fi',
    "Link requires a different Python (3.11.7 not in: '>=3.12'): https://files.example/a.whl",
    "Genie:     66.8ms [VERBOSE] Could not find cache index tensor for CacheGroup past_",
    "Genie:     53.4ms [  INFO ] Unable to determine stub",
    "Failed to load /src/torchao/_C_mxfp8.cpython-310-x86_64-linux-gnu.so: Could not load this library",
    "GPU models and configuration: Could not collect\nVulnerability Tsx async abort:  Not affected",
    "net.py:15 `return torch.erf(x)` stays on the CPU: No node visitor, unsupported",
    "-rw-r--r-- 1 root root 1234 Nov 27 12:00 /src/torch/include/c10/util/DeadlockDetection.h",
    "copying torch/include/c10/util/error.h -> build/lib/torch/include/c10/util/error.h",
    "aten_sigmoid_default: aten.sigmoid.default | True",
    "[mem 0xc0000000-0xeebfffff] available for PCI devices",
]
"""Lines of what goes well, each of which says a word of errors."""


@pytest.mark.parametrize("green", GREEN)
def test_what_goes_well_tells_of_no_error_and_hides_none_after_it(green: str) -> None:
    found = diagnosis.read(f"{green}\n").diagnosis("log")
    assert ([shown.id for shown in found.explanations], found.trouble) == ([], False)
    failing = diagnosis.knowledge().entry("libcxx-missing").example
    (shown,) = diagnosis.read(f"{green}\n{failing}\n").explanations
    assert (shown.id, shown.line) == ("libcxx-missing", green.count("\n") + 2)
    assert diagnosis.read(f"{green}\n[ERROR] [Qnn ExecuTorch]: it went away\n").diagnosis("log").trouble


def test_of_the_steps_of_a_build_nothing_is_told() -> None:
    step = "[ 14%] Building CXX object CMakeFiles/error_handling.dir/src/error_handling.cc.o\n"
    optional = "-- Could NOT find OpenCL (missing: OpenCL_LIBRARY OpenCL_INCLUDE_DIR)\n"
    assert diagnosis.read(step).diagnosis("log").harmless == ()
    assert diagnosis.read(optional).diagnosis("log").harmless != ()


def test_firmware_that_is_found_at_the_second_try_is_no_cause() -> None:
    failed = "remoteproc0: Direct firmware load for qcom/cdsp.mbn failed with error -2\n"
    assert [shown.id for shown in diagnosis.explain(failed)] == ["dsp-firmware-missing"]
    assert diagnosis.explain(f"{failed}remoteproc0: Booting fw image qcom/cdsp.mbn, size 12345\n") == []


def test_what_goes_well_is_not_read_behind_the_name_of_a_container() -> None:
    log = indent("tests/test_a.py::test_hangs[CUDA out of memory] PASSED\nit ends\n", "runner-1  | ")
    assert diagnosis.explain(log) == []


def test_of_a_log_without_an_error_too_what_to_collect_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whoever asks has seen something fail."""
    harmless = "calculator: fastrpc_config.c:418: Couldn't find file calculator.debugconfig, errno 2\n"
    for text in ("all is well\n", harmless):
        (tmp_path / "run.log").write_text(text, encoding="utf-8")
        verb("--json", str(tmp_path / "run.log"))
        (only,) = json.loads(capsys.readouterr().out)["inputs"]
        verb(str(tmp_path / "run.log"))
        assert only["collect"] and only["collect"] in capsys.readouterr().out


@pytest.mark.parametrize("written", ["Error 0x72: open_dev", "failed with 0x72 for domain 3", "nErr = 0x72"])
def test_numbers_of_fastrpc_without_their_offset_are_named(written: str) -> None:
    (code,) = diagnosis.read(f"adsprpc/src/fastrpc_apps_user.c:4247: {written}").codes
    assert code.code == 0x80000472 and code.known
    assert diagnosis.read(f"net.cpp:4247: {written}").codes == []


def test_a_number_of_a_harmless_line_explains_nothing_and_that_of_another_line_does() -> None:
    harmless = "adsprpc/src/mod_table.c:858: Error 0x2: open_mod_table_handle_invoke failed for handle:0x1\n"
    failing = "adsprpc/src/fastrpc_apps_user.c:1530: Error 0x2: remote_handle64_invoke failed for module m\n"
    assert diagnosis.explain(harmless) == []
    assert [code.code for code in diagnosis.codes_in(harmless)] == [0x80000402]
    (shown,) = diagnosis.explain(harmless + failing)
    assert shown.line == 2


def test_a_device_log_is_explained_by_its_cause_and_not_by_the_chain_after_it() -> None:
    log = """\
[INFO] [Qnn ExecuTorch]: create QNN Logger with log_level 2
[ERROR] [Qnn ExecuTorch]:  <E> Stub lib id mismatch: expected (v2.28.0.241029232508), detected (v2.25.17.2410)
[ERROR] [Qnn ExecuTorch]:  <E> Unable to load Remote symbols 1008
[ERROR] [Qnn ExecuTorch]:  <E> Failed to load skel, error: 4000
[ERROR] [Qnn ExecuTorch]:  <E> Failed to parse platform config: 14001
[ERROR] [Qnn ExecuTorch]: Failed to create device_handle for Backend ID 6, error=14001
"""
    assert [(shown.id, shown.line) for shown in diagnosis.explain(log)] == [("stub-mismatch", 2)]


@pytest.mark.parametrize(
    ("written", "code", "name"),
    [
        (14001, 14001, "QNN_DEVICE_ERROR_INVALID_CONFIG"),
        (0x80000406, 0x80000406, "FastRPC: unable to load"),
        (0x7000036B1, 14001, "QNN_DEVICE_ERROR_INVALID_CONFIG"),
    ],
)
def test_a_code_is_named_however_it_is_written(written: int, code: int, name: str) -> None:
    known = diagnosis.code_named(written)
    assert (known.code, known.name) == (code, name)


@pytest.mark.parametrize(
    ("code", "name"),
    [("10008", "gpu-not-on-host"), ("6001", "graph-handle-lost")],
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


@pytest.mark.parametrize(
    ("text", "scheme"),
    [
        ("log@16a4w", "16a4w"),
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
    # 16a4w gives the same of an operator without weights, whose ranges are tried in 16a8w.
    assert f"log at {scheme} loses accuracy" in shown and "test_upstream -- values --flow 16a8w" in shown


def test_what_was_not_measured_is_not_explained() -> None:
    assert verb("never_heard_of@8a8w") == 1
    assert verb("log@8a9w") == 2


MEBIBYTE = 1 << 20


@pytest.mark.parametrize("word", ["QUJD", " ", "\x1b[", "err", "data type", "[Qnn Partitioner] aten.a"])
def test_a_long_line_takes_no_longer_than_a_log_with_lines(word: str) -> None:
    """A base64 line of 100 kB took 19 s. RE2 is linear; a limit of CPU time ten times what it needs."""
    text = (word * (MEBIBYTE // len(word) + 1)).encode()
    before = time.process_time()
    diagnosis.read(text)
    inexact_in(text)
    assert time.process_time() - before < 5


def test_what_explains_a_finding_of_a_stage_is_not_made_anew_in_each_process() -> None:
    """What makes the table is imported only where it is made."""
    explain = (
        "import sys; from provisioning.base.diagnosis import nearest;"
        "assert nearest('No Snapdragon SOC detected'); print('provisioning.base.clues' in sys.modules)"
    )
    assert diagnosis.nearest("No Snapdragon SOC detected")
    made = subprocess.check_output([sys.executable, "-c", explain], cwd=ROOT, text=True)
    assert made.strip() == "False"


@pytest.mark.parametrize("every", [pytest.param(1, marks=pytest.mark.whole), 10])
def test_each_pattern_is_quick_on_a_line_of_its_own_first_word(every: int) -> None:
    patterns = (pattern for entry in diagnosis.knowledge().entries[::every] for pattern in entry.keys)
    words = {word for pattern in patterns for word in re.findall(r"\w+", pattern.source)[:1]}
    before = time.process_time()
    for word in words:
        diagnosis.read(word.encode() * (16384 // len(word) + 1))
    assert words and time.process_time() - before < len(words) / 5


@pytest.mark.parametrize("source", ["a(?!b)", r"(a)\1", "a(?<=b)"])
def test_a_pattern_that_may_take_for_ever_is_refused(source: str) -> None:
    with pytest.raises(patterns.BadPattern):
        _ = patterns.Pattern(source).compiled


@pytest.mark.parametrize(
    "before",
    [b"x" * (MEBIBYTE - 20), b"x\n" * (MEBIBYTE // 2 - 10), b"x" * 3 * MEBIBYTE, b"", b"\xff" * MEBIBYTE],
)
def test_what_lies_across_two_pieces_is_found_on_its_line(before: bytes) -> None:
    (shown,) = diagnosis.read(before + b" No Snapdragon SOC detected\n" + b"y" * 10).explanations
    assert (shown.id, shown.line) == ("soc-not-detected", 1 + before.count(b"\n"))


def test_a_line_cut_in_two_begins_once() -> None:
    """`^` in the middle of a line of several pieces is no beginning."""
    word = b"a" * 10
    log = BytesIO(word * MEBIBYTE)
    begins = [patterns.Pattern("^a").search(piece.text, piece.start) for piece in diagnosis.pieces_of(log)]
    assert [bool(start) for start in begins] == [True] + [False] * (len(begins) - 1) and len(begins) > 1


STEPS = "".join(f"[INFO] step {number:06} of 999999 returned with code 000\n" for number in range(20000))
"""A megabyte of lines of one shape."""


def test_of_lines_that_repeat_themselves_only_some_are_searched(monkeypatch: pytest.MonkeyPatch) -> None:
    searched, possible = list[int](), patterns.Index.possible

    def counted(
        index: patterns.Index, text: bytes, done: Set[patterns.Pattern] = frozenset()
    ) -> diagnosis.Possible:
        searched.append(len(text))
        return possible(index, text, done)

    monkeypatch.setattr(patterns.Index, "possible", counted)
    diagnosis.read(STEPS)
    assert 4 * sum(searched) < len(STEPS)


@pytest.mark.parametrize(
    ("last", "found"),
    [
        ("No Snapdragon SOC detected", "soc-not-detected"),
        ("[INFO] step 020001 of 999999 returned with code 137", "137"),
        ("No matching\ndistribution found for qnn", "pip-no-version"),
    ],
)
def test_what_is_new_in_a_long_log_is_found_on_its_line(last: str, found: str) -> None:
    before = STEPS.count("\n")
    reading = diagnosis.read(f"{STEPS}{last}\n{STEPS}")
    shown = [(entry.id, entry.line - before) for entry in reading.explanations]
    shown += [(str(code.code), 1) for code in reading.codes]
    assert found in [name for name, line in shown if 1 <= line <= 3]


def test_no_entries_silence_each_other() -> None:
    """A log that all of them are found in would be told none."""
    left = {entry.id: set(entry.unless) - {diagnosis.ANY_OTHER} for entry in diagnosis.knowledge().entries}
    assert any(left.values())
    while free := {name for name, unless in left.items() if unless.isdisjoint(left)}:
        left = {name: unless for name, unless in left.items() if name not in free}
    assert left == {}


def test_a_message_of_two_lines_is_found_where_its_first_came_often() -> None:
    log = "No matching\nfile\n" * 10_000 + "No matching\ndistribution found for qnn\n"
    (shown,) = diagnosis.read(log).explanations
    assert (shown.id, shown.line) == ("pip-no-version", 20_001)


def test_a_message_of_many_lines_is_found_where_all_but_its_last_came_often() -> None:
    *before, last = diagnosis.knowledge().entry("max-pool-without-stride").example.splitlines()
    often = "".join((line + "\n" * 9) * repeats.ENOUGH for line in before)
    example = "\n".join([*before, last])
    (shown,) = diagnosis.read(f"{STEPS}{often}{STEPS}{example}\n").explanations
    assert shown.id == "max-pool-without-stride"


def test_words_that_several_entries_are_known_by_are_found_for_each_of_them_in_a_later_piece_too() -> None:
    quiet = "".join(f"step {number:x} done\n" for number in range(log_text.PIECE // 10))
    known = diagnosis.knowledge()
    pairs = (
        (one, other)
        for pattern, entries in list(known.entries_of.items())
        for one, other in permutations({entry.id: entry for entry in entries}.values(), 2)
        if pattern in one.patterns and pattern in other.patterns
    )
    both = (
        (one, other)
        for one, other in pairs
        if {one.id, other.id} <= {shown.id for shown in diagnosis.explain(f"{one.example}\n{other.example}")}
    )
    few = list(islice(both, 5))
    for one, other in few:
        shown = diagnosis.explain(f"{one.example}\n{quiet}{other.example}")
        assert {one.id, other.id} <= {row.id for row in shown}
    assert few and len(quiet) > log_text.PIECE


def test_lines_that_are_ever_new_are_not_all_remembered() -> None:
    known = repeats.Repeats()
    for start in range(0, 400_000, 20_000):
        text = "".join(f"{number:b}\n" for number in range(start, start + 20_000)).replace("1", "a").encode()
        assert known.without(text) == text
    assert len(known) <= repeats.REMEMBERED + 20_001


@pytest.mark.parametrize("other", ["", "CMake Error at CMakeLists.txt:3 (project):\n"])
def test_what_many_programs_say_counts_only_where_its_own_speaks(other: str) -> None:
    message = "terminate called: map::at:  key not found"
    assert "genie-key-missing" not in [shown.id for shown in diagnosis.explain(other + message)]
    assert diagnosis.explain(f"{other}genie-t2t-run failed\n{message}")[0].id == "genie-key-missing"


@pytest.mark.parametrize("errno", ["Cannot allocate memory", "Connection reset by peer"])
def test_what_fastrpc_lacks_is_not_the_hosts(errno: str) -> None:
    (host,) = diagnosis.explain(f"fork: {errno}")
    on_dsp = diagnosis.explain(
        f"fastrpc_apps_user.c:12: Error 0x1: ioctl failed for domain 3 (errno {errno})"
    )
    assert host.id not in [shown.id for shown in on_dsp]


def test_what_a_line_says_against_an_entry_is_said_of_that_line_alone() -> None:
    slow = "Creating the inference session with QNN HTP takes several minutes each time"
    against = "[INFO] QNN HTP is ready"

    def told(log: str) -> bool:
        return "symptom-slow-start" in [shown.id for shown in diagnosis.explain(log)]

    assert told(f"{against}\n{slow}\n{against}") and not told(f"[INFO] {slow}\n{against}")
    assert told(f"[INFO] {slow}\n{slow}")


def test_what_another_pattern_says_at_the_same_place_is_none() -> None:
    harmless = "No Snapdragon SOC detected, defaulting to the first"
    assert diagnosis.explain(harmless) == []
    (shown,) = diagnosis.explain(f"{harmless}\nNo Snapdragon SOC detected")
    assert shown.line == 2


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ("[ERROR] memRegister ERROR(6001)", "QNN_GRAPH_ERROR_INVALID_HANDLE"),
        ("Failed to finalize graph (id: 1) with err 0x3ea", "QNN_COMMON_ERROR_MEM_ALLOC"),
        ("context create failed, err = 1002", "QNN_COMMON_ERROR_MEM_ALLOC"),
        ("QNN graph execute error. Error code: 1100", "QNN_COMMON_ERROR_GENERAL"),
        ("calculator example failed with nErr = -2147482112", "FastRPC: transport"),
        ("ggml-hex: dspqueue_read failed: 0x0000002e", "FastRPC: interrupted"),
        ("Error 0x72: apps_dev_init: untrusted app", "FastRPC: connection refused"),
        ("Process completed with exit code 137.", "SIGKILL"),
        ("Process finished with exit code -1073741819 (0xC0000005)", "access violation"),
        ("the job returned with status -11", "SIGSEGV"),
        ("open failed (errno 13, Permission denied)", "permission denied"),
        ("OSError: [Errno 28] No space left on device", "no space left"),
        ("OSError: [WinError 126] The specified module could not be found", "a DLL, or one that it needs"),
        (
            "E 00:00:01 executorch:method.cpp:114] Init failed for backend QnnBackend: 0x30",
            "the delegate is not",
        ),
        ("Failed to create the Genie Dialog, obtain GENIE_STATUS_ERROR_GENERAL(-1)", "general failure"),
        ("Failed to create the dialog.   status = -4", "invalid configuration"),
        ("createDevice: errorCode: 14001", "QNN_DEVICE_ERROR_INVALID_CONFIG"),
        ("deviceCreate: Qnn_Status 0x36b1", "QNN_DEVICE_ERROR_INVALID_CONFIG"),
        ("QnnContext_createFromBinary rc = 0x138D", "QNN_CONTEXT_ERROR_CREATE_FROM_BINARY"),
        ("error_code=500; error_message=x. error_component=System Configuration", "runtime that was asked"),
        ("error_code=908; error_message=x. error_component=Dsp Runtime", "connection to the DSP"),
        ("SNPE failed, error code: 312", "format is of another version"),
        ("fastrpc_apps_user.c:1: Error 0x80000406: remote_handle64_open failed", "FastRPC: unable to load"),
        ("WinError 1114: a routine failed", "a DLL could not be initialized"),
        ("HRESULT 0x8007007E", "a DLL, or one that it needs"),
        ("worker exited with code 0xC0000374", "the heap is damaged"),
        ("Process exited with status -6", "SIGABRT"),
    ],
)
def test_a_number_is_named_in_the_spelling_of_the_program_that_speaks(line: str, named: str) -> None:
    assert any(named in code.name for code in diagnosis.read(line).codes), diagnosis.read(line).codes


def test_a_number_that_two_programs_use_is_named_by_the_one_that_speaks() -> None:
    (code,) = diagnosis.read("error_code=1002; error_message=x. error_component=GPU Runtime").codes
    assert code.component == "SNPE" and "QNN" not in code.name


@pytest.mark.parametrize("number", ["0x2", "0x00000002", "0x80000402"])
def test_a_number_of_fastrpc_is_named_by_the_words_of_its_own_line(number: str) -> None:
    line = f"fastrpc_apps_user.c:3040: Error {number}: open_shell failed for domain 3 (errno"
    (code,) = diagnosis.read(f"{line} No such file or directory)").codes
    assert code.component == "errno"
    (code,) = diagnosis.read(f"{line} Success)").codes
    assert code.name == "FastRPC: out of memory"
    before = "fastrpc_apps_user.c:1645: Error 0xd: open_dev failed (errno Permission denied)"
    both = diagnosis.read(f"{before}\n{line} No such file or directory)").codes
    assert {code.component for code in both} == {"errno"}


@pytest.mark.parametrize(
    "line",
    [
        "the commit 0x138d0000 returned",
        "retrieved 14001 rows",
        "rcp 1002 packets",
        "the error budget is 5000 USD",
        "code 137 of the building",
        "opened window 1114",
        "error: 1002 files are missing",
        "failed 1008 of 2000 tests",
        "status 5005 ms",
        "the shape is (1, 1002)",
        "exit the loop after 137 rounds with luck",
        "Listening on port 5005",
        "version 0808 failed 08080",
        "page 13 of errno's manual",
        "the model has -1 as status of dialog parts",
    ],
)
def test_the_same_number_in_a_sentence_about_something_else_is_none(line: str) -> None:
    assert diagnosis.read(line).codes == []


def test_an_exit_code_alone_is_no_cause_in_a_log_but_explains_itself_when_asked_for(tmp_path: Path) -> None:
    log = tmp_path / "run.log"
    log.write_text("step failed\nProcess completed with exit code 124.\n", encoding="utf-8")
    assert verb(str(log)) == 1
    assert verb("124") == 0


def test_lines_that_only_look_like_errors_are_told_to_be_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    probe = (
        "fastrpc_cap.c:133: Warning 0xffffffff: fastrpc_get_cap failed to get attribute 131 for domain 3\n"
    )
    log = tmp_path / "run.log"
    log.write_text(probe, encoding="utf-8")
    assert verb(str(log)) == 0
    shown = capsys.readouterr().out
    assert "no error: the DSP is asked what it can do" in shown and "kind of fault" not in shown
    log.write_text(probe + "remote_handle_open failed for the skel\n", encoding="utf-8")
    assert verb(str(log)) == 1
    assert "told by: FastRPC" in capsys.readouterr().out


def test_a_newer_qnn_is_blamed_only_where_two_builds_are_named() -> None:
    refused = "[ERROR] [Qnn ExecuTorch]: Can't create context from binary. Error 5000.\n"
    log = "QNN Backend Build Id: v2.31.0.250130151446_114721\n"
    assert [shown.id for shown in diagnosis.explain(log + refused)] == ["context-binary-refused"]
    two = log + "made by v2.47.0.260601123456\n"
    assert [shown.id for shown in diagnosis.explain(two + refused)] == ["context-binary-newer"]


def test_a_bundle_for_an_issue_has_what_it_needs_and_no_secrets(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_TOKEN", "opensesame42")
    log, library = tmp_path / "run.log", tmp_path / "libs" / "libQnnHtp.so"
    library.parent.mkdir()
    library.write_bytes(b"\x7fELF....v2.47.0.260601123456_1....")
    log.write_text(
        "".join(f"step {number}\n" for number in range(500))
        + "using ghp_0123456789abcdefghij and opensesame42 in /home"
        + "/jane/run and C:\\Users\\jane\\run\n"
        + "curl -H 'Authorization: Bearer abcdef.ghijkl' https://jane:pw12@files.example/a?sig=hidden\n"
        + '{"password": "hunter2222", "mail": "jane@mail.example"}\n'
        + "-----BEGIN PRIVATE KEY-----\nMIIsecretsecret\n-----END PRIVATE KEY-----\n"
        + "chip SM8650\n````\nStub lib id mismatch: expected (v2.28.0.241029232508_1),"
        + " detected (v2.25.17.241017130936_1)\n"
        + "".join(f"after {number}\n" for number in range(500)),
        encoding="utf-8",
    )
    assert verb("--bundle", str(log), str(library.parent)) == 0
    text = capsys.readouterr().out
    assert "stub-mismatch" in text and "SM8650" in text and "v2.47.0.260601123456_1" in text
    assert "2.28.0.241029232508" in text and "The log, lines 449 to 648:" in text and "`````text" in text
    for secret in (
        "ghp_0",
        "opensesame42",
        "jane",
        "abcdef.ghijkl",
        "pw12",
        "hidden",
        "hunter2222",
        "MIIsecret",
    ):
        assert secret not in text, secret
    assert str(tmp_path) not in text or not str(tmp_path).startswith("/home")


def test_a_bundle_needs_a_log(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert verb("--bundle", str(tmp_path)) == 2
    assert "expected a log first" in capsys.readouterr().err


def test_messages_that_a_newer_build_gained_and_lost_are_counted_with_the_rules_that_match_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    old.mkdir()
    new.mkdir()
    (old / "libQnnHtp.so").write_bytes(
        b"\x7fELF\0Stub lib id mismatch: expected (%s), detected (%s)\0Failed to load node %d of 12\0"
        b"v2.31.0.250130151446\0__not_a_message__\0"
    )
    (new / "libQnnHtp.so").write_bytes(b"\x7fELF\0Failed to load node %u of 13\0Cannot map the weights now\0")
    (new / "graph.py").write_text(
        "def f(n):\n    raise ValueError(f'node {n} has no shape')\n", encoding="utf-8"
    )
    assert verb("--messages-of", str(new), "--messages-before", str(old)) == 0
    shown = capsys.readouterr().out
    assert "3 messages in 2 files" in shown
    assert "gained 2, lost 1; rules that match none any more: 1\n  stub-mismatch" in shown
    assert verb("--messages-of", str(old), "--json") == 0
    table = json.loads(capsys.readouterr().out)
    assert table["builds"] == ["v2.31.0.250130151446"] and "Failed to load node … of …" in table["messages"]


def test_a_folder_that_can_print_nothing_is_refused(tmp_path: Path) -> None:
    assert verb("--messages-of", str(tmp_path)) != 0
    assert verb("--messages-before", str(tmp_path)) == 2
    assert verb("--messages-of", str(tmp_path / "none")) == 2


REFUSED = """\
[QNN Partitioner Op Support]: aten.erf.default | False
[ERROR] [Qnn ExecuTorch]: QnnDsp <E> Request feature arch with value 85 unsupported by this build of QNN here
KeyError: 'aten.bitwise_not.default'
"""


def soft_wrapped(text: str) -> str:
    return text.replace("with value 85 ", "with\n    value 85 ")


def hard_wrapped(text: str) -> str:
    return "\n".join(line[at : at + 70] for line in text.splitlines() for at in range(0, len(line), 70))


def as_json_lines(text: str) -> str:
    return "\n".join(json.dumps({"log": line + "\n", "level": "\tinfo"}) for line in text.splitlines())


@pytest.mark.parametrize(
    "written",
    [
        lambda text: text.replace("\n", "\r\n").encode(),
        lambda text: text.encode("utf-16"),
        lambda text: text.upper().encode(),
        lambda text: "".join(
            f"2026-11-20T08:18:37.1487512Z \x1b[31m{line}\x1b[0m\n" for line in text.splitlines()
        ).encode(),
        lambda text: "".join(
            f"09-27 03:31:40.854 28552 28862 E app: {line}\n" for line in text.splitlines()
        ).encode(),
        lambda text: soft_wrapped(text).encode(),
        lambda text: hard_wrapped(text).encode(),
        lambda text: as_json_lines(text).encode(),
        lambda text: indent(text, "> > ").encode(),
        lambda text: indent(text, "runner-1  | ").encode(),
        lambda text: text.replace(" ", "\N{NO-BREAK SPACE}").encode(),
        lambda text: text.replace("arch", "ar\N{ZERO WIDTH SPACE}ch").encode(),
    ],
    ids=[
        "crlf",
        "utf-16",
        "case",
        "github",
        "logcat",
        "soft-wrapped",
        "hard-wrapped",
        "json-lines",
        "quoted",
        "container",
        "blanks-that-do-not-break",
        "without-width",
    ],
)
def test_a_failure_is_explained_however_the_log_was_written(written: Callable[[str], bytes]) -> None:
    found = [shown.id for shown in diagnosis.read(written(REFUSED)).explanations]
    assert found[0] == "arch-feature-unsupported" and "op-refused" in found


def test_the_name_of_a_container_is_no_part_of_a_line_in_a_log_of_several_pieces() -> None:
    steps = [f"step {number:06} of the work" for number in range(log_text.PIECE // 30)]
    missed = []
    for more in range(len(steps[0]) + 13):  # a piece ends at each place of a line
        log = indent("\n".join(["x" * more, *steps[:100], "Waiting for EDL device", *steps]), "runner-1  | ")
        shown = diagnosis.explain(log)
        missed += [more] if [(row.id, row.line) for row in shown] != [("edl-no-device", 102)] else []
    assert missed == []


@pytest.mark.parametrize("log", ["ERROR | it went\nERROR | away\n", "FATAL | it went", "   \n\t\n"])
def test_what_says_that_it_went_wrong_is_no_margin(log: str) -> None:
    assert diagnosis.read(log).diagnosis("log").trouble == bool(log.strip())


def test_one_line_of_a_build_tool_is_no_quotation() -> None:
    (shown,) = diagnosis.explain("> Task :app:compileDebugKotlin FAILED")
    assert shown.text.startswith("> Task")


@pytest.mark.parametrize("margin", ["> ", "> >", "\t  ", "runner-1  | ", "> runner-1  | "])
def test_what_begins_a_line_is_found_behind_what_stands_before_each_line(margin: str) -> None:
    log = indent("\nqdl programmer.elf\nWaiting for EDL device\n", margin, lambda line: True)
    assert [(shown.id, shown.line) for shown in diagnosis.explain(log)] == [("edl-no-device", 3)]


SOURCES = {
    "logcat": ["11-20 08:18:56.087  1234  5678 E qdl     : ", "11-20 08:18:56.090  1234  5679 I qdl: "],
    "android studio": [
        "2026-11-20 08:18:56.087 1234-5678  qdl   com.example.app  E  ",
        "2026-11-20 08:18:57.007 1234-5679  qdl   com.example.app  I  ",
    ],
    "logcat's short form": ["E/qdl     ( 1234): ", "I/qdl(11234): "],
    "dmesg": ["[    9.000001] ", "[ 1234.567890][ T5678] "],
    "syslog": ["Nov 20 08:18:56 board qdl[1234]: ", "Nov  2 08:18:56 board kernel: "],
    "jenkins": ["[2026-11-20T08:18:56.087Z] ", "[2026-11-20T08:18:56.090Z] "],
    "gitlab": ["2026-11-20T08:18:56.087123Z 01O ", "2026-11-20T08:18:56.090123Z 01O+"],
}


@pytest.mark.parametrize("sources", SOURCES.values(), ids=SOURCES)
def test_what_begins_a_line_is_found_behind_what_names_its_source(sources: list[str]) -> None:
    log = f"{sources[0]}qdl programmer.elf\n{sources[1]}Waiting for EDL device\n"
    assert [(shown.id, shown.line) for shown in diagnosis.explain(log)] == [("edl-no-device", 2)]


@pytest.mark.parametrize("other", ["qdl programmer.elf", "step-02 | qdl programmer.elf"])
def test_a_mark_that_some_lines_have_belongs_to_them(other: str) -> None:
    assert diagnosis.explain(f"step-1 | Waiting for EDL device\n{other}\n") == []


@pytest.mark.parametrize("escaped", [escape, lambda text: escape(escape(text))], ids=["once", "twice"])
def test_what_a_web_page_escapes_is_read_as_it_was_written(escaped: Callable[[str], str]) -> None:
    log = "ImportError: cannot import name 'cached_download' from 'huggingface_hub'"
    assert [shown.id for shown in diagnosis.explain(escaped(log))] == ["hub-names-gone"]


def test_what_json_escapes_is_read_as_it_was_written() -> None:
    log = json.dumps({"message": 'dlopen failed: library "libQnnHtp.so" not found', "level": "error"})
    assert [shown.id for shown in diagnosis.explain(log)] == ["qnn-library-not-in-app"]


@pytest.mark.parametrize("cut", ["x" * 80 + "\n" + "y" * 20, fill("a long line of words " * 5, 70)])
def test_lines_keep_their_numbers_where_others_were_wrapped_before(cut: str) -> None:
    log = cut + "\nNo Snapdragon SOC detected\n"
    assert [shown.line for shown in diagnosis.explain(log)] == [3]


@pytest.mark.parametrize("source", ["", "11-20 08:18:56.087  1234  5678 E app : "])
@pytest.mark.parametrize("width", [64, 80])
def test_a_line_that_was_wrapped_between_words_is_whole_again(width: int, source: str) -> None:
    words = "apps_std_fopen_with_env failed with 0xd for libnet_skel.so in that folder (Permission denied)"
    log = fill(source + words, width, break_on_hyphens=False)
    log = f"{'=' * width}\nA line before\n{log}\nThe next line\n"
    assert [shown.id for shown in diagnosis.explain(log)] == ["skel-folder-forbidden"]


@pytest.mark.parametrize("before", [0, log_text.PIECE - 40, 3 * log_text.PIECE])
def test_a_long_log_that_a_terminal_cut_has_its_lines_whole(before: int) -> None:
    steps = "".join(
        f"step {number:06} of the work that took {'9' * (number % 90)} ms\n" for number in range(9000)
    )
    failure = (
        "apps_std_fopen_with_env failed with 0xd for libnet_skel.so in that folder (Permission denied)\n"
    )
    at = steps.find("\n", before) + 1
    cut = hard_wrapped(steps[:at] + failure + steps[at:])
    (line,) = [number for number, line in enumerate(cut.splitlines(), 1) if "apps_std_fopen" in line]
    assert [(shown.id, shown.line) for shown in diagnosis.explain(cut)] == [("skel-folder-forbidden", line)]


@pytest.mark.parametrize("lengths", [1, 5], ids=["of one length", "of nearly one length"])
def test_rows_that_nothing_cut_are_not_joined(lengths: int) -> None:
    row = "Permission denied: none; step {:08}{} with apps_std_fopen of the file libnet_skel.so"
    rows = (row.format(number, "." * (number % lengths)) for number in range(3000))
    assert diagnosis.explain("\n".join(rows)) == diagnosis.explain(row.format(0, ""))


@pytest.mark.parametrize(
    ("log", "name"),
    [
        ("compile\n已杀死\n", "host-memory"),
        ("./run.sh: Zeile 3:  4711 Getötet   ./compile", "host-memory"),
        ("OSError: Auf dem Gerät ist kein Speicherplatz mehr verfügbar", "disk-full"),
        ("Creating the session\nSpeicherzugriffsfehler\n", "segmentation-fault"),
        ("./run.sh: line 3: qnn-net-run: Befehl nicht gefunden", "qairt-tool-absent"),
        ("x.c:3: error: ‘struct fastrpc_buf’ has no member named ‘dma_addr’", "header-of-another-version"),
    ],
)
def test_what_a_program_says_in_another_language_is_understood(log: str, name: str) -> None:
    assert [shown.id for shown in diagnosis.explain(log)][:1] == [name]


@pytest.mark.parametrize("before", ["", "ü "])
def test_each_phrase_of_another_language_is_read_in_english(before: str) -> None:
    known = diagnosis.knowledge()
    phrases = known.words.values()
    assert [
        said.decode() for said, _ in phrases if said in diagnosis.in_english(before.encode() + said)
    ] == []


def test_what_is_seldom_the_fault_comes_after_what_is() -> None:
    log = """\
[ERROR] [Qnn ExecuTorch]:  <E> Failed to validate op aten_erf_default with error 0xc26
[ERROR] [Qnn ExecuTorch]:  <E> fastrpc memory map for fd: 33 with length: 817889280 failed with error: 0x1
"""
    assert [shown.id for shown in diagnosis.explain(log)] == ["rpc-memory-weights", "op-refused"]


TWO_FAILURES = """\
[ERROR] [Qnn ExecuTorch]:  <E> Stub lib id mismatch: expected (v2.28.0.241029232508), detected (v2.25.17.2410)
OSError: [Errno 28] No space left on device
"""


def test_one_answer_is_told_of_a_log_and_what_else_was_found_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "run.log"
    log.write_text(TWO_FAILURES, encoding="utf-8")
    first, other = (diagnosis.knowledge().entry(name) for name in ("stub-mismatch", "disk-full"))
    assert verb(str(log)) == 0
    shown = capsys.readouterr().out
    assert first.fix in shown and "disk-full (line 2)" in shown
    assert other.cause not in shown and other.fix not in shown
    assert verb("--json", str(log)) == 0
    (only,) = json.loads(capsys.readouterr().out)["inputs"]
    assert [answer["id"] for answer in only["explanations"]] == ["stub-mismatch"]
    assert [(answer["id"], answer["line"]) for answer in only["later"]] == [("disk-full", 2)]


@pytest.mark.parametrize("order", [1, -1])
def test_what_only_reports_that_a_step_before_it_failed_is_told_if_no_cause_is_known(order: int) -> None:
    end = "[ERROR] [Qnn ExecuTorch]: Failed to create device_handle for Backend ID 6, error=14001\n"
    assert [shown.id for shown in diagnosis.explain(end)] == ["device-invalid-config"]
    cause = 'dlopen failed: library "libcdsprpc.so" not found\n'
    assert [shown.id for shown in diagnosis.explain("".join([cause, end][::order]))] == ["cdsprpc-missing"]


def test_a_message_of_several_causes_is_told_as_what_it_means_with_what_to_collect(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    several = [entry for entry in diagnosis.knowledge().entries if entry.several]
    assert several
    log = tmp_path / "run.log"
    for written, decided in (
        ("FastRPC: qnn_open failed, 0x80000406\n", False),
        (diagnosis.knowledge().entry("disk-full").example, True),
    ):
        log.write_text(written, encoding="utf-8")
        assert verb("--json", str(log)) == 0
        (only,) = json.loads(capsys.readouterr().out)["inputs"]
        assert only["explanations"][0]["decided"] is decided
        assert verb(str(log)) == 0
        shown = capsys.readouterr().out
        assert ("does not decide" in shown) is not decided and ("collect next:" in shown) is not decided


def test_how_a_program_ended_is_told_only_if_nothing_is_known_of_why() -> None:
    crash = "Segmentation fault (core dumped)\n"
    assert [shown.id for shown in diagnosis.explain(crash)] == ["segmentation-fault"]
    refused = "[ERROR] [Qnn ExecuTorch]: QNN context cache is invalid.\n"
    assert [shown.id for shown in diagnosis.explain(refused + crash)] == ["context-binary-refused"]


def test_a_rule_of_another_programs_number_has_its_name() -> None:
    known = diagnosis.knowledge()
    named = {(row.of, code) for row in known.numbers for code in row.names}

    assert not [
        (entry.id, of, code)
        for entry in known.entries
        for of, code in entry.codes
        if of != diagnosis.QNN and (of, code) not in named
    ]


def test_what_a_number_means_is_told_only_if_no_cause_is_known() -> None:
    number = "[ERROR] [Qnn ExecuTorch]: Failed to create QNN context for Backend ID 6, error=1002\n"
    assert [shown.id for shown in diagnosis.explain(number)] == ["code-memory"]
    assert [shown.id for shown in diagnosis.explain(number.replace("1002", "QNN_COMMON_ERROR_SYSTEM"))] == [
        "code-system"
    ]
    cause = diagnosis.knowledge().entry("stub-mismatch").example
    assert [shown.id for shown in diagnosis.explain(number + cause)] == ["stub-mismatch"]
    assert diagnosis.explain("my own program: error 1002\n") == []


def test_a_number_is_explained_where_it_comes_first_however_it_is_written() -> None:
    log = "GenieDialog_create: status -1\nGenieDialog_query ended: GENIE_STATUS_ERROR_QUERY_FAILED\n"
    assert [(shown.id, shown.line) for shown in diagnosis.explain(log)] == [("genie-number", 1)]


def test_the_failure_that_made_another_comes_first() -> None:
    log = """\
<E> Failed to map weights buffer to device!
<E> createUnsignedPD unsigned PD or DSPRPC_GET_DSP_INFO not supported by HTP
"""
    assert diagnosis.explain(log)[0].id == "rpc-memory"


def test_an_entry_is_told_only_if_all_that_it_asks_for_is_in_the_log() -> None:
    path = "export LD_LIBRARY_PATH=/data/local/tmp:/vendor/lib64\n"
    assert diagnosis.explain(path) == []
    failed = "x\n" * MEBIBYTE + "ggml-hex: failed to open session 0 : error 0x80000406\n"
    assert diagnosis.explain(path + failed)[0].id == "vendor-libraries-first"
