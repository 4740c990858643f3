"""Which results are looked up: by the exported model, the suite's packages and what the work is asked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, make_dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from ci.models.own_packages import OwnPackages
from ci.work.cached_steps import NotCached, Step, WorkPlan, run_step
from ci.work.jobs import Job, WorkOptions
from ci.work.outcome import Refused, Result
from ci.work.processes import ChildTask
from ci.work.results import Key
from provisioning.base.settings import Selection
from tests.unit.test_work import home_in

LINE, OTHER_LINE = ("net.py:3", "x + 1"), ("net.py:9", "x + 2")
pytestmark = pytest.mark.usefixtures("one_template")


@dataclass(frozen=True)
class Ran:
    """A step of one program, whose work writes no files."""

    folder: Path
    asked: Mapping[str, object]

    def _request(self) -> Any:
        fields = {**self.asked, "says": f"{LINE[0]} `{LINE[1]}`"}
        return make_dataclass("Asked", [*fields], frozen=True)(**fields)

    def result(
        self,
        model: str = "net",
        *,
        own: OwnPackages | None = None,
        kept: str = "",
        line: tuple[str, str] = LINE,
        keeps: bool = True,
        zone: str = "UTC",
    ) -> Result:
        selection = Selection("wheels", "x86_64-linux", "SM8750", self.folder / "store", self.folder)
        plan = WorkPlan((Job("net"),), selection, WorkOptions(30), self.folder / "logs")

        def export(program: Any) -> ChildTask:
            exported, log = {"model": model, "lines": {"add": line}}, self.folder / "export.log"
            return ChildTask("net", "tests.support.tasks:echo", exported, 30, log)

        def export_key(program: Any, reply: Mapping[str, object]) -> Key:
            if kept == "never":
                raise NotCached("its operator is of nobody knows where")
            if kept == "refused":
                raise Refused({"kind": "factory", "message": "no model", "fix": "", "exit_code": 1})
            return {"model": str(reply["model"])}

        step = Step(
            plan=plan,
            kind="toys",
            title="toys",
            function="tests.support.tasks:echo",
            home=lambda packages: home_in(self.folder, TZ=zone),
            request=lambda program: self._request(),
            export=export,
            export_key=export_key,
            keeps=lambda program, result: keeps,
            remains_of=lambda *_: {"says": "a part"},
        )
        return run_step(step, [Job("net")], own)["net"]


@pytest.fixture
def ran(tmp_path: Path) -> Ran:
    return Ran(tmp_path, {"precision": "8a8w"})


def test_an_equal_model_is_looked_up_and_no_other(ran: Ran) -> None:
    assert not ran.result().cached and ran.result().cached
    assert not ran.result("edited").cached
    assert ran.result().cached and ran.result("edited").cached
    assert not replace(ran, asked={"precision": "16a8w"}).result().cached
    # What is around it counts: packages, processor, Python, fixed variables (tests/unit/test_results.py).
    assert not ran.result(zone="CET").cached


def test_the_packages_variables_and_wheels_of_its_suite_decide_it(ran: Ran) -> None:
    packages = [
        OwnPackages(lock="one"),
        OwnPackages(lock="another"),
        OwnPackages(lock="one", versions={"numpy": "2"}),
        OwnPackages(lock="one", declared={"DATA": "a digest"}),
        OwnPackages(lock="one", wheels={"net": "a hash"}),
    ]
    assert not any(ran.result(own=own).cached for own in packages)
    assert ran.result(own=packages[0]).cached


def test_what_may_not_be_cached_is_neither_kept_nor_looked_up(
    ran: Ran, capsys: pytest.CaptureFixture[str]
) -> None:
    ran.result()
    assert not ran.result(kept="never").cached and not ran.result("other", kept="never").cached
    assert "net is not cached: its operator is of nobody knows where" in capsys.readouterr().err
    assert not ran.result("other").cached


def test_what_is_refused_of_a_model_is_its_failure_each_time(ran: Ran) -> None:
    ran.result()
    refused = ran.result(kept="refused")
    assert refused.failure and refused.failure.message == "no model" and not refused.cached
    # What its export printed is there to be read.
    assert refused.failure.log == ran.folder / "export.log"
    # Also of its work, whatever that has left.
    error = {"kind": "factory", "message": "no work", "fix": "", "exit_code": 1}
    failure = replace(ran, asked={"error": error}).result().failure
    assert failure and failure.message == "no work"


def test_what_is_not_accepted_is_done_again_and_hides_no_earlier_result(ran: Ran) -> None:
    assert not ran.result().cached
    assert not ran.result(keeps=False).cached
    assert (ran.folder / "logs" / "net.log").is_file()
    assert not ran.result().cached


def test_a_cached_message_has_the_line_of_today(ran: Ran) -> None:
    ran.result()
    found = ran.result(line=OTHER_LINE)
    assert found.cached and found.facts["says"] == f"{OTHER_LINE[0]} `{OTHER_LINE[1]}`"
