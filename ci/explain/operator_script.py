"""Write a Python script of one operator and its inputs, which shows the operator's fault and needs nothing of
ours: `divergence --write` gives it to a user, who can send it upstream.

A graph writes the source that computes the operator on the CPU and on the chip. `proved_script` adds the
judgement, runs the script, and takes more operators in front until it shows the fault."""

from __future__ import annotations

import base64
import io
import re
import signal
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from ci.explain.divergence import DivergentOperator
from ci.models.inputs import Array
from provisioning.base.commands import capture

MOST_BEFORE = 2
"""A script has at most so many operators before the one at fault: the compiler may fuse them with it."""
STILL_THERE = "still there"
VERDICT = re.compile(rf"^(?:{STILL_THERE}|gone): .*", re.MULTILINE)
"""The line that a script prints."""
EXIT_CODES = "Exit code: 1 the fault is still there, 0 it is gone."
SCRIPT_HEAD = """\
import base64
import io
import sys
from math import inf, log10, nan

import numpy as np
"""
ARRAYS = """

def arrays(names, text):
    return dict(zip(names, np.load(io.BytesIO(base64.b64decode(text))).values()))


"""
"""The function that scripts with arrays have behind their imports."""
SCRIPT_JUDGE = """

def sqnr_db(exact, found):
    signal, noise = (exact**2).sum(), ((found - exact) ** 2).sum()
    return 10 * log10(max(1e-9, signal / max(1e-15, noise if noise == noise else inf)))


pairs = [(np.asarray(a, "float64"), np.asarray(b, "float64")) for a, b in zip(expected, computed)]
worst = min(sqnr_db(exact, found) for exact, found in pairs)
print(f"{'still there' if worst < LEAST else 'gone'}: {worst:.1f} dB, expected {LEAST:g} dB", flush=True)
sys.exit(worst < LEAST)
"""


@dataclass(frozen=True, slots=True)
class ScriptRequest:
    about: str
    """The script's docstring: it names the operator, and says what the script needs."""
    operator: str
    sample: int
    """The number of the sample whose values the script has."""
    least: float
    """The script says that the fault is still there if the outputs are fewer decibels from the CPU's than
    this."""

    @classmethod
    def of(cls, operator: DivergentOperator, program: str, least: float, needs: str) -> ScriptRequest:
        about = f"{operator.operator} ({operator.node}) of {program}.\n\nIt needs {needs}.\n{EXIT_CODES}"
        return cls(about.replace("\\", "/").replace('"', "'"), operator.node, operator.sample, least)


@dataclass(frozen=True, slots=True)
class OperatorScript:
    text: str
    verdict: str
    """The line that the script printed when it ran alone."""


def arrays_source(arrays: Mapping[str, Array]) -> str:
    """Return the expression that gives these arrays in a script."""
    import numpy

    content = io.BytesIO()
    # The copy has no gaps, as a model's own inputs have none.
    numpy.savez_compressed(content, *[array.copy() for array in arrays.values()])
    return f'arrays({[*arrays]}, """\n{base64.encodebytes(content.getvalue()).decode()}""")'


def proved_script(request: ScriptRequest, source_of: Callable[[int], str]) -> OperatorScript:
    """Write the script of the operator alone, or with the fewest operators before it that show the fault.
    `source_of` returns source that begins with imports, and binds `expected` and `computed` to what the CPU
    and the chip give."""
    alone = _script_with(request, source_of(0))
    script = alone
    for before in range(1, MOST_BEFORE + 1):
        if script.verdict.startswith(STILL_THERE):
            return script
        script = _script_with(request, source_of(before))
    return script if script.verdict.startswith(STILL_THERE) else alone


def _script_with(request: ScriptRequest, source: str) -> OperatorScript:
    """Write a script around the source, and run it for its verdict."""
    body = f"{SCRIPT_HEAD}{source}\nLEAST = {request.least:g}\n{SCRIPT_JUDGE}"
    text = f'"""{request.about}"""\n\n{body}'
    return OperatorScript(text, _printed_by(text) or "it ends without a figure")


def _printed_by(text: str) -> str:
    """Return the verdict that a script prints; empty if it prints none."""
    with tempfile.TemporaryDirectory(prefix="qnn-ci-script-") as folder:
        script = Path(folder) / "fault.py"
        script.write_text(text, encoding="utf-8")
        process = capture([sys.executable, script], cwd=folder)
    if process.returncode == -signal.SIGKILL:
        # The machine is to blame, so nothing of it is kept as a result.
        raise MemoryError("the script was killed, as the system does when memory runs out")
    verdict = VERDICT.search(process.stdout)
    return verdict[0] if verdict else ""
