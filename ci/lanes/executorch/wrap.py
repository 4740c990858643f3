"""Wrap a context binary of QNN as a program of ExecuTorch."""

from __future__ import annotations

import os
from pathlib import Path

from ci.artifacts.against_sdk import compare_with_sdk
from ci.artifacts.program import ContextStrings
from ci.lanes.executorch.steps import (
    WORKER,
    home_of,
)
from ci.suite.ready_environment import use_executorch
from ci.work import Refused, asking, closed_environment
from provisioning.base.commands import session
from provisioning.base.errors import CheckFailed
from provisioning.base.files import replacing
from provisioning.base.progress import show_working
from provisioning.base.settings import Selection
from provisioning.components import QNN_SDK
from provisioning.environment import resolve
from provisioning.manifest import load_socs


def wrap(context: Path, contents: ContextStrings, selection: Selection, output: Path, timeout: float) -> str:
    """Write the program, and return the chip that it is for."""
    environment = resolve(selection, os.environ, needs=(QNN_SDK,))
    use_executorch(environment)
    loading = compare_with_sdk(contents, environment.root(QNN_SDK).path)
    if any("error 5000" in line for line in loading.says):
        message = f"{context}: {'; '.join(loading.says)}"
        raise CheckFailed(message, fix="compile it with this QNN, or another --profile")
    socs = load_socs()
    soc = next((name for name in contents.socs if name in socs), selection.soc)
    log = Path(selection.reports).absolute() / "wrap" / f"{context.name}.log"
    with replacing(output.absolute()) as part:
        environ = closed_environment(environment.merged(os.environ))
        home = home_of(environ, log.parent)
        order = {"context": str(context.absolute()), "soc": soc, "path": str(part)}
        try:
            with (
                show_working(f"working on {context}"),
                asking(home, f"{WORKER}:wrapped", log, timeout) as ask,
            ):
                ask(**order)
        except Refused as refused:
            message = f"{context}: ExecuTorch cannot take it: {refused.message}"
            raise CheckFailed(message, fix=session("diagnose", log)) from refused
    return soc
