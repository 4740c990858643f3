"""The fixture `qnn`, by which a user's own tests compile their nets: docs/model.md.

It imports the standard library and pytest alone; each compile is a command in qnn-ci's locked environment.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest

from qnn_ci import api

MARKER = "qnn(precision, soc): what `qnn` compiles for; lists make a test for each combination"
FIELDS = ("precision", "soc")
PYTHON = "qnn_python"
"""The property of a test, and of its JUnit case, that names the interpreter of the work."""


@dataclass(frozen=True)
class Qnn:
    """The functions of `qnn_ci` with the marker's precision and chip, where a call names none."""

    item: pytest.Item
    precision: str | None = None
    soc: str | None = None

    def compile(self, model: object, inputs: object = None, **more: Any) -> api.Compiled:
        """Compile as qnn_ci.compile does. Its accuracy is in the JUnit case, too."""
        __tracebackhide__ = True
        answer = api.compile(model, inputs, **{"precision": self.precision, "soc": self.soc, **more})
        figures = {name: answer.accuracy[name] for name in ("sqnr_db",) if name in answer.accuracy}
        self._record(answer, figures)
        return answer

    def audit(self, model: object, inputs: object = None, **more: Any) -> api.Audited:
        """Audit as qnn_ci.audit does, at the marker's precision."""
        __tracebackhide__ = True
        precisions = (self.precision,) if self.precision else ()
        answer = api.audit(model, inputs, **{"precisions": precisions, "soc": self.soc, **more})
        self._record(answer, {})
        return answer

    def run(self, program: Any, *inputs: Any, **more: Any) -> api.Ran:
        """Run as qnn_ci.run does."""
        __tracebackhide__ = True
        answer = api.run(program, *inputs, **more)
        self._record(answer, {})
        return answer

    def _record(self, answer: api.Answer, figures: Mapping[str, float]) -> None:
        if PYTHON not in dict(self.item.user_properties):
            self.item.user_properties.append((PYTHON, answer.python))
        self.item.user_properties += [(f"qnn_{name}", f"{value:g}") for name, value in figures.items()]


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("qnn", "programs for Qualcomm's NPUs (qnn-ci)")
    group.addoption("--qnn-soc", metavar="CHIP", help="the chip of tests that name none")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", MARKER)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "qnn" not in metafunc.fixturenames:
        return
    options = _options(metafunc.definition)
    lists = {name: value for name, value in options.items() if isinstance(value, (list, tuple))}
    if lists:
        rows = [dict(zip(lists, values, strict=True)) for values in itertools.product(*lists.values())]
        metafunc.parametrize(
            "qnn", rows, indirect=True, ids=["-".join(map(str, row.values())) for row in rows]
        )


def _options(item: Any) -> dict[str, Any]:
    """Return what the nearest marker says."""
    marker = item.get_closest_marker("qnn")
    return {} if marker is None else dict(marker.kwargs)


@pytest.fixture
def qnn(request: pytest.FixtureRequest) -> Qnn:
    """Compiles, audits and runs nets on the HTP emulator, at the precision and for the chip of the marker."""
    options = {**_options(request.node), **getattr(request, "param", {})}
    if unknown := sorted(set(options) - set(FIELDS)):
        pytest.fail(f"{', '.join(unknown)}: expected @pytest.mark.{MARKER}", pytrace=False)
    options.setdefault("soc", request.config.getoption("--qnn-soc"))
    return Qnn(request.node, **options)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Which Python did the work: the tests' own only imports and exports."""
    reports = itertools.chain.from_iterable(terminalreporter.stats.values())
    works = [dict(getattr(report, "user_properties", ())) for report in reports]
    for python in dict.fromkeys(work[PYTHON] for work in works if PYTHON in work):
        terminalreporter.write_line(f"qnn: compiled and run by {python}")
