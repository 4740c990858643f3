"""`--json [FILE]`: one document with the same meaning in every verb."""

from __future__ import annotations

import ast
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ci.__main__ import VERBS as CI
from ci.artifacts.compiler_log import reword_error
from provisioning.__main__ import VERBS as PROVISIONING
from provisioning.base.answer import split_json
from provisioning.base.command_line import Verb, main
from provisioning.base.settings import ROOT
from provisioning.known_faults import fix_for
from tests.support.schemas import ANSWER, validator
from tests.support.sources import nodes, with_any

VERB = """
import os, subprocess, sys
from provisioning.base import answer, errors
from provisioning.base.commands import Fix, add_flags, leave_out, session
from provisioning.base.findings import Edit, Finding, Report, Severity
from provisioning.base.stage_run import StageRun
EXAMPLES = ""
FIXES = {
    "without": leave_out("--hard"),
    "without value": leave_out("--soc"),
    "flag": Fix("{}, or another", ("--soc", "SM8650")),
    "open flag": add_flags("--soc", "CHIP"),
    "flag of another": add_flags("--unknown", "flag"),
    "flag, then a command": Fix("{} has it; or `{}` lists them", ("--soc", "SM8650"), ("chips",)),
    "words": "read the page",
    "text that looks like one": "qnn-ci provision, or --soc SM8650",
    "command": session("provision", "--soc", "SM8650"),
    "open command": Fix("try `{}`", ("audit", "MODEL")),
    "command in words": Fix("{} names what loses", ("quantize", "a.py:f", "--where")),
}
def configure(parser):
    parser.add_argument("what")
    parser.add_argument("--soc")
    parser.add_argument("--hard", action="store_true")
def run(args):
    if args.what == "facts":
        answer.add(figures={"sqnr_db": 31.5, "bound": float("inf")})
        print("31.5 dB")
        sys.stdout.flush()
        subprocess.run(["echo", "of a child"])
        return 0
    if args.what == "stage":
        stage = StageRun("verb", "wheels", "x86_64-linux", "qnn-ci verb")
        again = session("diagnose", "emulator-run")
        stage.add("emulator-run", Severity.WARNING, "a", "slow\\x1b[31m", again)
        edit = Edit("net.py", 3, "x", "y")
        stage.findings.append(Finding("emulator-run", Severity.ERROR, "b", "bad", f"{edit}", edit=edit))
        return stage.close(answer_reports())
    if args.what == "chip":
        raise errors.UnknownName("no chip SM875O", args.soc, ["SM8750", "SM8650"])
    raise errors.UsageError("it is so", fix=FIXES[args.what])
def answer_reports():
    from pathlib import Path
    return Path(os.environ["QNN_CI_REPORTS"])
"""


@pytest.fixture
def said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Callable[..., dict[str, Any]]:
    """The answer of a verb to these words, as standard output has it."""
    (tmp_path / "verb_of_answers.py").write_text(VERB)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "verb_of_answers", raising=False)
    monkeypatch.setenv("QNN_CI_REPORTS", str(tmp_path / "reports"))

    def run(*words: str, code: int) -> dict[str, Any]:
        verbs = {"verb": Verb("verb_of_answers", "a verb")}
        assert main("qnn-ci", "", verbs, ["verb", "--json", *words]) == code
        answer: dict[str, Any] = json.loads(capfd.readouterr().out)
        validator(ANSWER).validate(answer)
        return answer

    return run


def test_an_answer_has_the_verbs_facts_and_what_it_and_its_children_print(said: Any) -> None:
    answer = said("facts", code=0)
    assert answer["figures"] == {"sqnr_db": 31.5, "bound": "inf"}
    assert answer["output"] == ["31.5 dB", "of a child"]
    assert (answer["outcome"], answer["next"], answer["python"]) == ("pass", "", sys.executable)


def test_findings_of_a_report_are_the_answers_and_errors_say_what_is_next(said: Any) -> None:
    answer = said("stage", code=1)
    warning, error = answer["findings"]
    assert warning["next"] == "qnn-ci diagnose emulator-run"
    assert "\x1b" not in warning["message"] and "slow" in warning["message"]
    assert error["edit"] == {"file": "net.py", "line": 3, "old": "x", "new": "y"}
    assert answer["next"] == "qnn-ci verb stage", "the same again, after the edit"


@pytest.mark.parametrize(
    ("words", "following"),
    [
        (["chip", "--soc", "SM875O"], "qnn-ci verb chip --soc SM8750"),
        (["without", "--hard", "--soc", "x"], "qnn-ci verb without --soc x"),
        (["without value", "--soc", "x"], "qnn-ci verb 'without value'"),
        (["flag", "--soc", "x"], "qnn-ci verb --soc SM8650 flag"),
        (["--", "flag"], "qnn-ci verb --soc SM8650 -- flag"),
        (["open flag"], ""),
        (["flag of another"], ""),
        (["flag, then a command"], "qnn-ci verb --soc SM8650 'flag, then a command'"),
        (["words"], ""),
        (["text that looks like one"], ""),
        (["command"], "qnn-ci provision --soc SM8650"),
        (["open command"], ""),
        (["command in words"], "qnn-ci quantize a.py:f --where"),
    ],
)
def test_a_fix_becomes_the_next_command_where_it_names_one(
    said: Any, words: list[str], following: str
) -> None:
    assert said(*words, code=2)["next"] == following


def test_a_command_line_that_is_refused_is_answered_too(said: Any) -> None:
    answer = said("facts", "--no-such-flag", code=2)
    (finding,) = answer["findings"]
    assert finding["rule"] == "command-usage" and "--no-such-flag" in finding["message"]
    assert answer["outcome"] == "usage"
    assert any("--soc" in line for line in said("--help", code=0)["output"])


@pytest.mark.parametrize(
    ("words", "rest", "place"),
    [
        (["net.py:make", "--json"], ["net.py:make"], ""),
        (["--json", "a.json", "net.py:make"], ["net.py:make"], "a.json"),
        (["--json=a", "x"], ["x"], "a"),
        (["--json", "build.log"], ["build.log"], ""),
        (["--json", "--", "x.json"], ["--", "x.json"], ""),
        (["--", "jq", "--json"], ["--", "jq", "--json"], None),
        (["x"], ["x"], None),
    ],
)
def test_only_a_name_that_ends_in_json_is_the_file(
    words: list[str], rest: list[str], place: str | None
) -> None:
    assert split_json(words) == (rest, place)


def test_with_a_file_the_text_stays_on_standard_output(
    tmp_path: Path, said: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    verbs = {"verb": Verb("verb_of_answers", "a verb")}
    file = tmp_path / "answer.json"
    assert main("qnn-ci", "", verbs, ["verb", "--json", str(file), "facts"]) == 0
    assert capfd.readouterr().out.splitlines() == ["31.5 dB", "of a child"]
    assert json.loads(file.read_text())["figures"]["sqnr_db"] == 31.5
    assert main("qnn-ci", "", verbs, ["verb", f"--json={tmp_path}", "facts"]) == 2


@pytest.mark.parametrize("name", sorted({**CI, **PROVISIONING}))
def test_every_verb_has_the_flag_and_none_defines_it_anew(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """An unknown flag is an error of each verb's command line, before it does anything; what becomes another
    program has no answer but why."""
    verbs = {**CI, **PROVISIONING}
    assert main("qnn-ci", "", verbs, [name, "--json", "--no-such-flag"]) == 2
    answer = json.loads(capsys.readouterr().out)
    validator(ANSWER).validate(answer)
    assert answer["verb"] == name and answer["findings"]


def test_each_fact_that_a_verb_names_is_in_the_schema() -> None:
    named = set()
    for folder in ("ci", "provisioning"):
        for file in with_any((ROOT / folder).rglob("*.py"), "answer.add"):
            for node in nodes(file):
                if isinstance(node, ast.Call) and ast.unparse(node.func) == "answer.add":
                    named |= {word.arg for word in node.keywords if word.arg}
    assert len(named) > 10 and not named - set(validator(ANSWER).schema["properties"])


@pytest.mark.parametrize(
    ("operator", "code", "new"),
    [
        ("erf", "return x * 0.5 * (1.0 + torch.erf(x / math.sqrt(2.0)))", "torch.nn.functional.gelu(x)"),
        ("erf", "h = 0.5 * h * (1 + torch.erf(h * 0.70710678))", "torch.nn.functional.gelu(h)"),
        ("erf", "return torch.erf(x)", ""),
        ("erf", "x * 0.5 * (1 + torch.erf(y * 0.70710678))", ""),
        (
            "cumprod",
            "torch.cumprod(torch.exp(x), dim=1)",
            "torch.exp(torch.cumsum(torch.log(torch.exp(x)), 1))",
        ),
        ("cumprod", "torch.cumprod(x, 1)", ""),
        ("index_put", "y[y > 1.0] = 1.0", "y = torch.where(y > 1.0, 1.0, y)"),
        ("index_put", "y[mask] = other", ""),
        ("var.correction", "y = torch.std(x, -1)", "torch.sqrt(torch.var(x, -1))"),
        ("var.correction", "y = torch.std(x, -1) + self.f(y)", "torch.sqrt(torch.var(x, -1))"),
        (
            "var.correction",
            "y = f(torch.std(g(x, h(1)), (1, 2)))",
            "torch.sqrt(torch.var(g(x, h(1)), (1, 2)))",
        ),
        ("var.correction", "y = x.std(-1) * self.f(y)", ""),
    ],
)
def test_a_line_is_rewritten_only_where_it_means_the_same(operator: str, code: str, new: str) -> None:
    overload = "" if "." in operator else ".default"
    fix = fix_for(f"aten.{operator}{overload}", code, "net.py:7")
    edit = fix.edit
    assert fix and (edit.new if edit else "") == new
    assert edit is None or ((edit.file, edit.line) == ("net.py", 7) and edit.old in code)


def test_what_ends_the_builder_has_its_fix_by_the_error() -> None:
    convolution = "aten.convolution.default"
    assert "* given" in str(
        fix_for(convolution, "", where="builder", reason="Expect aten_mul_tensor to be parameter")
    )
    assert not fix_for(convolution, "", where="builder", reason="KeyError: 'scale'")
    assert not fix_for(convolution, "", reason="Expect aten_mul_tensor to be parameter")


@pytest.mark.parametrize(
    ("code", "is_scalar"), [("y.sum()", True), ("torch.mean(y)", True), ("y.sum(1)", False)]
)
def test_a_sum_of_everything_is_told_to_keep_its_dimensions(code: str, is_scalar: bool) -> None:
    operator = "aten.sum.dim_IntList" if "sum" in code else "aten.mean.default"
    suggestion = fix_for(operator, f"return {code}, y", reason="No node visitor, unsupported")
    assert ("keepdim=True" in str(suggestion)) == is_scalar


def test_a_permutation_of_six_dimensions_has_a_fix_and_one_of_none_has_not() -> None:
    permutation, code = "aten.permute_copy.default", "x.transpose(2, 3)"
    refused = {rank: reword_error(f"[4294967295] has incorrect Rank {rank}.") for rank in (0, 6)}
    assert "reshape" in str(fix_for(permutation, code, reason=refused[6]))
    assert not fix_for(permutation, code, reason=refused[0])
