"""A PyTorch model of a command line is exported to an .onnx with samples beside it."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

from ci.lanes.onnx.model_options import OnnxOptions
from ci.lanes.onnx.orders import ExportedFile, ExportToFile
from ci.lanes.onnx.steps import WORKER, home_of, require_installed
from ci.lanes.onnx.suite import SUITES
from ci.models.own_packages import OwnPackages, install_packages
from ci.one_model.model import OneModel
from ci.one_model.output import (
    ORIGINS,
    document_of,
    file_line,
    keep_origins,
    require_own,
    writing_into,
)
from ci.one_model.packages import needs_of_model
from ci.suite.running import advice, packages_of_project
from ci.work import Refused, asking, read, to_json
from provisioning.base.commands import leave_out
from provisioning.base.errors import CheckFailed, UsageError
from provisioning.base.parser import Parser
from provisioning.base.progress import show_working


def export_to_onnx(model: OneModel, folder: Path) -> OneModel:
    """Return the same model as an .onnx; a PyTorch model is written to `folder`, with its samples beside
    it."""
    options, user_model = model.own(OnnxOptions), model.file
    if not user_model.factory:
        if options.through:
            raise UsageError(
                f"--through {options.through} is for PyTorch models, and {model.typed} is an .onnx",
                fix=leave_out("--through"),
            )
        return model
    if options.dimensions:
        raise UsageError(
            "--dimension fixes sizes of an .onnx, and a PyTorch model has those of its inputs",
            fix=leave_out("--dimension"),
        )
    path, samples = folder / f"{user_model.name}.onnx", folder / f"{user_model.name}-samples"
    if path.exists() and path.name not in document_of(folder / ORIGINS):
        raise UsageError(
            f"{path} was not exported here, and would be replaced",
            fix="name another folder with -o, or move it away",
        )
    require_installed()
    request = ExportToFile(
        factory=user_model.factory,
        search_path=str(user_model.search_path),
        user_folder=str(Parser.user_folder()),
        model=path.name,
        folder=samples.name,
        samples=str(model.samples_folder or ""),
        inferences=options.inferences,
        calibration=options.calibration,
    )
    with writing_into(folder.absolute(), model.selection.store) as (new, publish):
        require_own([path, samples], model.typed)
        reply = _ask_exporter(model, replace(request, into=str(new)))
        shutil.rmtree(samples, ignore_errors=True)
        keep_origins(publish([*new.iterdir()]), model.typed)
    for note in reply.notes:
        print(note)
    print(f"exported {model.typed}, with samples:\n{file_line(path)}")
    compared = reply.compared or options.inferences
    own = replace(options, through="", calibrate=str(samples), inferences=compared)
    return replace(model, typed=str(path), options=own)


def _ask_exporter(model: OneModel, request: ExportToFile) -> ExportedFile:
    needs, store = needs_of_model(model, SUITES), model.selection.store
    try:
        return _export_in_worker(model, request, install_packages(needs, store))
    except Refused as refused:
        if not (module := str(refused.details.get("missing") or "")):
            raise
        if own := packages_of_project(needs, module, store):
            return _export_in_worker(model, request, own)
        raise CheckFailed(refused.message, fix=advice(needs, module)) from refused


def _export_in_worker(model: OneModel, request: ExportToFile, own: OwnPackages) -> ExportedFile:
    logs = model.selection.reports.absolute() / "onnx"
    home = home_of(logs, exports=True, own=own)
    with (
        asking(home, f"{WORKER}:exported_file", logs / "export.log", model.work.timeout) as ask,
        show_working(f"exporting {model.typed}"),
    ):
        return read(ExportedFile, ask(**to_json(request)))
