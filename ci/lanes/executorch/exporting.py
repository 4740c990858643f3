"""The worker's task that exports a case's model, and finds by what the cache knows each of its programs.

The reply has a digest of the exported graph, of its samples and of float's outputs for each run, and the line
of each node. Where a model cannot be known by its content, the reply says why, and its programs are not
cached."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

import torch

from ci.lanes.executorch.export import ChipModel, ExportedCase, cases, digest_of_tensors, error_of
from ci.lanes.executorch.orders import Annotated, ExportedRun, ExportedRuns, ExportRequest
from ci.lanes.executorch.suite import case_of
from ci.models.exported import NoDigest, digest_of
from ci.models.model_lines import source_of
from ci.models.untouched import changed_variables, require_untouched, users_modules
from ci.models.user_model import BadFactory, modules_in
from ci.work import Key, error_reply, loaded_libraries, read, reader, reporting, run_in_fork, to_json
from provisioning.base.findings import Metric

SETTINGS = (
    "get_default_dtype",
    "is_grad_enabled",
    "are_deterministic_algorithms_enabled",
    "get_float32_matmul_precision",
    "get_num_threads",
)
"""These functions of torch read settings that a model's code may change, and that decide how the rest is
computed."""


def _export_runs(request: ExportRequest) -> ExportedRuns:
    """Return what each program depends on of the model, and the line of each node."""
    os.chdir(request.working_folder)
    runs: dict[str, ExportedRun] = {}
    lines: dict[str, tuple[str, str]] = {}
    for name, run in request.runs.items():
        order = replace(request, run=run, run_of_model={})
        if not cases:
            cases.append(ExportedCase.of(case_of(order), Path(order.search_path)))
        try:
            runs[name] = _exported_run(ChipModel.of(order), request.chips.get(name, ()), lines)
        except BadFactory as error:
            reply = error_reply("factory", str(error), fix=error.fix, missing=error.missing)
            runs[name] = ExportedRun(error=reply)
    try:
        require_untouched()
    except NoDigest as error:
        for name, exported in runs.items():
            if not exported.error:
                runs[name] = ExportedRun(not_cached=str(error))
    modules, libraries = set(modules_in(Path(request.search_path))), set(loaded_libraries())
    for exported in runs.values():
        for annotated in exported.annotated.values():
            modules.update(annotated.modules)
            libraries.update(annotated.libraries)
    return ExportedRuns(
        runs=runs, lines=lines, modules=tuple(sorted(modules)), libraries=tuple(sorted(libraries))
    )


def _exported_run(
    chip_model: ChipModel, chips: Sequence[str], lines: dict[str, tuple[str, str]]
) -> ExportedRun:
    """Return what the run's programs depend on, and add the lines of its nodes to `lines`."""
    run, annotated = chip_model.run, dict[str, Annotated]()
    rows: dict[str, Metric] = {
        "samples": digest_of_tensors(chip_model.compared),
        "calibration": digest_of_tensors(chip_model.calibrating),
        "used": asdict(chip_model.used),
        "notes": [list(note) for note in chip_model.exported.subject.notes],
        "float outputs": digest_of_tensors(chip_model.float_outputs),
        "torch": _torch_settings(),
        "variables of its code": changed_variables(),
    }
    try:
        program = chip_model.exported.program(chip_model.sample)
        lines |= {node.name: source_of(node) for node in program.graph.nodes if node.op == "call_function"}
        rows["model"] = digest_of(program)
        if run.annotations and run.quantizes:
            annotated = {chip: _annotated(replace(chip_model, soc=chip)) for chip in chips}
    except NoDigest as error:
        return ExportedRun(not_cached=str(error))
    except BadFactory:
        raise
    except Exception as error:
        # Its compile exports it again, and says what is wrong.
        return ExportedRun(not_cached=f"it cannot be exported: {type(error).__name__}", exported=False)
    return ExportedRun(rows, annotated)


def _annotated(chip_model: ChipModel) -> Annotated:
    """Run the annotations in a fork, as they may change anything: the processes that compile begin without
    that."""
    reply = run_in_fork(reporting(lambda _: to_json(_annotate(chip_model)), error_of), {})
    if "rows" not in reply:
        # Its compile runs them again, and says what is wrong.
        return Annotated(not_cached="its annotations failed")
    annotated = read(Annotated, reply)
    exported = chip_model.exported
    exported.annotated[chip_model.name] = str(annotated.rows.get("graph", ""))
    exported.annotated_with |= {*annotated.modules}
    return annotated


def _annotate(chip_model: ChipModel) -> Annotated:
    """Run the annotations, and return the digest of what they make and the files that they import."""
    # Annotations alone need ExecuTorch.
    from ci.lanes.executorch.quantization import annotated_digest

    try:
        graph = annotated_digest(chip_model)
        require_untouched()
    except NoDigest as error:
        return Annotated(not_cached=str(error), modules=tuple(users_modules()))
    rows: Key = {"graph": graph, "torch": _torch_settings()}
    return Annotated(rows, modules=tuple(users_modules()), libraries=tuple(loaded_libraries()))


def _torch_settings() -> dict[str, Metric]:
    """Return torch's global settings."""
    settings: dict[str, Metric] = {name: str(getattr(torch, name)()) for name in SETTINGS}
    settings["mkldnn"] = str(torch.backends.mkldnn.enabled)
    return settings


_request_of = reader(ExportRequest)
export = reporting(lambda order: to_json(_export_runs(_request_of(order))), error_of)
