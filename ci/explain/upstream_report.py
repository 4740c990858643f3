"""Write what the compiler's developers need of a fault: the smallest part of the model that shows it, as a
script that needs nothing of ours (`compile --report-upstream`)."""

from __future__ import annotations

import signal
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from ci.explain.operator_script import EXIT_CODES, STILL_THERE, VERDICT, OperatorScript
from provisioning.base.commands import capture


@dataclass(frozen=True, slots=True)
class ReportRequest:
    fault: str
    """Says what is wrong, with the compiler's step."""
    lines: tuple[str, ...]
    """The lines of the model, FILE:LINE, that the fault is at: the first one, and those around."""
    dies: bool
    """Whether the compiler dies; otherwise its program's outputs are wrong."""
    shows: str = ""
    """What a script prints that dies of this fault has this in it; or this signal ends it."""
    needs: str = ""
    """Names the packages and their versions."""

    @property
    def is_signal(self) -> bool:
        return self.shows.startswith("SIG")

    @property
    def about(self) -> str:
        """Give the script's first lines."""
        by_signal = f"\n{self.shows} ends it, as long as the fault is there." if self.is_signal else ""
        text = f"{self.fault}\n\nAt {self.lines[0]} of a model. With {self.needs}.\n{EXIT_CODES}{by_signal}"
        return text.replace("\\", "/").replace('"', "'")


def smallest_report(request: ReportRequest, texts: Iterable[str]) -> OperatorScript:
    """Return the first of these scripts that shows the fault when it runs alone; without text if none
    does."""
    for text in texts:
        if verdict := _shown_by(request, text):
            return OperatorScript(text, verdict)
    return OperatorScript("", "")


def _shown_by(request: ReportRequest, text: str) -> str:
    """Run a script, and return its verdict if it shows the fault."""
    with tempfile.TemporaryDirectory(prefix="qnn-ci-report-") as folder:
        script = Path(folder) / "fault.py"
        script.write_text(text, encoding="utf-8")
        process = capture([sys.executable, script], cwd=folder)
    if process.returncode == -signal.SIGKILL:
        # The machine is to blame, so nothing of it is kept as a result.
        raise MemoryError("the script was killed, as the system does when memory runs out")
    if process.returncode < 0:
        ending = signal.Signals(-process.returncode).name
        return f"{STILL_THERE}: it ends with {ending}" if request.shows == ending else ""
    verdict = VERDICT.search(process.stdout)
    is_shown = verdict and verdict[0].startswith(STILL_THERE) and request.shows in process.stdout
    return verdict[0] if verdict and is_shown else ""
