"""All reports together: nothing in reports/ is passed over; the page; what became worse elsewhere."""

from __future__ import annotations

import base64
import hashlib
import json
import math
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ci.lanes.executorch import HEAD as PYTORCH
from ci.one_model.model import OneModel
from ci.one_model.options import ModelOptions
from ci.one_model.report import ModelReport, report_work
from ci.report import verb
from ci.report.collect import collect, did_not_run, report_in
from ci.report.page import html
from ci.report.summary import headline
from provisioning.base.commands import session
from provisioning.base.errors import CheckFailed, EnvironmentLacking, UsageError
from provisioning.base.findings import Artifact, Finding, Metric, Outcome, Report, Severity
from provisioning.base.foreign import one_line, visible
from provisioning.base.rendering import verdict
from provisioning.base.settings import ROOT, Selection
from tests.support.pages import read_page, structure_of, text_of
from tests.support.program_reports import BAD as BAD_PROGRAM
from tests.support.program_reports import SPEAKER, onnx, report_of, speaker, with_text_everywhere
from tests.support.program_reports import reports as of_programs
from tests.support.typed import run_here


def _report(stage: str, *findings: Finding, **changed: Any) -> Report:
    made = (Artifact("pte", f"build/{stage}.pte", "ab" * 32, 4_234_123),)
    usual: dict[str, Any] = {"artifacts": made, "metrics": {"files": 1234}, "run": "one"}
    return report_of(stage, *findings, **usual | changed)


BAD = Finding("elf.arch", Severity.ERROR, "lib/a.so", "holds v79", "provision it again")
FACT = Finding("versions.cmake", Severity.NOTE, "cmake", "4.1.2", "")
NET = "net/8a8w/SM8650"


@pytest.fixture
def reports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("COLUMNS", "100")
    path = tmp_path / "reports"
    for report in (_report("provision"), _report("validate", BAD, FACT, outcome=Outcome.FAIL)):
        report.write(path)
    return path


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("cut.json", b'{"schema": 1, "stage": "cut", '),
        ("deep.json", b"[" * 100_000),
        ("validate-copy.json", _report("validate").to_json().encode()),
        (
            "rows.json",
            replace(_report("rows"), metrics={"programs": {NET: {"figures": 1}}}).to_json().encode(),
        ),
        ("table.json", replace(_report("table"), metrics={"models": 3}).to_json().encode()),
        ("severity.json", _report("severity", BAD).to_json().replace('"error"', '"fatal"').encode()),
    ],
)
def test_a_file_that_is_no_report_is_named_and_never_a_pass(reports: Path, name: str, content: bytes) -> None:
    (reports / name).write_bytes(content)
    about = collect(reports)[-1]
    assert (about.stage, about.outcome) == ("report", Outcome.ERROR)
    assert [finding.subject for finding in about.findings] == [name]


@pytest.mark.parametrize("seconds", ["1e999", "NaN", "9" * 400, "-1e30", str(1 << 64)])
def test_a_report_with_an_absurd_number_is_refused(reports: Path, seconds: str) -> None:
    file = reports / "validate.json"
    text = file.read_text(encoding="utf-8")
    (written,) = [line for line in text.splitlines() if '"seconds"' in line]
    file.write_text(text.replace(written, f'  "seconds": {seconds},'), encoding="utf-8")
    about = collect(reports)[-1]
    assert (about.stage, about.outcome) == ("report", Outcome.ERROR)
    (finding,) = about.findings
    assert finding.subject == "validate.json" and "number" in finding.message


def test_a_figure_that_is_no_number_leaves_a_report_that_can_be_read(reports: Path) -> None:
    written = replace(
        _report("validate"), metrics={"figures": {"sqnr_db": math.nan, "most": [math.inf, 1.5]}}
    )
    read = Report.read(written.write(reports))
    assert read.metrics == {"figures": {"sqnr_db": None, "most": [None, 1.5]}}


def test_no_text_of_a_report_reaches_a_renderer_as_it_is(reports: Path) -> None:
    text = "::error::\x1b[2J##[error]"
    _report("validate", Finding(text, Severity.ERROR, text, text, text), outcome=Outcome.FAIL).write(reports)
    rendered = verb.RENDERINGS["sarif"](collect(reports))
    assert "##[" not in rendered and '"::' not in rendered and "\\u001b" not in rendered


def _run(reports: Path, *argv: str) -> int:
    return run_here(verb, "--reports", str(reports), *argv)


def verdicts(reports: Path) -> dict[str, str]:
    return {report.stage: verdict(report) for report in collect(reports)}


LAST_YEAR = {"started": "2025-11-20T08:00:00+00:00", "run": "zero"}
LATER = {"started": "2026-11-20T09:00:00+00:00", "run": "two"}
FAIL = {"outcome": Outcome.FAIL}


def gate(*stages: str, **changed: Any) -> Report:
    return _report("gate", metrics={"stages": [{"stage": name} for name in stages]}, **changed)


def of_model(**changed: Any) -> Report:
    return _report("compile", metrics={"models": {}}, **changed)


PAGES: dict[str, tuple[list[Report], dict[str, str]]] = {
    "nothing": ([], {}),
    "nobody asked for more": ([_report("test_emulator")], {"test_emulator": "pass"}),
    "a model, and what was prepared for it earlier": (
        [_report("provision"), _report("build_runner", **LAST_YEAR), of_model(**LATER)],
        {"compile": "pass"},
    ),
    "a model, and what failed as it was prepared": (
        [_report("build_runner", BAD, **FAIL), of_model(**LATER)],
        {"compile": "pass", "build_runner": "fail"},
    ),
    "a model, after a gate": (
        [gate("provision", "validate"), _report("provision"), _report("validate"), of_model(**LATER)],
        {"provision": "pass", "validate": "pass", "compile": "pass"},
    ),
    "a gate that was killed": (
        [gate("provision", "validate", "test_lowering", outcome=Outcome.ERROR), _report("provision")],
        {"provision": "pass", "validate": "did not run", "test_lowering": "did not run"},
    ),
    "a gate has its own run alone": (
        [gate("test_emulator", **LATER), _report("bench"), _report("test_emulator")],
        {"test_emulator": "did not run", "bench": "skipped"},
    ),
    "a gate, after models": (
        [of_model(), of_model(), gate("validate", **LATER), _report("validate", **LATER)],
        {"validate": "pass"},
    ),
    "what a gate left out belongs to it, though it has no time": (
        [
            gate("test_emulator", "validate", **LATER),
            _report("validate", **LATER),
            replace(did_not_run("test_emulator", "left out by --skip", due=False), run="two"),
        ],
        {"test_emulator": "skipped", "validate": "pass"},
    ),
    "a failure of another call": (
        [_report("test_lowering", BAD, **FAIL), _report("test_emulator", **LATER)],
        {"test_emulator": "pass", "test_lowering": "fail"},
    ),
    "a pass of last year, or of another profile": (
        [
            _report("validate", **LATER),
            _report("provision", **LAST_YEAR),
            _report("bench", profile="qnn-2.37"),
        ],
        {"validate": "pass", "provision": "skipped", "bench": "skipped"},
    ),
    "a pass with an error": (
        [_report("provision"), _report("validate", BAD)],
        {"provision": "pass", "report": "error"},
    ),
}


@pytest.mark.parametrize(("written", "shown"), PAGES.values(), ids=PAGES)
def test_a_page_has_the_reports_of_its_run_and_no_other_pass_counts(
    written: list[Report], shown: dict[str, str], tmp_path: Path
) -> None:
    for report in written:
        report.write(tmp_path)
    assert verdicts(tmp_path) == shown
    assert _run(tmp_path, "--check") == int(not {"pass"} <= set(shown.values()) <= {"pass", "skipped"})


def test_earlier_reports_that_are_not_there_are_no_other_suite(tmp_path: Path) -> None:
    _report("validate").write(tmp_path)
    with pytest.raises(UsageError, match="no such folder"):
        _run(tmp_path, "--against", str(tmp_path / "nothere"))


def test_a_folder_that_has_no_report_stays_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "0.npy").touch()
    with pytest.raises(EnvironmentLacking, match="no report"):
        _run(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["0.npy"]


def model_of(reports: Path, typed: str, precision: str = "8a8w") -> OneModel:
    selection = Selection("wheels", "x86_64-linux", "SM8650", reports, reports)
    return OneModel(selection, typed, PYTORCH, ModelOptions(precisions=(precision,)))


def command(reports: Path, verb: str, typed: str, work: Callable[[ModelReport], int], **more: str) -> int:
    model = model_of(reports, typed, **more)
    return report_work(verb, model, model.traits, work)


def prints(text: str) -> Callable[[ModelReport], int]:
    def work(report: ModelReport) -> int:
        print(text)
        return 0

    return work


def refused(report: ModelReport) -> int:
    raise CheckFailed("it does not compile", fix="write another")


def test_the_page_has_what_was_done_of_every_model_in_this_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command(tmp_path, "compile", "a.py:make", prints("30.0 dB of a")) == 0
    with pytest.raises(CheckFailed):
        command(tmp_path, "compile", "b.py:make", refused)
    command(tmp_path, "compile", "a.py:make", prints("12.0 dB in another precision"), precision="4a4w")
    command(tmp_path, "audit", "c.onnx", prints("3 htp"))
    assert "30.0 dB of a" in capsys.readouterr().out
    page = text_of(read_page(html(collect(tmp_path))))
    for said in ("30.0 dB of a", "12.0 dB in", "3 htp", "c.onnx 8a8w SM8650", "it does not compile"):
        assert said in page
    assert verdicts(tmp_path) == {"compile": "fail", "audit": "pass"}


def test_the_latest_model_is_the_first() -> None:
    models: dict[str, Metric] = {
        "older.py": {"verdict": "pass", "when": "2026-11-20"},
        "newer.py": {"verdict": "pass", "when": "2026-11-21"},
    }
    page = html([report_of("audit", metrics={"models": models})])
    assert page.index("newer.py") < page.index("older.py")


def test_what_is_done_again_replaces_what_was_said_of_that_model_alone(tmp_path: Path) -> None:
    command(tmp_path, "compile", "a.py:make", prints("first"))
    with pytest.raises(CheckFailed):
        command(tmp_path, "compile", "b.py:make", refused)
    command(tmp_path, "compile", "b.py:make", prints("second"))
    page = text_of(read_page(html(collect(tmp_path))))
    assert "first" in page and "second" in page and "it does not compile" not in page
    assert verdicts(tmp_path)["compile"] == "pass"


def programs(stage: str, **verdicts: str) -> Report:
    rows: dict[str, Metric] = {f"{name}/8a8w/SM8650": {"verdict": word} for name, word in verdicts.items()}
    findings = tuple(
        Finding("accuracy", Severity.ERROR, f"{name}/8a8w/SM8650", f"{name} is too far off", "")
        for name, word in verdicts.items()
        if word == "fail"
    )
    outcome = Outcome.FAIL if findings else Outcome.PASS
    return replace(_report(stage, *findings, outcome=outcome), metrics={"programs": rows, "count": 3})


@pytest.mark.parametrize("order", [1, -1])
def test_shards_are_one_report_for_each_stage_whose_outcome_is_the_worst(tmp_path: Path, order: int) -> None:
    for number, shard in enumerate([{"one": "pass", "bert": "fail"}, {"two": "pass"}][::order]):
        report = replace(programs("test_emulator", **shard), run=f"run {number}", seconds=2.0)
        report.metrics["own"] = number
        (tmp_path / f"jobs/{number}").mkdir(parents=True)
        report.write(tmp_path / f"jobs/{number}")
    _report("validate").write(tmp_path / "jobs/1")
    (tmp_path / "jobs/1/test_onnx.json").write_text("{}")
    assert _run(tmp_path / "reports", "--merge", str(tmp_path / "jobs"), "--check") == 1
    found = {report.stage: report for report in collect(tmp_path / "reports")}
    assert {*found} == {"test_emulator", "validate", "merge"}, "what cannot be read is no report less"
    emulator = found["test_emulator"]
    assert (emulator.outcome, emulator.seconds, len(emulator.findings)) == (Outcome.FAIL, 4.0, 1)
    assert {*emulator.metrics} == {"programs"}
    rows = emulator.metrics["programs"]
    assert isinstance(rows, dict) and {*rows} == {f"{name}/8a8w/SM8650" for name in ("one", "bert", "two")}
    assert (tmp_path / "reports/junit.xml").is_file()
    assert json.loads((tmp_path / "reports/results.sarif").read_text())["version"] == "2.1.0"


def test_the_headline_names_models(tmp_path: Path) -> None:
    assert headline([programs("test_emulator", one="pass", bert="fail")]) == "bert 8a8w failed, 1 passed"
    good = [programs("test_emulator", one="pass", bert="pass"), _report("validate")]
    assert headline(good) == "2 models passed, 2 stages passed"
    bad = programs("test_emulator", one="fail", two="fail", three="fail", four="fail", five="pass")
    assert headline([bad]) == "one 8a8w, two 8a8w, three 8a8w and 1 more failed, 1 passed"
    of_command: dict[str, Metric] = {"ci/my net.py:bert fp16 SM8750": {"verdict": "fail"}}
    compiled = replace(_report("compile", BAD, outcome=Outcome.FAIL), metrics={"models": of_command})
    assert headline([compiled]) == "ci/my net.py:bert fp16 failed"
    both = [programs("test_emulator", bert="fail"), _report("validate", BAD, outcome=Outcome.FAIL)]
    assert "bert 8a8w failed" in headline(both) and "validate" in headline(both)


def test_the_page_has_one_command_that_accepts_what_several_programs_cost(tmp_path: Path) -> None:
    names = "net/8a8w/SM8650", "net/fp16/SM8650"
    fixes = [session("test_lowering", "-k", name, "--accept") for name in names]
    findings = [
        Finding("cost-no-baseline", Severity.WARNING, name, "none", fix)
        for name, fix in zip(names, fixes, strict=True)
    ]
    _report("test_lowering", *findings).write(tmp_path)
    page = text_of(read_page(html(collect(tmp_path))))
    assert page.count("--accept") == 1 and all(name in page for name in names)


def test_an_error_stands_once_on_the_page_with_a_relative_path(tmp_path: Path) -> None:
    of_program = programs("test_emulator", bert="fail")
    said = f"{Path.cwd()}/ci/bert.py is wrong"
    other = Finding("elf", Severity.ERROR, "libQnnHtp.so", said, "")
    of_program.write(tmp_path)
    replace(programs("test_lowering", bert="fail")).write(tmp_path)
    of_onnx = replace(other, subject="bert/8a8w/SM8650", message="onnx has the same name")
    _report("validate", other, of_onnx, outcome=Outcome.FAIL).write(tmp_path)
    page = text_of(read_page(html(collect(tmp_path))))
    assert page.count("bert is too far off") == page.count("onnx has the same name") == 1
    assert page.count("ci/bert.py is wrong") == 1 and said not in page


@pytest.mark.parametrize("run", ["one", ""])
def test_what_another_call_passed_is_shown_and_named(
    run: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`nox -s test_lowering`, then `nox -s test_emulator`: one page, and no earlier pass counts silently."""
    replace(_report("test_lowering"), run=run).write(tmp_path)
    replace(_report("test_emulator"), **{**LATER, "run": run and "two"}).write(tmp_path)  # type: ignore[arg-type]
    assert verdicts(tmp_path)["test_lowering"] == "pass"
    assert _run(tmp_path, "--check") == 0
    shown = capsys.readouterr().out.splitlines()
    *_, end = (line for line in shown if line.startswith("✓ PASS"))
    assert "in an earlier run" in end
    assert "test_lowering" in end
    assert any("test_lowering" in line and "2026-11-20 08:00 UTC" in line for line in shown)


TEXT = st.one_of(
    st.text(st.characters(), max_size=40), st.text(st.sampled_from("<>&\"'/-! script\n\x1b"), max_size=30)
)


@given(TEXT, TEXT, TEXT, TEXT)
def test_any_text_is_shown_on_the_page(rule: str, subject: str, message: str, fix: str) -> None:
    finding = Finding(rule, Severity.ERROR, subject, message, fix)
    page = text_of(read_page(html([_report("validate", finding, outcome=Outcome.FAIL)])))
    for shown in (one_line(rule), one_line(subject), visible(message), visible(fix)):
        assert shown in page


HOSTILE = st.one_of(
    TEXT, st.sampled_from(["</script><script>alert(1)</script>", '" onload="x', "{{ 1 }}", "]]>-->"])
)


def harmless(text: str) -> str:
    """Letters in its place: a dot still divides names of modules."""
    return re.sub(r"[^\s.]", "x", text)


@given(HOSTILE)
@example(".0")
def test_a_text_in_any_place_is_never_markup(text: str) -> None:
    page = html(with_text_everywhere(text), Path())
    shown = read_page(page)
    assert structure_of(shown) == structure_of(read_page(html(with_text_everywhere(harmless(text)), Path())))
    assert visible(page) == page
    places = {element.get("id") for element in shown.iter()}
    # Nothing but places of the page itself, or files beside it by a quoted name.
    for link in (element.get("href", "") for element in shown.iter("a")):
        assert link[1:] in places if link.startswith("#") else link.startswith("build/") and ":" not in link


def test_the_reports_with_text_everywhere_show_each_part_of_the_page() -> None:
    page = text_of(read_page(html(with_text_everywhere("-strange"))))
    assert "-strange ONNX" in page
    for shown in (
        "elsewhere",
        "gelu/fp16/SM8750",
        "net/u8u8/SM8650",
        "./net.py:make 8a8w SM8650",
        "conv2d    1 htp",
        "tiny/genie-16a8w/SM8650",
        "hidden_2",
        "build/a.pte",
        "nox -s test_lowering",
    ):
        assert f"{shown}-strange" in page, shown


def test_the_pages_policy_allows_its_own_style_and_script_alone() -> None:
    page = read_page(html([_report("validate", BAD)]))
    digests = {
        tag: base64.b64encode(hashlib.sha256((element.text or "").encode()).digest()).decode()
        for tag in ("style", "script")
        for element in page.iter(tag)
    }
    (policy,) = (meta.get("content") for meta in page.iter("meta") if meta.get("http-equiv"))
    assert policy == (
        f"default-src 'none'; style-src 'sha256-{digests['style']}'; script-src 'sha256-{digests['script']}'"
    )
    assert not any(element.get("style") or element.get("onclick") for element in page.iter())


@pytest.mark.parametrize(
    ("words", "headline"),
    [
        (["pass", "pass"], "1 model passed"),
        (["pass", "fail"], "net 8a8w failed"),
        (["fail", "pass"], "net 8a8w failed"),
        (["pass", "odd"], "net 8a8w failed"),
        ([""], "net 8a8w failed"),
    ],
)
def test_a_program_passes_only_if_all_its_rows_say_so(words: list[str], headline: str) -> None:
    stages = zip(("test_lowering", "test_emulator"), words, strict=False)
    rows = [report_of(stage, metrics={"programs": {NET: {"verdict": word}}}) for stage, word in stages]
    page = read_page(html(rows))
    shown = [element.get("data-verdict") for element in page.iter("details") if element.get("data-verdict")]
    assert text_of(page).count(headline) == 2
    assert shown == ["pass" if "passed" in headline else "fail"]


def test_the_page_has_each_programs_figures_beside_what_was_agreed() -> None:
    lowering, emulator = of_programs()
    cost = Finding("cost-ddr-read", Severity.WARNING, BAD_PROGRAM, "reads more", "")
    lowering = replace(lowering, findings=(*lowering.findings, cost))
    page = read_page(html([lowering, emulator, speaker(), onnx()]))
    text = text_of(page)
    for figure in (
        "2 delegates, 1 on the CPU, 34.5 dB",
        "convolution × 40, add.Tensor × 3, a × 2, b × 2, c × 2, d × 2, and 1 kind more",
        "Cost (the baseline is of QNN 2.36.0)",
        "1 delegate, 0 on the CPU, 34.5 dB",
        "34.5 dB (at least 33.5 dB)",
        "0.9998 (at least 0.9997)",
        "0.01 (at most 0.02)",
        "3.10 s (+3.3 %, baseline 3.00 s)",
        "58.7 kB (as agreed)",
        "2.85 MB (+42.7 %, baseline 2 MB)",
        "2.05 kB (as agreed)",
        "1.26 MB (no baseline)",
        f"{SPEAKER} genie",
        "decode htp: divergence",
        "0.0012 ± 0.00012",
        "hidden_2 40.5 dB (at least 30.0)",
    ):
        assert figure in text, figure
    bad = [text_of(figure) for figure in page.iter("dd") if "bad" in figure.get("class", "")]
    parts = [part.get("class") for group in page.iter("ol") for part in group]
    assert parts == ["htp", "cpu", "htp", "htp"] and "spilled" not in text
    assert bad == ["✗ 2.85 MB (+42.7 %, baseline 2 MB)", "✗ logits -2.3 dB (at least 30.0), 3.0 on the CPU"]
    # What failed is above what passed; float comes first.
    (matrix,) = (table for table in page.iter("table") if table.get("id") == "matrix")
    rows = [[cell.text for cell in row.iter("th")] for row in matrix.iter("tr")]
    assert [row[0] for row in rows[1:]] == ["gelu", SPEAKER, "net", "resnet"]
    assert rows[0] == ["Model", "fp16", "16a8w", "8a8w", "u8u8"]


def test_a_figure_beyond_its_threshold_is_marked_and_one_that_is_no_number_is_left_out(
    tmp_path: Path,
) -> None:
    figures = {"sqnr_db": math.nan, "cosine": 0.5, "max_abs": 0.05}
    ran: dict[str, Metric] = {
        "verdict": "fail",
        "figures": {**figures, "reference_sqnr_db": 60},
        "thresholds": {"sqnr_db": 30.0, "cosine": 0.9, "max_abs": 0.02, "reference_sqnr_db": 60.0},
        "slices": [],
    }
    part: dict[str, Metric] = {"name": "prefill_0", "output": "hidden_2", "db": -math.inf, "least_db": 30.0}
    model: dict[str, Metric] = {
        "verdict": "fail",
        "figures": {"decode_htp": {"top1": {"value": math.nan, "error": math.inf}}},
        "parts": [part],
    }
    reports = [
        report_of("test_emulator", metrics={"programs": {"net/8a8w/SM8650": ran}}),
        report_of("test_llm", metrics={"programs": {SPEAKER: model}}),
    ]
    page = read_page(html([report_in(report.write(tmp_path)) for report in reports]))
    shown = [text_of(figure) for figure in page.iter("dd")]
    assert shown == ["✗ 0.5 (at least 0.9)", "✗ 0.05 (at most 0.02)", "60.0 dB (at least 60.0 dB)"]


BUILDS = ROOT / "tests" / "support" / "two_builds"


def ran(folder: Path, **figures: tuple[float, int] | None) -> Path:
    """The report of a profile, with the SQNR and the traffic of each program that does not fail."""
    programs: dict[str, Metric] = {
        name: {"verdict": "pass", "figures": {"sqnr_db": of_one[0]}, "costs": {"ddr_read": of_one[1]}}
        if of_one
        else {"verdict": "fail"}
        for name, of_one in figures.items()
    }
    report_of("test_emulator", profile=folder.name, metrics={"programs": programs}).write(folder)
    return folder


GOOD, BAD_FIGURES = {"net": (46.0, 1000), "same": (40.0, 1000), "gone": (40.0, 1)}, (31.0, 9000)


@pytest.mark.parametrize(
    ("figures", "worse", "counts"),
    [
        (
            {"net": BAD_FIGURES, "same": (39.5, 1000), "new": (1.0, 1)},
            ["46.0 dB → 31.0 dB", "1 kB → 9 kB"],
            ("1 of 2", 2),
        ),
        ({"net": None}, ["pass → fail"], ("1 of 1", 2)),
        (GOOD, [], ("0 of 3", 0)),
    ],
)
def test_what_became_worse_is_named_and_what_only_differs_is_not(
    figures: dict[str, tuple[float, int] | None],
    worse: list[str],
    counts: tuple[str, int],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    before, now = ran(tmp_path / "before", **GOOD), ran(tmp_path / "now", **figures)
    assert run_here(verb, "--reports", now, "--against", before) == int(bool(worse))
    *lines, last = capsys.readouterr().out.splitlines()
    assert last.startswith(f"{counts[0]} programs") and f", {counts[1]} are not in both" in last
    for line, change in zip(lines, worse, strict=True):
        assert line.startswith("net: ") and line.endswith(f" {change}")


def test_a_build_with_a_known_fault_is_worse_than_one_without_it(capsys: pytest.CaptureFixture[str]) -> None:
    wrong, right = BUILDS / "2.49.40", BUILDS / "2.51.0"
    assert run_here(verb, "--reports", wrong, "--against", right) == 1
    printed = capsys.readouterr().out
    assert "llama_decode" in printed and "pass → fail" in printed and "44.2 dB → 15.5 dB" in printed
    assert run_here(verb, "--reports", right, "--against", wrong) == 0


@pytest.mark.parametrize("nested", ["a", "z"])
def test_a_folder_below_the_one_that_it_is_compared_with_is_apart(tmp_path: Path, nested: str) -> None:
    good = ran(tmp_path / "reports", net=(46.0, 1000))
    bad = ran(good / nested, net=(31.0, 1000))
    assert run_here(verb, "--reports", bad, "--against", good) == 1
    assert run_here(verb, "--reports", good, "--against", bad) == 0


@pytest.mark.parametrize("row", [{"verdict": "pass"}, {"figures": 1}])
def test_folders_without_a_program_in_both_or_with_a_row_that_is_none_never_pass(
    row: dict[str, Metric], tmp_path: Path
) -> None:
    before, now = ran(tmp_path / "before", gone=(46.0, 1000)), tmp_path / "now"
    report_of("test_emulator", metrics={"programs": {"net": row}}).write(now)
    with pytest.raises(CheckFailed):
        run_here(verb, "--reports", now, "--against", before)
