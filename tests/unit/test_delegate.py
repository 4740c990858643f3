"""Choosing tests, judging them by the ledger, and remembering what has not changed."""

from __future__ import annotations

import argparse
import dataclasses
import io
import json
import os
import signal
import sys
import threading
import time
from pathlib import Path
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ci.__main__ import VERBS
from ci.engine import installed
from ci.engine.jobs import Job
from ci.engine.progress import Bar, Lines
from ci.engine.workers.parent import Setup
from ci.upstream import ledger as ledgers
from ci.upstream import stage as stages
from ci.upstream import suite as suites
from ci.upstream.expression import compile_expression
from ci.upstream.junit import junit_text
from ci.upstream.ledger import Cost, Expected, Ledger, load_durations, load_ledger
from ci.upstream.pool import Verdict
from ci.upstream.stage import Options, Plan
from ci.upstream.suite import Basis, Suite
from provisioning.base.command_line import main, termination_as_interrupt
from provisioning.base.errors import EnvironmentLacking, ManifestError, UsageError
from provisioning.base.findings import Report, Severity, StageRun
from provisioning.base.settings import MANIFESTS, Selection

SUITE = Suite({"executorch": "1.5.1", "torch": "2.13.0"}, "package", "support", ("torchvision",))
BASIS = Basis(SUITE, {"build_id": "v2.49", "libraries": "digest"}, "runner", "SM8650", {"QNN_BACKEND": "htp"})
TESTS = {f"TestOps.test_{name}": name for name in ("abs", "conv", "fails", "hangs", "segfault", "skips")}


# -k


@pytest.mark.parametrize(
    ("expression", "chosen"),
    [
        ("abs", {"abs"}),
        ("ABS", {"abs"}),
        ("abs or conv", {"abs", "conv"}),
        ("not abs", {"conv", "fails", "hangs", "segfault", "skips"}),
        ("test_s and not skips", {"segfault"}),
        ("not (abs or conv) and test_f", {"fails"}),
        ("abs or conv and fails", {"abs"}),
        ("*.test_a*", {"abs"}),
        ("TestOps", {"abs", "conv", "fails", "hangs", "segfault", "skips"}),
    ],
)
def test_expressions_choose_by_parts_of_names(expression: str, chosen: set[str]) -> None:
    matches = compile_expression(expression)
    assert {name for test, name in TESTS.items() if matches(test)} == chosen


@pytest.mark.parametrize("expression", ["", "and", "abs and", "(abs", "abs)", "not", "abs conv", "or abs"])
def test_expressions_that_make_no_sense_are_wrong_use(expression: str) -> None:
    with pytest.raises(UsageError, match="expected a part of a name"):
        compile_expression(expression)


# The ledger


def ledger(*expected: Expected, sample: tuple[str, ...] = ()) -> Ledger:
    return Ledger("wheels", expected, sample)


KNOWN = Expected("TestOps.test_fails", "failed", "the compiler refuses it")

OUTCOMES = st.sampled_from(["passed", "failed", "not_run", "expected_failure"])
VERDICTS = st.dictionaries(st.sampled_from(sorted(TESTS)), OUTCOMES)


@settings(deadline=None)
@given(st.lists(st.tuples(VERDICTS, st.sampled_from(["SM8650", "SM8750"])), max_size=4))
def test_an_updated_ledger_expects_what_was_seen(runs: list[tuple[dict[str, str], str]]) -> None:
    book = ledger(KNOWN)
    for outcomes, soc in runs:
        verdicts = [Verdict(test, outcome) for test, outcome in outcomes.items()]
        book = book.updated(verdicts, dict.fromkeys(TESTS, "because"), soc)
        assert {v.test: book.outcome(v.test, soc) for v in verdicts} == outcomes


def test_an_update_for_one_chip_leaves_the_others() -> None:
    both = Expected("TestOps.test_fails", "failed", "why", ("SM8550", "SM8650"))
    book = ledger(both).updated([Verdict("TestOps.test_fails", "passed")], {}, "SM8650")
    assert (book.outcome("TestOps.test_fails", "SM8550"), book.outcome("TestOps.test_fails", "SM8650")) == (
        "failed",
        "passed",
    )


def test_an_update_for_one_chip_leaves_the_others_of_an_entry_for_all() -> None:
    book = ledger(KNOWN).updated([Verdict(KNOWN.test, "passed")], {}, "SM8750")
    assert [book.outcome(KNOWN.test, soc) for soc in ("SM8750", "SM8650", "QCS9100")] == [
        "passed",
        "failed",
        "failed",
    ]


def test_an_update_keeps_a_cause_that_still_holds() -> None:
    book = ledger(KNOWN).updated([Verdict("TestOps.test_fails", "failed")], {KNOWN.test: "another"}, "SM8650")
    assert book.expected == (KNOWN,)


@settings(deadline=None)
@given(st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs", "Zl", "Zp"]), min_size=1))
def test_a_ledger_is_read_as_it_was_written(tmp_path_factory: pytest.TempPathFactory, cause: str) -> None:
    cause = " ".join(cause.replace('"""', "").split()) or "x"
    book = ledger(
        dataclasses.replace(KNOWN, cause=cause), Expected("TestOps.test_skips", "not_run", "no", ("SM8650",))
    )
    path = tmp_path_factory.mktemp("ledger") / "wheels.toml"
    path.write_text(book.as_toml(), encoding="utf-8")
    assert load_ledger("wheels", path) == book


def test_a_long_cause_is_wrapped_and_read_back(tmp_path: Path) -> None:
    book = ledger(dataclasses.replace(KNOWN, cause="the compiler says \\ and 'no' " * 12 + "."))
    path = tmp_path / "wheels.toml"
    path.write_text(book.as_toml(), encoding="utf-8")
    assert max(len(line) for line in path.read_text(encoding="utf-8").splitlines()) <= 110
    assert load_ledger("wheels", path) == book


def test_a_profile_without_a_ledger_expects_everything_to_pass() -> None:
    assert load_ledger("no-such-profile").outcome("TestOps.test_abs", "SM8650") == "passed"


@pytest.mark.parametrize("socs", [((), ()), ((), ("SM8650",)), (("SM8650",), ("SM8650", "SM8750"))])
def test_two_entries_for_one_test_and_chip_are_refused(
    tmp_path: Path, socs: tuple[tuple[str, ...], tuple[str, ...]]
) -> None:
    path = tmp_path / "wheels.toml"
    path.write_text(
        ledger(*(dataclasses.replace(KNOWN, socs=each) for each in socs)).as_toml(), encoding="utf-8"
    )
    with pytest.raises(ManifestError, match="twice"):
        load_ledger("wheels", path)


def test_an_entry_without_a_cause_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "wheels.toml"
    path.write_text(
        'schema = 1\n[[expected]]\ntest = "T.a"\noutcome = "failed"\ncause = ""\n', encoding="utf-8"
    )
    with pytest.raises(ManifestError, match="cause"):
        load_ledger("wheels", path)


def test_durations_are_read_as_they_were_written(tmp_path: Path) -> None:
    costs = {"T.b": Cost(1.5, 700), "T.a": Cost(120.0, 900)}
    path = tmp_path / "durations.json"
    path.write_text(ledgers.durations_text(costs), encoding="utf-8")
    assert load_durations(path) == costs


@pytest.mark.parametrize("text", ["{", "[]", '{"tests": {"T.a": 3}}', '{"tests": {"T.a": ["x", 1]}}'])
def test_damaged_durations_are_a_fault_of_the_manifest(tmp_path: Path, text: str) -> None:
    path = tmp_path / "durations.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ManifestError, match=r"durations\.json"):
        load_durations(path)


def test_only_what_ran_now_is_measured() -> None:
    verdicts = [
        Verdict("T.a", "passed", seconds=30, cpu_seconds=3, peak=5 << 20),
        Verdict("T.b", "passed", seconds=9, cached=True),
        Verdict("T.c", "failed", seconds=900, broke=True),
    ]
    assert ledgers.measured({"T.b": Cost(1, 1)}, verdicts) == {"T.a": Cost(3, 5), "T.b": Cost(1, 1)}


def test_the_committed_ledger_names_only_tests_with_a_known_length() -> None:
    book, costs = load_ledger("wheels"), load_durations()
    assert {each.test for each in book.expected} | set(book.sample) <= costs.keys()


def test_the_sample_is_short_and_different() -> None:
    book, costs = load_ledger("wheels"), load_durations()
    jobs = [Job(test, costs[test].seconds) for test in book.sample]
    assert len(jobs) >= 20
    assert sum(job.seconds for job in jobs) <= 150
    assert {test.partition(".")[0] for test in book.sample} == {
        "TestQNNFloatingPointOperator",
        "TestQNNQuantizedOperator",
    }


# The cache's key


@pytest.mark.parametrize(
    "changed",
    [
        dataclasses.replace(BASIS, soc="SM8750"),
        dataclasses.replace(BASIS, runner="other"),
        dataclasses.replace(BASIS, sdk={**BASIS.sdk, "build_id": "v2.50"}),
        dataclasses.replace(BASIS, flags={}),
        dataclasses.replace(BASIS, suite=dataclasses.replace(SUITE, package="edited")),
        dataclasses.replace(BASIS, suite=dataclasses.replace(SUITE, support="edited")),
        dataclasses.replace(BASIS, suite=dataclasses.replace(SUITE, absent=())),
        dataclasses.replace(BASIS, suite=dataclasses.replace(SUITE, versions={"executorch": "1.5.2"})),
    ],
)
def test_any_changed_input_runs_again(changed: Basis) -> None:
    assert changed.key("T.a", "source") != BASIS.key("T.a", "source")


def test_another_source_runs_again() -> None:
    assert BASIS.key("T.a", "edited") != BASIS.key("T.a", "source")


def test_nothing_changed_is_the_same_key() -> None:
    assert dataclasses.replace(BASIS, flags=dict(BASIS.flags)).key("T.a", "s") == BASIS.key("T.a", "s")


def test_the_basis_sees_every_library_of_the_sdk_and_of_the_runner(tmp_path: Path) -> None:
    sdk, runner = tmp_path / "sdk", tmp_path / "dist" / "bin" / "qnn_executor_runner"
    files = [
        sdk / "lib" / "x86_64-linux-clang" / "libQnnHtp.so",
        sdk / "lib" / "x86_64-linux-clang" / "libc++.so.1",
        runner,
        tmp_path / "dist" / "lib" / "libexecutorch.so",
    ]
    for path in files:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"v2.49.40.260810104044")
    seen = {suites.basis_of(SUITE, sdk, runner, "SM8650", {}).key("T.a", "s")}
    for path in files:
        path.write_bytes(b"v2.49.40.260810104044 changed")
        seen.add(suites.basis_of(SUITE, sdk, runner, "SM8650", {}).key("T.a", "s"))
    assert len(seen) == 5


def test_an_sdk_without_the_emulator_is_said(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentLacking, match=r"no lib/x86_64-linux-clang/libQnnHtp\.so"):
        suites.basis_of(SUITE, tmp_path, tmp_path, "SM8650", {})


def test_flags_count_and_places_do_not(tmp_path: Path) -> None:
    (tmp_path / "lib" / "x86_64-linux-clang").mkdir(parents=True)
    (tmp_path / "lib" / "x86_64-linux-clang" / "libQnnHtp.so").write_bytes(b"x")
    runner = tmp_path / "runner"
    runner.touch()
    environment = {"QNN_SDK_ROOT": "a", "QNN_CI_STORE": "b", "QNN_BACKEND": "gpu", "HOME": "c"}
    assert suites.basis_of(SUITE, tmp_path, runner, "SM8650", environment).flags == {"QNN_BACKEND": "gpu"}


# The stage, with a worker that only acts


WORKER = """\
import json, os, pathlib, signal, sys, time
replies = os.fdopen(int(sys.argv[1]), "w")
def reply(message):
    replies.write(json.dumps(message) + "\\n")
    replies.flush()
reply({"absent": []})
for line in sys.stdin:
    request = json.loads(line)
    if request["do"] == "list":
        reply({"tests": json.loads(os.environ["TESTS"])})
        continue
    test = request["test"]
    with open(os.environ["RAN"], "a") as ran:
        ran.write(test + "\\n")
    pathlib.Path(request["log"]).write_text("libc++.so.1: cannot open shared object file\\n")
    if "segfault" in test:
        os.kill(os.getpid(), signal.SIGSEGV)
    if "hangs" in test:
        time.sleep(600)
    outcome = {"fails": "failed", "skips": "not_run"}.get(test.partition("_")[2], "passed")
    reason = "" if outcome == "passed" else f"{outcome} for a reason"
    reply({"outcome": outcome, "reason": reason, "problems": [], "subtests": 0, "seconds": 0.1,
           "cpu_seconds": 0.1, "peak": 0, "resident": 0})
"""


class Bench:
    """A stage whose suite, environment and manifests are small and of this test."""

    def __init__(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root = tmp_path
        self.book = ledger(
            Expected("TestOps.test_fails", "failed", "the compiler refuses it"),
            Expected("TestOps.test_segfault", "failed", "the compiler crashes"),
            Expected("TestOps.test_skips", "not_run", "needs a device"),
        )
        self.basis = BASIS
        self.ran = tmp_path / "ran"
        script = tmp_path / "worker.py"
        script.write_text(WORKER, encoding="utf-8")
        self.command = (str(script),)
        monkeypatch.setattr(stages, "make_plan", self._plan)
        monkeypatch.setattr(ledgers, "DIRECTORY", tmp_path / "manifests")
        self.tests = [test for test in TESTS if "hangs" not in test]

    def _plan(self, options: Options, environ: object) -> Plan:
        setup = Setup(
            self.command,
            {"RAN": str(self.ran), "TESTS": json.dumps([[test, "source"] for test in self.tests])},
            options.logs,
            options.timeout,
            "the tests",
            "install them",
        )
        return Plan(setup, self.basis, self.book, {}, 2)

    def run(self, **given: object) -> tuple[int, Report]:
        options = Options(
            selection=Selection(
                "wheels", "x86_64-linux", "SM8650", self.root / "store", self.root / "reports"
            ),
            command="nox -s test_delegate",
            logs=self.root / "reports" / "delegate",
        )
        self.ran.write_text("", encoding="utf-8")
        code = stages.run_stage(dataclasses.replace(options, **given), {})  # type: ignore[arg-type]
        return code, Report.read(self.root / "reports" / "test_delegate.json")

    def executed(self) -> set[str]:
        return set(self.ran.read_text(encoding="utf-8").split())


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    return Bench(tmp_path, monkeypatch)


def figures(report: Report) -> dict[str, object]:
    names = ("passed", "failed", "not_run", "expected_failures", "unexpected_passes", "cached")
    return {name: report.metrics[name] for name in names if report.metrics[name]}


def findings(report: Report) -> dict[str, tuple[str, Severity]]:
    return {f.subject.partition("_")[2]: (f.rule, f.severity) for f in report.findings}


def test_a_run_as_the_ledger_says_passes_and_counts_each_test_once(bench: Bench) -> None:
    code, report = bench.run()
    assert code == 0
    assert figures(report) == {"passed": 2, "expected_failures": 2, "not_run": 1}


def test_known_failures_and_what_was_not_run_are_listed_with_their_cause(bench: Bench) -> None:
    _, report = bench.run()
    assert findings(report) == {
        "fails": ("delegate-known-failure", Severity.NOTE),
        "segfault": ("delegate-known-failure", Severity.NOTE),
        "skips": ("delegate-not-run", Severity.NOTE),
    }
    assert "needs a device" in next(f.message for f in report.findings if "skips" in f.subject)


def test_an_unexpected_failure_fails_and_is_explained(bench: Bench) -> None:
    bench.book = ledger()
    code, report = bench.run(expression="fails")
    assert code == 1
    (finding,) = report.findings
    assert (finding.rule, finding.severity) == ("delegate-failed", Severity.ERROR)
    assert "failed for a reason. QNN's x86 libraries" in finding.message
    assert "libcxx-missing: https://github.com/" in finding.message


def test_an_unexpected_pass_fails(bench: Bench) -> None:
    bench.book = ledger(Expected("TestOps.test_abs", "failed", "was broken"))
    code, report = bench.run(expression="abs")
    assert (code, findings(report)["abs"]) == (1, ("delegate-passed", Severity.ERROR))
    assert figures(report) == {"passed": 1, "unexpected_passes": 1}


def test_a_test_that_is_no_longer_run_fails(bench: Bench) -> None:
    bench.book = ledger()
    code, report = bench.run(expression="skips")
    assert (code, findings(report)["skips"]) == (1, ("delegate-not-run", Severity.ERROR))


def test_a_crash_is_a_failure_with_its_signal(bench: Bench) -> None:
    bench.book = ledger()
    _, report = bench.run(expression="segfault")
    assert "crash: ended by signal 11 (SIGSEGV)" in report.findings[0].message


def test_a_test_that_hangs_fails_after_its_time(bench: Bench) -> None:
    bench.tests, bench.book = ["TestOps.test_hangs"], ledger()
    code, report = bench.run(timeout=0.5)
    assert (code, figures(report)) == (1, {"failed": 1})


def test_a_second_run_takes_what_is_known_from_the_cache(bench: Bench) -> None:
    bench.run()
    code, report = bench.run()
    assert code == 0
    # A crash may have any cause, so it runs again.
    assert bench.executed() == {"TestOps.test_segfault"}
    assert figures(report) == {"passed": 2, "expected_failures": 2, "not_run": 1, "cached": 4}


def test_a_changed_input_runs_again(bench: Bench) -> None:
    bench.run(expression="abs")
    bench.basis = dataclasses.replace(BASIS, runner="rebuilt")
    bench.run(expression="abs")
    assert bench.executed() == {"TestOps.test_abs"}


def test_no_cache_runs_everything(bench: Bench) -> None:
    bench.run()
    _, report = bench.run(cache=False)
    assert bench.executed() == set(bench.tests)
    assert report.metrics["cached"] == 0


def test_a_surprise_is_never_taken_from_the_cache(bench: Bench) -> None:
    bench.book = ledger()
    bench.run(expression="fails")
    bench.run(expression="fails")
    assert bench.executed() == {"TestOps.test_fails"}


def test_updating_the_ledger_makes_the_next_run_pass(bench: Bench) -> None:
    bench.book = ledger()
    assert bench.run(update_ledger=True)[0] == 0
    written = load_ledger("wheels", ledgers.ledger_path("wheels"))
    assert {each.test.partition("_")[2]: each.outcome for each in written.expected} == {
        "fails": "failed",
        "segfault": "failed",
        "skips": "not_run",
    }
    bench.book = written
    assert bench.run()[0] == 0


def test_updating_the_ledger_records_lengths(bench: Bench) -> None:
    bench.run(update_ledger=True, expression="abs")
    assert load_durations(ledgers.durations_path()) == {"TestOps.test_abs": Cost(0.1, 0)}


def test_fail_fast_stops_and_says_how_many_were_not_reached(bench: Bench) -> None:
    bench.book = ledger()
    bench.tests = ["TestOps.test_fails", *(f"TestOps.test_{n}" for n in ("skips", "segfault"))]
    code, report = bench.run(fail_fast=True)
    assert code == 1
    assert report.metrics["not_reached"] != 0
    assert "delegate-stopped" in {finding.rule for finding in report.findings}


def test_shards_run_every_test_once(bench: Bench) -> None:
    seen: list[str] = []
    for index in (1, 2, 3):
        bench.run(shard=(index, 3), cache=False)
        seen += bench.executed()
    assert sorted(seen) == sorted(bench.tests)


def test_the_sample_is_what_the_ledger_names(bench: Bench) -> None:
    bench.book = dataclasses.replace(bench.book, sample=("TestOps.test_abs", "TestOps.test_skips"))
    _, report = bench.run(sample=True)
    assert (bench.executed(), report.metrics["selected"]) == (set(bench.book.sample), 2)


def test_listing_runs_nothing(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    bench.ran.write_text("", encoding="utf-8")
    bench.run()
    capsys.readouterr()
    bench.run(only_list=True)
    assert bench.executed() == set()
    assert "TestOps.test_skips  [not_run]" in capsys.readouterr().out


def test_a_choice_that_leaves_nothing_is_wrong_use_and_reported(bench: Bench) -> None:
    with pytest.raises(UsageError, match="no test of executorch"):
        bench.run(expression="no_such_test")
    report = json.loads((bench.root / "reports" / "test_delegate.json").read_text(encoding="utf-8"))
    assert report["outcome"] == "error"


def test_a_run_that_is_asked_to_end_reports_that_it_was_interrupted(bench: Bench) -> None:
    bench.tests = list(TESTS)

    def ask_once_it_hangs() -> None:
        while "hangs" not in bench.ran.read_text(encoding="utf-8"):
            time.sleep(0.02)
        os.kill(os.getpid(), signal.SIGTERM)

    def unheeded(*_: object) -> None:
        raise RuntimeError("nobody took it for an interrupt")

    before = signal.signal(signal.SIGTERM, unheeded)
    try:
        bench.ran.touch()
        threading.Thread(target=ask_once_it_hangs, daemon=True).start()
        with pytest.raises(KeyboardInterrupt), termination_as_interrupt():
            bench.run(expression="hangs")
    finally:
        signal.signal(signal.SIGTERM, before)
    (finding,) = Report.read(bench.root / "reports" / "test_delegate.json").findings
    assert (finding.rule, finding.message) == ("delegate-not-measured", "interrupted")


def test_junit_has_a_case_for_every_test(bench: Bench) -> None:
    bench.run()
    suite = ElementTree.parse(bench.root / "reports" / "delegate" / "junit.xml").getroot()
    assert {case.get("name") for case in suite} == {test.partition(".")[2] for test in bench.tests}
    assert (suite.get("failures"), suite.get("skipped")) == ("0", "3")


def test_junit_marks_a_surprise_as_failure_and_a_cached_case_as_cached(tmp_path: Path) -> None:
    verdicts = [
        Verdict("T.bad", "failed", "no \x00 good", (("(i=1)", "AssertionError"),)),
        Verdict("T.good", "passed", cached=True),
    ]
    suite = ElementTree.fromstring(junit_text(verdicts, ledger(), "SM8650", tmp_path))
    failure = suite.find("testcase[@name='bad']/failure")
    assert failure is not None and failure.text == "(i=1) AssertionError"
    assert suite.find("testcase[@name='good']/properties/property[@name='cached']") is not None


def test_progress_names_each_test_and_the_time_left(capsys: pytest.CaptureFixture[str]) -> None:
    lines: Lines[Verdict] = Lines(
        "tests", [Job("T.a", 60), Job("T.b", 60)], 1, lambda each: stages.line_of(each, {}), sys.stderr
    )
    lines.started(Job("T.a", 60))
    lines.ended(Job("T.a", 60), Verdict("T.a", "failed", "AssertionError: no", seconds=60), 60)
    shown = capsys.readouterr().err
    assert shown.startswith("[1/2] FAILED!     60.0 s  T.a: AssertionError: no  (about 1:00 min left)")


def test_a_bar_counts_what_needs_a_look_and_leaves_only_that_on_the_screen() -> None:
    out = io.StringIO()
    jobs = [Job("T.bad", 60), Job("T.good", 60)]
    bar: Bar[Verdict] = Bar("tests", jobs, 1, lambda each: stages.line_of(each, {}), out)
    with bar:
        for name, outcome in (("T.bad", "failed"), ("T.good", "passed")):
            bar.started(Job(name, 60))
            bar.ended(Job(name, 60), Verdict(name, outcome, "no"), 60)
        note = bar._rich.tasks[0].fields["note"]
    assert "1 to look at" in note
    assert "T.bad: no" in out.getvalue() and "passed" not in out.getvalue()


# The command line


def verb(*argv: str) -> int:
    return main("python -m ci", "", {"test_delegate": VERBS["test_delegate"]}, ["test_delegate", *argv])


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (("--shard", "3/2"), "1 <= i <= n"),
        (("--target", "aarch64-linux"), "the emulator is for x86_64-linux"),
        (("--soc", "SM8650,SM8750"), "one chip at a time"),
    ],
)
def test_wrong_use_is_said_before_anything_runs(
    argv: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert verb(*argv) == 2
    assert said in capsys.readouterr().err


def test_a_missing_runner_names_the_command_that_builds_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(installed, "RUNNER", tmp_path / "absent")
    with pytest.raises(EnvironmentLacking, match="not built yet") as caught:
        installed.find_runner({})
    assert caught.value.remedy == "nox -s build_runner"


BUILDS = """\
import os, pathlib, sys
assert sys.argv[1:4] == ["-m", "ci", "build_runner"], sys.argv
print("built")
if os.environ["CODE"] == "0":
    pathlib.Path(os.environ["RUNNER"]).touch()
sys.exit(int(os.environ["CODE"]))
"""


@pytest.fixture
def no_runner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where none is, with a Python whose `build_runner` makes one there, or ends with CODE."""
    runner, script = tmp_path / "runner", tmp_path / "python"
    script.write_text(f"#!{sys.executable}\n{BUILDS}", encoding="utf-8")
    script.chmod(0o755)
    monkeypatch.setattr(installed, "RUNNER", runner)
    monkeypatch.setattr("ci.engine.installed.sys.executable", str(script))
    return runner


def test_a_runner_that_a_stage_needs_is_built_first(
    no_runner: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    environ = {"CODE": "0", "RUNNER": str(no_runner)}
    assert installed.ready_runner(environ, no_runner.parent) == no_runner
    said = capfd.readouterr()
    assert said.out == "" and said.err.splitlines() == [
        "qnn_executor_runner is not built yet: nox -s build_runner",
        "built",
    ]


def test_a_runner_that_cannot_be_built_is_something_lacking(no_runner: Path) -> None:
    with pytest.raises(EnvironmentLacking, match="exit code 3 of build_runner") as caught:
        installed.ready_runner({"CODE": "3", "RUNNER": str(no_runner)}, no_runner.parent)
    assert caught.value.remedy == "nox -s build_runner"


def test_the_users_own_runner_is_taken(tmp_path: Path) -> None:
    own = tmp_path / "runner"
    own.touch()
    assert installed.find_runner({"QNN_EXECUTOR_RUNNER": str(own)}) == own


def test_judging_names_the_log_of_a_surprise(tmp_path: Path) -> None:
    (tmp_path / "T.bad.log").write_text("nothing known\n", encoding="utf-8")
    stage = StageRun("test_delegate", "wheels", "x86_64-linux", "")
    stages.judge(stage, [Verdict("T.bad", "failed", "AssertionError: odd")], ledger(), "SM8650", tmp_path)
    assert "nothing known matches its log" in stage.findings[0].message
    assert [artifact.path for artifact in stage.artifacts] == [str(tmp_path / "T.bad.log")]


@pytest.mark.parametrize(
    ("profile", "soc", "flags"),
    [("wheels", "SM8650", ""), ("qnn-2.37", "SM8750", " --profile qnn-2.37 --soc SM8750")],
)
def test_a_remedy_runs_the_test_on_the_same_chip(tmp_path: Path, profile: str, soc: str, flags: str) -> None:
    stage = StageRun("test_delegate", profile, "x86_64-linux", "")
    book = dataclasses.replace(ledger(Expected("T.good", "failed", "was broken")), profile=profile)
    stages.judge(stage, [Verdict("T.good", "passed", "")], book, soc, tmp_path)
    assert stage.findings[0].remedy == f"nox -s test_delegate -- -k good{flags} --update-ledger"


def test_help_shows_every_example_as_a_command_that_parses() -> None:
    from ci import upstream as delegate

    parser = argparse.ArgumentParser()
    delegate.configure(parser)
    import shlex

    for line in delegate.EXAMPLES.splitlines():
        parser.parse_args(shlex.split(line)[4:])


def test_the_ledgers_of_all_profiles_are_read() -> None:
    profiles = {path.stem for path in (MANIFESTS / "profiles").glob("*.toml")}
    found = {path.stem for path in (MANIFESTS / "delegate").glob("*.toml")}
    assert found <= profiles
    assert all(load_ledger(profile).profile == profile for profile in found)
