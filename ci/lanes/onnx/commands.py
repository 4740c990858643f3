"""`onnx run` and `onnx options`. Work is done by one worker process."""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ci.lanes.onnx.compile import require_installed
from ci.lanes.onnx.context import read_context, record_path, soc_of
from ci.lanes.onnx.events import slowest
from ci.lanes.onnx.options import described, parse_assignments, settings_of
from ci.lanes.onnx.orders import Steps, logs_folder, require_file, say, step
from ci.lanes.onnx.samples import read_inputs
from ci.pipeline.precision import PRECISIONS
from provisioning.base.errors import UsageError
from provisioning.manifest import soc_named


def run_model(args: argparse.Namespace) -> int:
    for flag, path in (("--output", args.output), ("--profile-run", args.profile_run)):
        if path and (path.is_dir() or not path.parent.is_dir()):
            problem = "it is a directory" if path.is_dir() else "its directory is not there"
            raise UsageError(f"{flag} {path}: {problem}", remedy="name a file in a directory that is there")
    outputs = _run(args)
    for name, array in outputs.items():
        shown = ", ".join(f"{value:.5g}" for value in array.ravel()[:4])
        shape = ", ".join(map(str, array.shape))
        print(f"{name}: {array.dtype}[{shape}]  {shown}{', …' if array.size > 4 else ''}")
    if args.output:
        from ci.lanes.onnx.arrays import save_one

        part = args.output.with_name(f".{args.output.name}.{os.getpid()}.npz")
        try:
            save_one(part, outputs)
            part.replace(args.output)
        finally:
            part.unlink(missing_ok=True)
    for cost in slowest(args.profile_run) if args.profile_run else []:
        print(f"  {cost}")
    return 0


def _run(args: argparse.Namespace) -> Mapping[str, Any]:
    """The outputs of a compiled model."""
    require_installed()
    require_file(args.model)
    context = read_context(args.model)
    soc_name = args.soc or soc_of(context)
    soc = soc_named(soc_name)
    settings = settings_of(parse_assignments(args.option), soc=soc, embed=not context.beside)
    inputs = read_inputs(args.input, context.signature)
    if context.record is None:
        say(f"{record_path(args.model)} is not there, so that a changed byte cannot be told")
    with tempfile.TemporaryDirectory(prefix="qnn-ci-onnx-") as temporary:
        scratch = Path(temporary)
        from ci.lanes.onnx.arrays import save, saved

        save(scratch / "inputs.npz", [inputs])
        with (
            logs_folder() as logs,
            Steps(logs, args.timeout) as worker,
            step(f"running {args.model} on {soc_name}"),
        ):
            worker(
                "run",
                logs / "run.log",
                model=str(args.model.absolute()),
                inputs=str(scratch / "inputs.npz"),
                outputs=str(scratch / "outputs.npz"),
                soc=soc_name,
                settings=settings.as_dict(),
                profile=str(args.profile_run.absolute()) if args.profile_run else "",
                as_it_is=args.as_it_is,
            )
        return saved(scratch / "outputs.npz")[0]


def list_options(args: argparse.Namespace) -> int:
    print(described())
    print("precisions")
    for precision in PRECISIONS.values():
        print(f"  {precision.name}  {precision.summary}")
    return 0
