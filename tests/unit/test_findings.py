"""What a command selects, the files that it writes anew, and a report however its stage ends."""

from __future__ import annotations

import argparse
import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from provisioning.__main__ import VERBS
from provisioning.base.command_line import main
from provisioning.base.errors import CheckFailed, EnvironmentLacking, UsageError
from provisioning.base.files import disk_errors, replace_text
from provisioning.base.findings import Outcome, Report, Severity
from provisioning.base.selection import add_selection, selection_of
from provisioning.base.settings import ROOT, TARGETS, Selection
from provisioning.base.stage_run import StageRun


@pytest.mark.parametrize(
    ("error", "outcome", "message", "fix"),
    [
        (EnvironmentLacking("no QNN", fix="provision"), Outcome.ERROR, "no QNN", "provision"),
        (CheckFailed("is bad", fix="mend it"), Outcome.FAIL, "is bad", "mend it"),
        (KeyboardInterrupt(), Outcome.ERROR, "interrupted", "nox -s lint"),
        (KeyError("k"), Outcome.ERROR, "KeyError: 'k'", "nox -s lint"),
    ],
)
def test_what_ends_a_stage_early_is_a_finding_of_its_report(
    tmp_path: Path, error: BaseException, outcome: Outcome, message: str, fix: str
) -> None:
    stage = StageRun("lint", "wheels", "x86_64-linux", "nox -s lint")
    with pytest.raises(type(error)), stage.reported(tmp_path, "lint.stopped", ""):
        raise error
    report = Report.read(tmp_path / "lint.json")
    (finding,) = report.findings
    assert (report.outcome, finding.rule) == (outcome, "lint.stopped")
    assert (finding.subject, finding.message) == ("lint", message) and fix in finding.fix


@pytest.mark.parametrize(
    ("severity", "strict", "code"),
    [(Severity.ERROR, False, 1), (Severity.WARNING, False, 0), (Severity.WARNING, True, 1)],
)
def test_closing_writes_shows_and_gives_the_exit_code(
    severity: Severity, strict: bool, code: int, tmp_path: Path
) -> None:
    stage = StageRun("lint", "wheels", "", "nox -s lint")
    stage.add("rule", severity, "file", "is bad")
    shown: list[Report] = []
    assert stage.close(tmp_path, strict=strict, show=shown.append) == code
    assert shown == [Report.read(tmp_path / "lint.json")]


WRITES = """\
import resource, sys
from pathlib import Path
from provisioning.base.guard import guard
from provisioning.base.stage_run import StageRun

def work():
    resource.setrlimit(resource.RLIMIT_FSIZE, (64, 64))
    StageRun("lint", "wheels", "x86_64-linux", "nox").finish().write(Path(sys.argv[1]))
    return 0

sys.exit(guard(work, debug=False))
"""


def test_a_report_for_which_there_is_no_room_lacks_a_disk_and_is_no_usage_error(tmp_path: Path) -> None:
    """A limit on the length of files stands for a full disk."""
    run = subprocess.run(
        [sys.executable, "-c", WRITES, tmp_path], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert run.returncode == 3 and str(tmp_path / "lint.json") in run.stderr, run.stderr
    assert "free some space at" in run.stderr and list(tmp_path.iterdir()) == []


def test_a_file_keeps_its_mode(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("old")
    path.chmod(0o640)
    replace_text(path, "new")
    assert (path.read_text(), path.stat().st_mode & 0o777) == ("new", 0o640)


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "real").write_text("old")
    (tmp_path / "link").symlink_to("real")
    replace_text(tmp_path / "link", "new")
    assert (tmp_path / "link").is_symlink() and (tmp_path / "real").read_text() == "new"


@pytest.mark.parametrize("step", ["write_text", "replace"])
def test_of_a_try_that_failed_nothing_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    (tmp_path / "file").write_text("old")

    def full(part: Path, *_: object, **__: object) -> None:
        part.touch()
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(Path, step, full)
        with pytest.raises(OSError) as caught:
            replace_text(tmp_path / "file", "new")
    assert caught.value.errno == errno.ENOSPC
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    assert (tmp_path / "file").read_text() == "old"


def test_of_a_copy_the_full_disk_is_named() -> None:
    with pytest.raises(EnvironmentLacking, match="written:"), disk_errors("name another"):
        raise OSError(errno.ENOSPC, "No space left on device", "read", None, "written")


def selected(*flags: str, **environ: str) -> Selection:
    parser = argparse.ArgumentParser()
    add_selection(parser)
    return selection_of(parser.parse_args(flags), environ)


def test_a_flag_goes_before_a_variable_and_a_variable_before_the_default() -> None:
    assert (selected().profile, selected(QNN_CI_PROFILE="a").profile) == ("wheels", "a")
    assert selected("--profile", "b", QNN_CI_PROFILE="a").profile == "b"
    assert selected("--soc", "SM8750", QNN_CI_SOC="SM8550").socs == ("SM8750",)


def test_what_is_selected_is_never_empty_and_what_was_named_may_be() -> None:
    default = selected(QNN_CI_SOC="")
    assert (default.socs, default.targets) == (("SM8650",), ("x86_64-linux",))
    assert (default.named_socs, default.named_targets) == ((), ())
    assert selected("--soc", "SM8550,SM8750", "--soc", "SM8550").named_socs == ("SM8550", "SM8750")
    assert selected("--soc", "8gen3,SM8650", "--soc", "Galaxy S25").named_socs == ("SM8650", "SM8750")
    assert selected("--target", "all").named_targets == TARGETS


def test_chips_are_listed_with_the_names_that_people_use(capsys: pytest.CaptureFixture[str]) -> None:
    def shown(*name: str) -> dict[str, str]:
        assert main("qnn-ci", "", VERBS, ["chips", *name]) == 0
        return dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines()[1:])

    galaxy = shown("Galaxy S25")
    assert list(galaxy) == ["SM8750"] and "8 Elite" in galaxy["SM8750"]
    assert len(shown()) > 20


def test_a_chip_that_is_wrong_in_the_variable_is_refused_by_the_variables_name() -> None:
    with pytest.raises(UsageError, match="QNN_CI_SOC"):
        selected(QNN_CI_SOC="SM87500")


def test_a_hexagon_in_place_of_a_chip_is_told_which_chips_have_it() -> None:
    with pytest.raises(UsageError) as caught:
        selected("--soc", "v79")
    assert "SM8750" in caught.value.message and "--soc" in caught.value.fix


@pytest.mark.parametrize("flags", [("--soc", ""), ("--soc", "SM8650,"), ("--profile", "")])
def test_an_empty_name_is_an_error_and_not_the_default(flags: tuple[str, ...]) -> None:
    with pytest.raises(UsageError, match=flags[0]):
        selected(*flags, QNN_CI_SOC="SM8550")
