"""One model named on the command line, as a program like those of a suite."""

from __future__ import annotations

from pathlib import Path

from ci.executorch.suite import Case, Program, Run
from ci.suites.precision import scheme_named
from ci.suites.user_model import user_model
from provisioning.base.command_line import Parser
from provisioning.base.errors import UsageError
from provisioning.base.settings import Selection
from provisioning.manifest import soc_named


def program_named(
    model: str,
    scheme: str,
    soc: str,
    selection: Selection,
    calibration: int = 4,
    *,
    samples: str = "",
    cpu_nodes: tuple[str, ...] = (),
) -> Program:
    """The user's model as a program. Modules are searched first in its own folder, or in the current one."""
    soc_named(soc)
    named = user_model(model, Path(Parser.started_in or Path.cwd()))
    if named.onnx:
        raise UsageError(
            f"{model}: this command takes PyTorch models",
            remedy="the commands of `onnx` take an .onnx; export the PyTorch model as a .pt2",
        )
    run = Run.model_validate(
        {
            "scheme": scheme_named(scheme),
            "socs": (soc,),
            "calibration": calibration,
            "cpu_nodes": cpu_nodes,
        }
    )
    case = Case.model_validate({"factory": named.factory, "samples": samples, "run": (run,)})
    return Program(
        named.search_path / "no-suite.toml", named.name, case, case.runs[0], soc, selection.profile
    )
