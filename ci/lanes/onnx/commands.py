"""`onnx run` and `onnx options`. Work is done by one worker process."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ci.artifacts.record import record_path
from ci.lanes.onnx.compile import cwd, require_installed, setup_of
from ci.lanes.onnx.context import read_context, soc_of
from ci.lanes.onnx.events import slowest
from ci.lanes.onnx.options import described, parse_assignments, settings_of
from ci.lanes.onnx.orders import logs_folder, require_file, say, step
from ci.lanes.onnx.samples import read_inputs
from ci.pipeline.precision import PRECISIONS
from ci.pipeline.steps import asking
from provisioning.base.chips import chip_named
from provisioning.base.errors import UsageError
from provisioning.manifest import soc_named


@dataclass(frozen=True, slots=True)
class RunModel:
    """`onnx run`."""

    model: Path
    inputs: Sequence[str]
    soc: str | None
    options: Sequence[str]
    output: Path | None
    profile_run: Path | None
    as_it_is: bool
    timeout: float


def run_model(options: RunModel) -> int:
    for flag, path in (("--output", options.output), ("--profile-run", options.profile_run)):
        if path and (path.is_dir() or not path.parent.is_dir()):
            problem = "it is a directory" if path.is_dir() else "its directory is not there"
            raise UsageError(f"{flag} {path}: {problem}", fix="name a file in a directory that is there")
    outputs = _run(options)
    for name, array in outputs.items():
        shown = ", ".join(f"{value:.5g}" for value in array.ravel()[:4])
        shape = ", ".join(map(str, array.shape))
        print(f"{name}: {array.dtype}[{shape}]  {shown}{', …' if array.size > 4 else ''}")
    if options.output:
        from ci.lanes.onnx.arrays import save_one

        part = options.output.with_name(f".{options.output.name}.{os.getpid()}.npz")
        try:
            save_one(part, outputs)
            part.replace(options.output)
        finally:
            part.unlink(missing_ok=True)
    for cost in slowest(options.profile_run) if options.profile_run else []:
        print(f"  {cost}")
    return 0


def _run(options: RunModel) -> Mapping[str, Any]:
    """The outputs of a compiled model."""
    require_installed()
    require_file(options.model)
    context = read_context(options.model)
    soc_name = chip_named(options.soc) if options.soc else soc_of(context)
    soc = soc_named(soc_name)
    settings = settings_of(parse_assignments(options.options), soc=soc, embed=not context.beside)
    inputs = read_inputs(options.inputs, context.signature)
    if context.record is None:
        say(f"{record_path(options.model)} is not there, so that a changed byte cannot be told")
    with tempfile.TemporaryDirectory(prefix="qnn-ci-onnx-") as temporary:
        scratch = Path(temporary)
        from ci.lanes.onnx.arrays import save, saved

        save(scratch / "inputs.npz", [inputs])
        with (
            logs_folder() as logs,
            asking(setup_of(logs, timeout=options.timeout), logs / "run.log") as ask,
            step(f"running {options.model} on {soc_name}"),
        ):
            ask(
                do="run",
                cwd=cwd(),
                model=str(options.model.absolute()),
                inputs=str(scratch / "inputs.npz"),
                outputs=str(scratch / "outputs.npz"),
                soc=soc_name,
                settings=settings.as_dict(),
                profile=str(options.profile_run.absolute()) if options.profile_run else "",
                as_it_is=options.as_it_is,
            )
        return saved(scratch / "outputs.npz")[0]


def list_options() -> int:
    print(described())
    print("precisions")
    for precision in PRECISIONS.values():
        print(f"  {precision.name}  {precision.summary}")
    return 0
