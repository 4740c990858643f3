"""The emulator's stage on its own: it lowers what it needs, and a run that goes wrong stops no other."""

from __future__ import annotations

import stat
from collections.abc import Mapping
from pathlib import Path

import pytest

from ci.engine.installed import find_runner
from provisioning.base.findings import Report
from tests.support.lowering_suites import Done, environment, run, suite
from tests.support.runner import dist, runner_reports

__all__ = ["dist", "runner_reports"]
pytestmark = [pytest.mark.heavy, pytest.mark.timeout(600)]

WRONG = {"hangs": "emulator-timeout", "crashes": "emulator-run", "nan": "emulator-not-finite"}
"""Cases that the runner below ends otherwise than the real one, and what is to be said of each."""

SCRIPT = """\
#!/bin/sh
case "$*" in
  */hangs/*) sleep 600 ;;
  */crashes/*) kill -SEGV $$ ;;
  */nan/*)
    {runner} "$@" || exit 1
    for output in outputs/*.raw; do
      printf '\\000\\000\\300\\177' | dd of="$output" bs=4 seek=3 conv=notrunc status=none
    done ;;
  *) exec {runner} "$@" ;;
esac
"""


def _runner(folder: Path, script: str) -> Path:
    path = folder / "runner"
    path.write_text(script)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


@pytest.fixture(scope="module")
def base(dist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("emulator")


@pytest.mark.whole
def test_alone_it_lowers_first_and_keeps_both(base: Path) -> None:
    one = suite(base, {"net": {}})
    first = run("test_emulator", base, "--suite", one, "--reload")
    assert first.code == 0 and first.err.count("0 cached, 1 to do") == 3
    assert first.report.metrics["loaded again"] == 1
    again = run("test_emulator", base, "--suite", one)
    assert again.cached() == {"net"} and again.err.count("1 cached, 0 to do") == 2


@pytest.mark.whole
def test_another_runner_runs_it_again(base: Path) -> None:
    other = _runner(base, "#!/bin/sh\nexit 7\n")
    done = run(
        "test_emulator",
        base,
        *("--suite", suite(base, {"net": {}})),
        environ=environment(QNN_EXECUTOR_RUNNER=str(other)),
    )
    (finding,) = [each for each in done.report.findings if each.rule == "emulator-run"]
    assert "exit code 7" in finding.message


@pytest.fixture(scope="module")
def mixed(base: Path) -> Done:
    """Runs that hang, crash and give NaN, and good ones, one after another."""
    wrapped = _runner(base, SCRIPT.format(runner=find_runner(environment())))
    path = suite(base, {name: {} for name in ("good", *WRONG, "other")})
    return run(
        "test_emulator",
        base,
        *("--suite", path, "--run-timeout", "20", "--jobs", "1", "--no-cache"),
        environ=environment(QNN_EXECUTOR_RUNNER=str(wrapped)),
    )


def _row(report: Report, case: str) -> Mapping[str, object]:
    rows = report.metrics["programs"]
    assert isinstance(rows, Mapping)
    row = rows[f"{case}/16a16w/SM8650"]
    assert isinstance(row, Mapping)
    return row


@pytest.mark.whole
class TestARunThatGoesWrong:
    @pytest.mark.parametrize("case", WRONG)
    def test_is_one_finding_that_says_how(self, mixed: Done, case: str) -> None:
        assert (mixed.code, mixed.rules(case)) == (1, {WRONG[case]})

    @pytest.mark.parametrize("case", ["good", "other"])
    def test_does_not_stop_the_others(self, mixed: Done, case: str) -> None:
        assert not mixed.rules(case) and _row(mixed.report, case)["verdict"] == "pass"

    @pytest.mark.parametrize("case", WRONG)
    def test_keeps_its_inputs_outputs_and_log(self, mixed: Done, case: str, base: Path) -> None:
        kept = base / f"reports/emulator/{case}/16a16w/SM8650"
        names = {path.relative_to(kept).as_posix() for path in kept.rglob("*") if path.is_file()}
        outputs = {"outputs/output_0_0.raw"} if case == "nan" else set()
        assert {"input_0_0.raw", "float_0_0.raw", "quantized_0_0.raw", "run.log"} | outputs <= names

    def test_of_a_good_one_nothing_is_kept(self, mixed: Done, base: Path) -> None:
        assert not (base / "reports/emulator/good/16a16w/SM8650").exists()

    def test_load_run_and_memory_of_the_good_ones_are_recorded(self, mixed: Done) -> None:
        row = _row(mixed.report, "good")
        assert all(isinstance(row[name], int | float) and row[name] for name in ("load_ms", "run_ms"))
        peak = row["peak_bytes"]
        # The emulator alone is tens of megabytes, and the model is nothing beside it.
        assert isinstance(peak, int | float) and 20 << 20 < peak < 2 << 30
