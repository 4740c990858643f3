"""`divergence`: the first operator whose output on the emulator is not the quantized model's.

ExecuTorch's debugger compares the outputs of all nodes of one program. But to hand out an output changes what
the compiler fuses, and may repair what is searched. So each node is the last one of a program of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ci.engine.installed import ready_environment, ready_runner
from ci.executorch.one_model import program_named
from ci.executorch.stage import chosen
from ci.executorch.suite import Program
from provisioning.base.commands import captured_module
from provisioning.base.errors import CheckFailed, UsageError
from provisioning.base.files import write_named
from provisioning.base.settings import DEFAULT_TARGET, Selection, selection_of

LEAST_DB = 30.0
CHILD = "ci.executorch.cut_programs"


def run(args: argparse.Namespace) -> int:
    selection = replace(selection_of(args), target=DEFAULT_TARGET)
    program = _program(args, selection)
    thresholds = program.run.effective_thresholds
    least = args.least or (thresholds.reference_sqnr_db if thresholds else None) or LEAST_DB
    runner = ready_runner(os.environ, selection.reports)
    found = ready_environment(selection, os.environ)
    with tempfile.TemporaryDirectory(prefix="qnn-ci-divergence-") as scratch:
        order = {
            "case": json.loads(program.case.model_dump_json(by_alias=True)),
            "run": json.loads(program.run.model_dump_json()),
            "soc": program.soc,
            "search_path": str(program.search_path),
            "runner": str(runner),
            "least": least,
        }
        (Path(scratch) / "order.json").write_text(json.dumps(order), encoding="utf-8")
        environ = {**found.merged(os.environ), "PYTHONWARNINGS": "ignore"}
        done = captured_module(CHILD, [scratch], environ, args.timeout, program.name, cwd=scratch)
        answer = Path(scratch) / "answer.json"
        if not answer.is_file():
            lines = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
            raise CheckFailed(
                f"{program.name}: {lines[-1] if lines else 'the search ended without a word'}",
                remedy="nox -s audit says what does not compile, and what to write instead",
            )
        result = json.loads(answer.read_text(encoding="utf-8"))
    if args.json:
        write_named(args.json, json.dumps({"schema": 1, "program": program.name, **result}, indent=2) + "\n")
    print("\n".join(as_text(result)))
    return int(result["sqnr_db"] < least)


def _program(args: argparse.Namespace, selection: Selection) -> Program:
    if args.model:
        return program_named(args.model, args.precision, selection.soc, selection)
    args.shard = None
    programs = [each for each in chosen(args, selection) if each.backend == "htp"]
    if len(programs) != 1:
        names = ", ".join(program.name for program in programs[:5])
        raise UsageError(
            f"expected a MODEL or one program of a suite, found {len(programs)} ({names} …)",
            remedy="name the program: --suite FILE -k CASE/RUN/SOC",
        )
    return programs[0]


def as_text(result: Mapping[str, Any]) -> list[str]:
    whose, least = result["reference"], result["least"]
    lines = [f"the whole program: {result['sqnr_db']:.1f} dB SQNR against {whose}"]
    first = result["first"]
    if result["sqnr_db"] >= least:
        return [*lines, f"that is no difference: at least {least:g} dB"]
    if first is None:
        return [*lines, "each program that ends at an operator agrees: only all of them together differ"]
    where = f" in {first['module']}" if first["module"] else ""
    where += f" at {first['source']} `{first['code']}`" if first["source"] else ""
    lines.append(f"first different: {first['operator']} ({first['node']}){where}")
    lines.append(
        f"  programs that end there: {first['sqnr_db']:.1f} dB; at its operands: "
        + (", ".join(f"{name} {value:.1f} dB" for name, value in first["operands"].items()) or "the inputs")
    )
    lines.append(f"  {len(result['cuts'])} programs were cut, compiled and run")
    return lines
