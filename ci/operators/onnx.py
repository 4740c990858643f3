"""The measured table of ONNX's operators, as ONNX Runtime compiles them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cache

from ci.operators.table import (
    FAILING,
    NOT_COMPILED,
    Inexact,
    OperatorTable,
    failure_of,
    in_db,
    place_of,
    read,
)
from provisioning.base.commands import session
from provisioning.base.settings import DEFAULT_SOC, MANIFESTS

TABLE = MANIFESTS / "onnx_operators.json"


@cache
def shipped() -> OperatorTable:
    """The committed table."""
    return read(TABLE)


def inexact_onnx(operators: Iterable[str], precision: str, soc: str = DEFAULT_SOC) -> Iterator[Inexact]:
    """Those of these operators of ONNX that fail in ONNX Runtime, with the precision to use instead."""
    few = "" if soc == DEFAULT_SOC else f"{soc} was not measured"
    place = place_of(DEFAULT_SOC, shipped().measured.get(DEFAULT_SOC, ""), few)
    for name in sorted(set(operators)):
        cells = shipped().cells.get(name, {}).get(DEFAULT_SOC, {})
        cell = cells.get(precision)
        if cell is None or cell.result not in FAILING:
            continue
        compiles = cell.result not in NOT_COMPILED
        figure = in_db(cell.db).strip() or "no figure"
        verb = f"is wrong ({figure})" if compiles else failure_of(cell)
        if cell.result == "lost":
            verb = f"is far from float ({figure}) once it is quantized, as seen"
        order = ("16a8w", "8a8w", "fp16") if precision == "fp16" else ("8a8w", "16a8w", "fp16")
        better = next((name for name in order if name in cells and cells[name].good), "")
        instead = f": keep it at {better}" if better else ""
        message = f"{name} at {precision} {verb} on the emulator of {place}{instead}"
        words = ("--suite", "manifests/suites/onnx_operators.toml", "-k", f"{name}/{precision}/")
        yield Inexact(name, message, session("test_onnx", *words), compiles)
