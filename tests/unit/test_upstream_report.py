"""The report for the compiler's developers: which of several scripts it is."""

from __future__ import annotations

import signal
from collections.abc import Sequence

import pytest

from ci.explain.upstream_report import ReportRequest, smallest_report

GONE = "print('gone: it compiles')"
STEP = 'fold.py", line 7,'
OTHER = "print('still there: KeyError')\nraise SystemExit(1)"
SHOWS = f"print('''{STEP}\nstill there: KeyError''')\nraise SystemExit(1)"
DIES = "import os\nos.kill(os.getpid(), 11)"


@pytest.mark.parametrize(
    ("shows", "texts", "chosen"),
    [
        (STEP, [GONE, SHOWS], 1),
        (STEP, [OTHER, SHOWS], 1),
        (STEP, [SHOWS, OTHER], 0),
        (STEP, [DIES, GONE, OTHER], None),
        ("SIGSEGV", [SHOWS, DIES], 1),
        ("SIGABRT", [DIES], None),
        ("", [GONE, OTHER], 1),
    ],
)
def test_the_first_script_is_chosen_that_shows_the_same_fault_alone(
    shows: str, texts: Sequence[str], chosen: int | None
) -> None:
    request = ReportRequest("a step fails", ("net.py:7",), dies=True, shows=shows)
    script = smallest_report(request, texts)
    assert script.text == ("" if chosen is None else texts[chosen])
    assert bool(script.verdict) is (chosen is not None)


def test_a_script_that_the_system_kills_shows_nothing() -> None:
    kills = f"import os\nos.kill(os.getpid(), {int(signal.SIGKILL)})"
    with pytest.raises(MemoryError):
        smallest_report(ReportRequest("", ("net.py:7",), dies=True), [kills])
