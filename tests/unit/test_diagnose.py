"""Logs and numbers explained: a known failure by its own rule, a healthy log by none."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ci.__main__ import VERBS
from ci.diagnose.logs import explain_number, read
from ci.diagnose.rules import code_named, failure_rules
from provisioning.base import toml
from provisioning.base.command_line import main
from provisioning.base.settings import MANIFESTS
from provisioning.base.stage_run import StageRun
from provisioning.known_faults import load_faults
from tests.support.own_manifests import own_failure_rules

HEALTHY = Path(__file__).with_name("healthy_logs.txt")
"""Made by the tools themselves: pip, uv, CMake, ninja, make, apt, pytest, our gate and others."""
STUB = failure_rules()["stub-mismatch"].example
END = "[ERROR] [Qnn ExecuTorch]: Failed to create device_handle for Backend ID 6, error=14001"


def verb(*words: str | Path) -> int:
    return main("python -m ci", "", {"diagnose": VERBS["diagnose"]}, ["diagnose", *map(str, words)])


def first(text: str | bytes) -> str:
    return next((shown.id for shown in read(text).explanations), "")


def healthy_logs() -> Iterator[tuple[str, str]]:
    for section in re.split("^==== ", HEALTHY.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]:
        name, _, text = section.partition("\n")
        yield name, text


@pytest.mark.parametrize("part", [10, pytest.param(1, marks=pytest.mark.whole)])
def test_each_rule_explains_its_own_example_first(part: int) -> None:
    """Of all, which takes a second for a hundred of them, every night."""
    names = [*failure_rules()][::part]
    assert {name: first(failure_rules()[name].example) for name in names} == {name: name for name in names}


def test_no_two_rules_have_one_name() -> None:
    files = sorted((MANIFESTS / "diagnose").glob("*.toml"))
    names = [row["id"] for file in files for row in toml.loads(file.read_text(encoding="utf-8"))["rule"]]
    assert [name for name, count in Counter(names).items() if count > 1] == []


def test_a_misspelt_key_of_a_rule_does_not_count_for_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = 'id = "x"\npatterns = ["x"]\ncause = "x"\nfix = "x"\nsource = "x"\nexample = "x"\nsevral = true\n'
    (tmp_path / "htp.toml").write_text(f"[[rule]]\n{row}")
    own_failure_rules(monkeypatch, tmp_path)
    with pytest.raises(TypeError, match="sevral"):
        failure_rules()


def test_rules_name_rules_that_are_there_and_do_not_silence_each_other() -> None:
    rules = failure_rules()
    for rule in rules.values():
        assert rule.unless <= rules.keys(), rule.id
        assert not any(rule.id in rules[other].unless for other in rule.unless), rule.id


def test_a_healthy_log_is_one_line_and_exit_code_0(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    logs = dict(healthy_logs())
    assert len(logs) >= 100
    assert {name: read(text).trouble for name, text in logs.items() if read(text).trouble} == {}
    log = tmp_path / "build.log"
    log.write_text(logs["summary-without-failures"], encoding="utf-8")
    assert verb(log) == 0
    assert len(capsys.readouterr().out.splitlines()) == 1


@pytest.mark.parametrize("name", ["cmake-configure-log", "pytest-v", "ninja-v", "logcat-app-start", "uv-v"])
def test_a_failure_behind_a_healthy_log_is_found(name: str) -> None:
    text = dict(healthy_logs())[name]
    shown = read(f"{text.rstrip()}\n{STUB}\n").explanations[0]
    assert shown.id == "stub-mismatch"
    assert shown.line == len(text.rstrip().splitlines()) + 1


@pytest.mark.parametrize(
    "line",
    [
        "[ERROR] [Qnn ExecuTorch]: Context 0 failed to restore",
        "E 00:00:00.012345 executorch:program.cpp:310] something that no rule knows",
        "212 passed, 1 failed, 0 errors",
        "step 0 failed",
        "QnnDsp <E> it broke somehow",
        "error: no such thing as this",
        "java.lang.IllegalStateException: closed",
        "Segmentation fault (core dumped)",
        "the process ended with exit code 3",
        "Illegal instruction",
        "terminate called after throwing an instance of 'std::out_of_range'",
        "Non-zero status code returned while running Cast node",
        "Makefile:2: *** The build is gone. Stop.",
        "ld: main.o: file truncated",
        "The C compiler is not able to compile a simple test program.",
    ],
)
def test_trouble_that_no_rule_knows_is_not_called_healthy(line: str) -> None:
    found = read(f"all is well\n{line}\n")
    assert found.trouble and found.explained == bool(found.explanations)


def test_the_answer_is_the_earliest_cause_and_later_ones_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "a.log"
    log.write_text(f"{STUB}\n{END}\n", encoding="utf-8")
    assert verb("--json", log) == 0
    (found,) = json.loads(capsys.readouterr().out)["inputs"]
    assert [shown["id"] for shown in found["explanations"]] == ["stub-mismatch"]
    assert found["explanations"][0]["line"] == 1
    assert 14001 in [code["code"] for code in found["codes"]]


@pytest.mark.parametrize(
    "written",
    [
        lambda text: text.encode("utf-16"),
        lambda text: text.replace("\n", "\r\n").encode(),
        lambda text: re.sub("^", "2026-11-27T10:00:00.1234567Z ", text, flags=re.MULTILINE).encode(),
        lambda text: re.sub("^", "\x1b[31m", text, flags=re.MULTILINE).encode(),
        lambda text: re.sub("^", "> ", text, flags=re.MULTILINE).encode(),
        lambda text: re.sub("^", "runner-1  | ", text, flags=re.MULTILINE).encode(),
        lambda text: text.replace("<", "&lt;").replace(">", "&gt;").replace('"', "&quot;").encode(),
        lambda text: ("a step of a build\n" * 400_000 + text).encode(),
        lambda text: text.replace("Stub lib", "STUB LIB").encode(),
        lambda text: re.sub(
            "^", "11-27 10:00:02.011  4711  4730 E app : ", text, flags=re.MULTILINE
        ).encode(),
    ],
    ids=[
        "utf-16",
        "crlf",
        "github",
        "colours",
        "quoted",
        "container",
        "escaped",
        "long",
        "capitals",
        "logcat",
    ],
)
def test_a_failure_is_explained_however_the_log_was_written(written: Callable[[str], bytes]) -> None:
    assert first(written(f"{STUB}\n{END}\n")) == "stub-mismatch"


@pytest.mark.parametrize(
    ("said", "name"),
    [("bash: ./run: 权限不够", "Permission denied"), ("./a.sh: Zeile 1: 42 Getötet", "Killed")],
)
def test_what_a_program_says_in_another_language_is_trouble(said: str, name: str) -> None:
    assert name in read(said).trouble[0]


@pytest.mark.parametrize(
    ("written", "code", "name"),
    [
        (14001, 14001, "QNN_DEVICE_ERROR_INVALID_CONFIG"),
        (-2147482618, 0x80000406, "FastRPC: unable to load"),
        (0x36B1, 14001, "QNN_DEVICE_ERROR_INVALID_CONFIG"),
        (0x1234_0000_36B1, 14001, "QNN_DEVICE_ERROR_INVALID_CONFIG"),
        (99999, 99999, ""),
        (1000, 1000, "QNN_COMMON_ERROR_NOT_SUPPORTED"),
        (-1, 0xFFFF_FFFF, ""),
        (-(1 << 31), 1 << 31, ""),
        (0xFFFF_FFFF, 0xFFFF_FFFF, ""),
        (1 << 32, 0, ""),
    ],
)
def test_a_code_is_named_however_it_is_written(written: int, code: int, name: str) -> None:
    assert (code_named(written).code, code_named(written).name) == (code, name)


def test_a_number_alone_is_explained_or_said_not_to_be_known(capsys: pytest.CaptureFixture[str]) -> None:
    assert verb("14001", "0x80000406") == 0
    assert explain_number(14001).explanations
    assert verb("99999") == 1
    assert "not known" in capsys.readouterr().out


def test_an_empty_log_is_called_empty(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "run.log").touch()
    assert verb(str(tmp_path / "run.log")) == 2
    assert "is empty" in capsys.readouterr().err


def test_a_misspelt_operator_is_answered_with_the_near_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert verb("geluu@8a8w") == 2
    assert "gelu@8a8w" in capsys.readouterr().err


def test_an_operator_without_its_precision_is_shown_with_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert verb("gelu") == 2
    assert "gelu@fp16" in capsys.readouterr().err


def test_what_is_no_log_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "net.py").write_text("import torch\n")
    StageRun("compile", "wheels", "").finish().write(tmp_path)
    answers: dict[str | Path, str] = {
        tmp_path / "compile.json": "diagnose -- --bundle",
        tmp_path / "net.py": "run.log",
        "https://example.com/build.log": "curl -LO",
    }
    for name, fix in answers.items():
        assert verb(name) == 2
        assert fix in capsys.readouterr().err


def test_an_unknown_error_of_python_is_shown_by_its_own_line() -> None:
    frames = 'Traceback (most recent call last):\n  File "net.py", line 3, in odd\n    odd()\n'
    assert read(f"{frames}OddError: it was odd\n").trouble[0] == "OddError: it was odd"


@pytest.mark.parametrize(
    ("text", "speaker"),
    [
        ("Genie: the engine's thread could not start", "Genie"),
        ("E adsprpc : odd_thing: failed for a reason", "FastRPC or the DSP"),
        ("[E:onnxruntime:, odd.cc:1] it did not go well", "ONNX Runtime"),
        ("QnnDsp <E> it broke somehow", "QNN"),
        ("E 00:00:00.012345 executorch:odd.cpp:310] odd", "ExecuTorch's runtime"),
    ],
)
def test_without_a_known_cause_who_speaks_is_told_with_what_to_collect(text: str, speaker: str) -> None:
    found = read(text)
    assert (found.explanations, found.told_by) == ((), speaker) and found.collect


def test_of_several_who_speak_the_one_that_says_the_known_cause_is_told() -> None:
    known = "[ERROR] [Qnn ExecuTorch]: Tensor 0 and 0 have mismatching datatypes. 0x232 != 0x408."
    found = read(f"E adsprpc : odd_thing: failed for a reason\n{known}")
    assert found.explanations and found.told_by == "QNN"


def test_an_operator_in_a_scheme_is_shown_as_measured(capsys: pytest.CaptureFixture[str]) -> None:
    assert verb("log@16a4w") == 0
    assert "log at" in capsys.readouterr().out


def test_a_bundle_for_an_issue_has_what_it_needs_and_no_secrets(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_TOKEN", "opensesame42")
    monkeypatch.setenv("HOME", "/data/jane")
    log = tmp_path / "run.log"
    log.write_text(
        "".join(f"step {number}\n" for number in range(500))
        + "using ghp_0123456789abcdefghij and opensesame42 in /data/jane/net and /home"
        + "/jane/run and C:\\Users\\jane\\run\n"
        + "curl -H 'Authorization: Bearer abcdef.ghijkl' https://jane:pw12@files.example/a?sig=hidden\n"
        + '{"password": "hunter2222", "mail": "jane@mail.example"}\n'
        + "-----BEGIN PRIVATE KEY-----\nMIIsecretsecret\n-----END PRIVATE KEY-----\n"
        + "chip SM8650\n````\nStub lib id mismatch: expected (v2.28.0.241029232508_1),"
        + " detected (v2.25.17.241017130936_1)\n"
        + "".join(f"after {number}\n" for number in range(500)),
        encoding="utf-8",
    )
    assert verb("--bundle", str(log)) == 0
    text = capsys.readouterr().out
    assert "stub-mismatch" in text and "SM8650" in text
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


def test_of_each_known_fault_all_is_said_that_is_measured(capsys: pytest.CaptureFixture[str]) -> None:
    # Of those that a log shows too, the rule of the log.
    faults = [fault for fault in load_faults() if fault.id not in failure_rules()]
    assert verb(*(fault.id for fault in faults)) == 0
    text = " ".join(capsys.readouterr().out.split())
    parts = (part for fault in faults for part in (fault.title, fault.effect, fault.correct, fault.fix))
    assert [part for part in parts if " ".join(part.split()) not in text] == []


def test_one_unexplained_input_of_several_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Else all libraries of this machine's store are searched for who prints the line.
    monkeypatch.setenv("QNN_CI_STORE", str(tmp_path / "store"))
    monkeypatch.setenv("QNN_CI_ENVIRONMENTS", str(tmp_path / "environments"))
    (tmp_path / "known.log").write_text(STUB, encoding="utf-8")
    (tmp_path / "unknown.log").write_text("Genie: the engine's thread could not start\n", encoding="utf-8")
    assert verb(tmp_path / "known.log") == 0
    assert verb(tmp_path / "known.log", tmp_path / "unknown.log") == 1


def test_what_was_not_measured_is_not_explained() -> None:
    assert verb("never_heard_of@8a8w") == 1
    assert verb("log@8a9w") == 2


def test_a_bundle_needs_a_log(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert verb("--bundle", str(tmp_path)) == 2
    assert "expected a log" in capsys.readouterr().err
    assert verb("--bundle", "one.log", "libs") == 2
