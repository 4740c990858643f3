"""`test_upstream` on two small suites, through the command: choice of tests, what is recorded."""

from __future__ import annotations

from pathlib import Path

import pytest

from ci import trouble
from ci.lanes.upstream.accepted import load_tests
from provisioning.base.findings import Report, Severity
from tests.support.upstream_suite import Suite

TESTS = """\
import os, signal, time

import pytest


@pytest.fixture(autouse=True)
def ran(request):
    ran = f"{os.environ['QNN_SDK_ROOT']}/../ran/{time.time_ns()}-{request.node.originalname}"
    open(ran, "w").close()


flow = pytest.mark.parametrize("flow", ["qnn_8a8w"])
"""

PASSES = """
@flow
def test_relu(flow):
    pass


def test_hangs():
    while True:
        pass


def test_waits():
    time.sleep(600)


def test_killed():
    os.kill(os.getpid(), signal.SIGKILL)


def test_full():
    with open("/dev/full", "w") as full:
        full.write("program")
"""

TRAINING = """
@flow
def test_conv1d(flow):
    pass
"""


@pytest.fixture
def suite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Suite:
    suite = Suite(tmp_path).activated(monkeypatch)
    suite.write(suite.tests / "test_passes.py", TESTS + PASSES)
    suite.write(suite.tests / "test_conv_bn_qat.py", TESTS + TRAINING)
    return suite


def both(suite: Suite, *flags: str) -> tuple[int, Report]:
    return suite.run("passes", "qat", *flags, stage="test_upstream")


@pytest.mark.whole
def test_what_the_machine_does_is_no_expectation_and_a_time_limit_is_one_in_words(
    suite: Suite, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Other tests run beside this one, and take the processor from what computes.
    monkeypatch.setattr(trouble, "BUSY", 0.1)
    chosen = "hangs or waits or killed or full"
    code, report = both(suite, "-k", chosen, "--timeout", "3", "--accept")
    accepted = load_tests("passes", "wheels", "SM8650")
    assert {test: row.outcome for test, row in accepted.tests.items()} == {"test_hangs": "timeout"}
    assert accepted.cause("test_hangs").startswith("no result after 3 s")
    errors = {
        finding.subject: finding.rule for finding in report.findings if finding.severity is Severity.ERROR
    }
    unknown = ("test_waits", "test_killed", "test_full")
    assert (code, errors) == (3, dict.fromkeys(unknown, "upstream-machine"))


def test_the_delegate_suite_is_one_of_them_and_shares_what_its_own_command_remembers(suite: Suite) -> None:
    assert suite.run("delegate", "-k", "*_abs", stage="test_upstream")[0] == 0
    assert (suite.run("-k", "*_abs")[0], suite.executed) == (0, set())
