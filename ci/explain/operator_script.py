"""One operator and its inputs as a Python script that needs nothing of ours, for `divergence --write`."""

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
from provisioning.base.commands import captured

MOST_BEFORE = 2
"""The compiler may join an operator with those before it."""
STILL = "still there"
VERDICT = re.compile(rf"^(?:{STILL}|gone): .*", re.MULTILINE)
EXIT_CODES = "Exit code: 1 the fault is still there, 0 it is gone."
HEAD = """\
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
"""Of a script, behind its imports."""
JUDGE = """

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
    """The operator, and what the script needs."""
    operator: str
    sample: int
    least: float

    @classmethod
    def of(cls, operator: DivergentOperator, program: str, least: float, needs: str) -> ScriptRequest:
        about = f"{operator.operator} ({operator.node}) of {program}.\n\nIt needs {needs}.\n{EXIT_CODES}"
        return cls(about.replace("\\", "/").replace('"', "'"), operator.node, operator.sample, least)


@dataclass(frozen=True, slots=True)
class OperatorScript:
    text: str
    verdict: str
    """What it says when it runs alone."""


def arrays_source(arrays: Mapping[str, Array]) -> str:
    """What gives them in a script."""
    import numpy

    content = io.BytesIO()
    # A tensor without gaps, as a model's own inputs are.
    numpy.savez_compressed(content, *[array.copy() for array in arrays.values()])
    return f'arrays({[*arrays]}, """\n{base64.encodebytes(content.getvalue()).decode()}""")'


def proved(request: ScriptRequest, source_of: Callable[[int], str]) -> OperatorScript:
    """The script of the operator alone, or with the fewest before it that show the fault. A source begins
    with imports, and binds `expected` and `computed`: what the CPU and the chip give."""
    for before in (*range(MOST_BEFORE + 1), 0):
        body = f"{HEAD}{source_of(before)}\nLEAST = {request.least:g}\n{JUDGE}"
        text = f'"""{request.about}"""\n\n{body}'
        verdict = _verdict_of(text)
        if verdict.startswith(STILL):
            break
    return OperatorScript(text, verdict or "it ends without a figure")


def _verdict_of(text: str) -> str:
    with tempfile.TemporaryDirectory(prefix="qnn-ci-script-") as folder:
        script = Path(folder) / "fault.py"
        script.write_text(text, encoding="utf-8")
        done = captured([sys.executable, script], cwd=folder)
    if done.returncode == -signal.SIGKILL:
        # Of the machine, so that nothing of it is kept as a result.
        raise MemoryError("the script was killed, as the system does when memory runs out")
    return next(iter(VERDICT.findall(done.stdout)), "")
