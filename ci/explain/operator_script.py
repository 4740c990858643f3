"""One operator and its inputs as a Python script that needs nothing of ours, for `divergence --write`."""

from __future__ import annotations

import base64
import re
import sys
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from ci.models.arrays import Array
from provisioning.base.commands import captured

FEW = 16
"""At most so many values are written one by one."""
MOST_BEFORE = 2
"""The compiler may join an operator with those before it."""
STILL = "still there"
VERDICT = re.compile(rf"^(?:{STILL}|gone): .*", re.MULTILINE)
EXIT_CODES = "Exit code: 1 the fault is still there, 0 it is gone."
HEAD = """\
import base64
import sys
import zlib
from math import inf, log10, nan

import numpy as np
"""
UNPACK = """

def unpacked(text):
    return zlib.decompress(base64.b64decode(text))


def array(kind, shape, text):
    return np.frombuffer(unpacked(text), kind).reshape(shape).copy()
"""
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
    operator: str
    sample: int
    before: int
    """How many operators before it are in the script."""


@dataclass(frozen=True, slots=True)
class ScriptSource:
    """A script of one operator of the model, alone."""

    imports: str
    body: str


@dataclass(frozen=True, slots=True)
class OperatorScript:
    needs: str
    """Packages with their versions, in words."""
    imports: str
    body: str
    """Binds `expected` and `computed`: what the CPU and the chip give."""
    environment: Mapping[str, str]
    """What it is run in here."""

    def text(self, title: str, least: float) -> str:
        title = title.replace("\\", "/").replace('"', "'")
        about = f'"""{title}.\n\nIt needs {self.needs}.\n{EXIT_CODES}"""\n'
        return f"{about}\n{HEAD}{self.imports}\nLEAST = {least:g}\n{UNPACK}\n\n{self.body}{JUDGE}"


def source_of(values: Array) -> str:
    """What makes these values in a script."""
    if values.size <= FEW:
        return f'np.array({values.tolist()}, "{values.dtype}")'
    return f'array("{values.dtype}", {values.shape}, {packed(values.tobytes())})'


def packed(content: bytes) -> str:
    """What `unpacked` of a script reads."""
    return f'"""\n{base64.encodebytes(zlib.compress(content, 9)).decode()}"""'


def table_of(arrays: Mapping[str, Array]) -> str:
    """A dict of them, as source."""
    return "{" + "".join(f"\n    {name!r}: {source_of(values)}," for name, values in arrays.items()) + "\n}"


def written(script: Path, title: str, least: float, script_of: Callable[[int], OperatorScript]) -> str:
    """What the script of the operator says, run alone, or with the fewest before it that show the fault."""
    for before in (*range(MOST_BEFORE + 1), 0):
        operator = script_of(before)
        script.write_text(operator.text(title, least), encoding="utf-8")
        verdict = _verdict_of(script, operator.environment)
        if verdict.startswith(STILL):
            break
    return verdict or "it ends without a figure"


def _verdict_of(script: Path, environ: Mapping[str, str]) -> str:
    done = captured([sys.executable, script.name], cwd=script.parent, env={**environ})
    return next(iter(VERDICT.findall(done.stdout)), "")
