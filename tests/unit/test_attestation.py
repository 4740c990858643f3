"""The verdicts of programs: from the reports of jobs to the statement that GitHub signs, and back."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from ci.github import digests, statement
from ci.inspect import verb
from provisioning.base.errors import CheckFailed, ToolkitError, UsageError
from provisioning.base.findings import Metric, Outcome
from provisioning.base.settings import MANIFESTS
from provisioning.base.stage_run import StageRun
from tests.support.typed import run_here
from tests.support.workflows.commands import pairs

NAME = "net/8a8w/SM8650"


@pytest.fixture
def program(tmp_path: Path) -> Path:
    """The program that a job kept, with its report, as they are after their download."""
    file = tmp_path / "reports" / "reports-wheels-programs" / "programs" / f"{NAME}.pte"
    file.parent.mkdir(parents=True)
    file.write_bytes(b"a program")
    report(file.parents[3], Outcome.PASS, hashlib.sha256(b"a program").hexdigest())
    return file


def report(folder: Path, outcome: Outcome, digest: str) -> None:
    stage = StageRun("test_emulator", "wheels", "x86_64-linux", "nox -s test_emulator")
    row: dict[str, Metric] = {"soc": "SM8650", "scheme": "8a8w", "verdict": "pass", "cached": True, "top": 1}
    row |= {"figures": {"sqnr_db": 31.5}, "thresholds": {"sqnr_db": 20}, "costs": {"pte_bytes": 9}}
    refused: dict[str, Metric] = {"soc": "SM8550", "verdict": "pass", "expected_fault": "no fp16"}
    stage.metrics |= {"build_id": "v2.49", "programs": {NAME: {**row, "sha256": digest}, "other": refused}}
    stage.finish(outcome).write(folder)


def said(folder: Path, output: Path) -> str:
    """What a job with these reports has as its output."""
    assert digests.run({"QNN_CI_REPORTS": str(folder), "GITHUB_OUTPUT": str(output)}) == 0
    return pairs(output)["digests"]


def signed(tmp_path: Path, **outputs: str) -> dict[str, Any]:
    """What GitHub makes of the files of attest.yml's job `statement`; `outputs` are what the gate's jobs said
    if not the digests of what was downloaded."""
    outputs = outputs or {"digests-1": said(tmp_path / "reports", tmp_path / "output"), "digests-2": ""}
    environ = {"QNN_CI_REPORTS": str(tmp_path / "reports"), "GITHUB_REPOSITORY": "o/r"}
    environ["QNN_CI_DIGESTS"] = json.dumps({"artifacts": "reports-wheels", **outputs})
    environ["GITHUB_REF"] = "refs/heads/main"
    environ["QNN_CI_WORKFLOW"] = "t/qnn-ci/.github/workflows/attest.yml"
    assert statement.run(environ) == 0
    lines = (tmp_path / "reports" / "subjects.txt").read_text().splitlines()
    subjects = [
        {"name": name, "digest": {"sha256": digest}} for digest, _, name in (x.partition("  ") for x in lines)
    ]
    predicate = json.loads((tmp_path / "reports" / "predicate.json").read_text())
    whole = {"_type": "https://in-toto.io/Statement/v1", "subject": subjects, "predicate": predicate}
    return {**whole, "predicateType": "urn:qnn-ci:verdict:1"}


def bundle(content: object, kind: str = "application/vnd.in-toto+json") -> str:
    payload = base64.b64encode(json.dumps(content).encode()).decode()
    envelope = {"payload": payload, "payloadType": kind, "signatures": [{"sig": "AA=="}]}
    return json.dumps(
        {"mediaType": "application/vnd.dev.sigstore.bundle.v0.3+json", "dsseEnvelope": envelope}
    )


def inspect(program: Path, text: str) -> int:
    file = program.parents[5] / "attestation.json"
    file.write_text(text, encoding="utf-8")
    return run_here(verb, str(program), "--attestation", str(file), "--json")


@pytest.mark.parametrize(
    "form", [json.dumps, bundle, lambda content: f"{bundle({'predicateType': 'x'})}\n{bundle(content)}\n"]
)
def test_the_verdict_of_a_program_is_read_back_with_what_was_not_verified(
    tmp_path: Path, program: Path, capsys: pytest.CaptureFixture[str], form: Callable[[object], str]
) -> None:
    content = signed(tmp_path)
    schema = json.loads((MANIFESTS / "schema" / "attestation.json").read_text())
    jsonschema.validate(content, schema)
    capsys.readouterr()
    assert inspect(program, form(content)) == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["what"], facts["QNN build"], facts["chip"]) == (f"pass as {NAME}", "v2.49", "SM8650")
    assert (facts["accuracy"], facts["costs"]) == (["sqnr_db 31.5"], ["pte_bytes 9"])
    signer = "--repo o/r --signer-workflow t/qnn-ci/.github/workflows/attest.yml --source-ref refs/heads/main"
    assert signer in facts["not verified here"]


def test_an_attestation_says_nothing_of_other_bytes(tmp_path: Path, program: Path) -> None:
    content = signed(tmp_path)
    program.write_bytes(b"another program")
    with pytest.raises(CheckFailed, match=rf"{NAME}\.pte"):
        inspect(program, bundle(content))


@pytest.mark.parametrize(
    "change",
    [
        {"predicateType": "https://spdx.dev/Document"},
        {"_type": "https://in-toto.io/Statement/v0.1"},
        {"subject": []},
        {"predicate": None},
    ],
)
def test_no_other_statement_passes_for_a_verdict(
    tmp_path: Path, program: Path, change: dict[str, Any]
) -> None:
    with pytest.raises(CheckFailed):
        inspect(program, bundle({**signed(tmp_path), **change}))


@pytest.mark.parametrize("text", ["", "[]", '{"dsseEnvelope": {}}', bundle({}, "text/plain")])
def test_what_is_no_attestation_is_called_so(program: Path, text: str) -> None:
    with pytest.raises(CheckFailed):
        inspect(program, text)


@pytest.mark.parametrize("case", ["failed", "no report", "another program", "damaged"])
def test_nothing_is_stated_of_what_the_gate_did_not_pass(tmp_path: Path, program: Path, case: str) -> None:
    folder = program.parents[3]
    if case == "failed":
        report(folder, Outcome.FAIL, hashlib.sha256(b"a program").hexdigest())
    elif case == "no report":
        (folder / "test_emulator.json").unlink()
    elif case == "another program":
        program.write_bytes(b"another program")
    else:
        (folder / "test_emulator.json").write_text("{}")
    with pytest.raises(ToolkitError) as error:
        signed(tmp_path)
    assert isinstance(error.value, UsageError) is (case == "no report")
    assert not (tmp_path / "reports" / "predicate.json").exists()


FORGED = "f" * 64


def test_only_what_the_gates_own_jobs_said_is_signed(
    tmp_path: Path, program: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whoever runs in the workflow can upload reports-evil."""
    output = said(tmp_path / "reports", tmp_path / "output")
    report(tmp_path / "reports" / "reports-evil", Outcome.PASS, FORGED)
    content = signed(tmp_path, **{"digests-1": output})
    assert [subject["digest"] for subject in content["subject"]] != [] and FORGED not in json.dumps(content)
    assert "reports-evil" in capsys.readouterr().out


@pytest.mark.parametrize("how", ["in its place", "gone"])
def test_a_report_that_was_replaced_after_its_job_is_an_error(
    tmp_path: Path, program: Path, how: str
) -> None:
    output = said(tmp_path / "reports", tmp_path / "output")
    if how == "gone":
        (program.parents[3] / "test_emulator.json").unlink()
    else:
        report(program.parents[3], Outcome.PASS, FORGED)
    with pytest.raises(CheckFailed, match="digests-3"):
        signed(tmp_path, **{"digests-3": output})


def test_nothing_is_signed_where_no_job_said_anything(tmp_path: Path, program: Path) -> None:
    with pytest.raises(UsageError):
        signed(tmp_path, **{"digests-1": ""})
