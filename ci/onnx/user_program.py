"""MODEL of a command line as a program like those of a suite, prepared by one worker."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ci.onnx.asking import Steps, dimensions_of, precision_of, search_path, step
from ci.onnx.compile import key, require_installed
from ci.onnx.one_model import memory, remembered
from ci.onnx.options import parse_assignments, settings_of
from ci.onnx.suite import Case, Program, Run
from ci.suites.user_model import user_model
from provisioning.base.settings import Selection
from provisioning.manifest import soc_named

SAMPLES, CONTEXT = "samples.npz", "model_ctx.onnx"
Order = Callable[..., dict[str, Any]]


def program_of(args: argparse.Namespace, precision: str | None, selection: Selection) -> Program:
    require_installed()
    named = user_model(args.model, search_path())
    assert named.file is not None
    options = parse_assignments(args.option)
    # Before the suite's own check, whose message would name a field.
    settings_of(options, soc=soc_named(selection.soc), embed=True)
    run = Run(
        precision=precision_of(named.file, precision),
        socs=(selection.soc,),
        per_channel=args.per_channel,
        options=dict(options),
    )
    case = Case(
        model=str(named.file),
        dimensions=dimensions_of(args.dimension),
        calibrate=args.calibrate or "",
        run=(run,),
    )
    return Program(search_path() / "no-suite.toml", named.name, case, run, selection.soc)


def prepared(program: Program, steps_of: Steps, log: Path, scratch: Path) -> Order:
    """Have the model checked and quantized. Returns what takes further orders about it."""
    common = {
        "case": json.loads(program.case.model_dump_json(by_alias=True)),
        "run": json.loads(program.run.model_dump_json()),
        "soc": program.soc,
        "search_path": str(program.search_path),
        "prepared": str(scratch / "prepared"),
    }

    def order(what: str, folder: Path, **more: Any) -> dict[str, Any]:
        folder.mkdir(exist_ok=True)
        return steps_of(what, log, into=str(folder), **common, **more)

    common["source"] = common["model"] = order("prepare", scratch / "prepared", drawn=True)["model"]
    common["model"] = order("quantize_run", scratch / "quantized")["model"]
    return order


def mixed(args: argparse.Namespace, program: Program, store: Path) -> tuple[Mapping[str, Any], Path]:
    """Compile for HTP what it takes: facts, and the folder of the contexts with the other nodes beside."""
    subject = f"{args.model} in {program.run.precision} for {program.soc}"
    with (
        tempfile.TemporaryDirectory(prefix="qnn-ci-onnx-") as temporary,
        memory(args, Path(program.case.model), store, "onnx-mixed") as memo,
    ):
        scratch = Path(temporary)

        def work(steps_of: Steps, logs: Path, folder: Path) -> dict[str, Any]:
            with step(f"compiling {subject}"):
                order = prepared(program, steps_of, logs / "compile.log", scratch)
                facts = order("mixed", folder)
                shutil.copyfile(scratch / "prepared" / SAMPLES, folder / SAMPLES)
            return facts

        known = key(program, memo.roots, os.environ)
        return remembered(args, memo, subject, known, work, scratch)
