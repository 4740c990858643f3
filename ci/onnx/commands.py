"""The everyday commands for what is compiled, and `audit`. Work is done by one worker process."""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ci.onnx.asking import count, dimensions_of, logs_folder, precision_of, require_file, say, step, steps
from ci.onnx.compile import Refused, require_installed
from ci.onnx.context import read_context, record_path
from ci.onnx.graph import load_graph, source_digest
from ci.onnx.options import described, parse_assignments, settings_of
from ci.onnx.profile import costs, slowest, with_lines
from ci.onnx.samples import read_inputs
from ci.suites.precision import PRECISIONS, precision_named
from ci.suites.profile import PROCESSES, as_text, document, merged, read_document, report_profile
from ci.suites.profile_page import page_of
from provisioning.base.commands import typed
from provisioning.base.errors import CheckFailed, UsageError
from provisioning.base.files import write_named
from provisioning.base.settings import DEFAULT_TARGET, reports_path
from provisioning.base.stage_run import StageRun
from provisioning.manifest import load_socs, soc_named


def run_model(args: argparse.Namespace) -> int:
    for flag, path in (("--output", args.output), ("--profile-run", args.profile_run)):
        if path and (path.is_dir() or not path.parent.is_dir()):
            found = "it is a directory" if path.is_dir() else "its directory is not there"
            raise UsageError(f"{flag} {path}: {found}", remedy="name a file in a directory that is there")
    _, outputs = _run(args, args.profile_run)
    for name, array in outputs.items():
        shown = ", ".join(f"{value:.5g}" for value in array.ravel()[:4])
        shape = ", ".join(map(str, array.shape))
        print(f"{name}: {array.dtype}[{shape}]  {shown}{', …' if array.size > 4 else ''}")
    if args.output:
        from ci.onnx.arrays import save_one

        part = args.output.with_name(f".{args.output.name}.{os.getpid()}.npz")
        try:
            save_one(part, outputs)
            part.replace(args.output)
        finally:
            part.unlink(missing_ok=True)
    for cost in slowest(args.profile_run) if args.profile_run else []:
        print(f"  {cost}")
    return 0


def profile_model(args: argparse.Namespace) -> int:
    earlier = read_document(args.against) if args.against else {}
    if args.source:
        require_file(args.source)
    stage = StageRun("profile", "", DEFAULT_TARGET, typed("nox -s onnx --", sys.argv[2:]))
    profiles = []
    with tempfile.TemporaryDirectory(prefix="qnn-ci-onnx-") as temporary:
        for number in range(PROCESSES):
            events = Path(temporary) / f"{number}.csv"
            soc_name, _ = _run(args, events)
            profiles.append(costs(events))
    found = merged(profiles)
    if not found:
        raise CheckFailed(
            f"{args.model}: the provider profiled no operator",
            remedy="leave profiling options out; a model without operators has none",
        )
    if args.source:
        record = read_context(args.model).record
        if record and record.source != source_digest(args.source):
            say(
                f"warning: {args.source} is not the file that {args.model} was compiled from, or --dimension"
                " changed it; lines are looked up by the names of nodes"
            )
        found = with_lines(found, load_graph(args.source))
    text = document(found, {"model": str(args.model), "soc": soc_name})
    report_profile(stage, reports_path(None), f"{args.model.name} {soc_name}", text)
    if args.json:
        write_named(args.json, text)
    if args.page:
        write_named(args.page, page_of(str(args.model), found))
    print("\n".join(as_text(found, earlier if args.against else None, args.against)))
    return 0


def _run(args: argparse.Namespace, profile: Path | None) -> tuple[str, Mapping[str, Any]]:
    """The chip's name and the outputs of a run of a compiled model, which may be profiled."""
    require_installed()
    require_file(args.model)
    context = read_context(args.model)
    soc_name = args.soc or _soc_of(context.soc_id, args.model)
    soc = soc_named(soc_name)
    settings = settings_of(parse_assignments(args.option), soc=soc, embed=not context.beside)
    inputs = read_inputs(args.input, context.signature)
    if context.record is None:
        say(f"{record_path(args.model)} is not there, so that a changed byte cannot be told")
    with tempfile.TemporaryDirectory(prefix="qnn-ci-onnx-") as temporary:
        scratch = Path(temporary)
        from ci.onnx.arrays import save, saved

        save(scratch / "inputs.npz", [inputs])
        with (
            logs_folder() as logs,
            steps(logs, args.timeout) as worker,
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
                profile=str(profile.absolute()) if profile else "",
                as_it_is=getattr(args, "as_it_is", False),
            )
        outputs = saved(scratch / "outputs.npz")[0]
    return soc_name, outputs


def audit_model(args: argparse.Namespace) -> int:
    """Returns 1 if a node would stay on the CPU."""
    soc = soc_named(args.soc)
    settings = settings_of(parse_assignments(args.option), soc=soc, embed=False)
    dimensions = dimensions_of(args.dimension)
    precision = precision_named(precision_of(args.model, args.precision))
    if precision.quantized:
        raise UsageError(
            f"--precision {precision.name}: audit looks at the model as it is",
            remedy="leave --precision out: operators are the same, and compile names what types keep out",
        )
    require_installed()
    require_file(args.model)
    with tempfile.TemporaryDirectory(prefix="qnn-ci-onnx-") as temporary:
        scratch = Path(temporary)
        with logs_folder() as logs, steps(logs, args.timeout) as worker:
            problems: list[dict[str, Any]] = []
            model = str(args.model.absolute())
            common = {"precision": precision.name, "into": str(scratch)}
            try:
                looked = worker(
                    "look", logs / "look.log", model=model, dimensions=dimensions, calibrate="", **common
                )
                model = looked["model"]
            except Refused as refused:
                problems = list(refused.details.get("problems", []))
                if not problems:
                    raise
            audit = {"nodes": 0, "unsupported": [], "graphs": 0}
            if not any(problem["rule"] == "onnx-dynamic-shape" for problem in problems):
                audit = worker(
                    "audit",
                    logs / "audit.log",
                    model=model,
                    soc=args.soc,
                    settings=settings.as_dict(),
                    **common,
                )
    found = {"model": str(args.model), "soc": args.soc, "problems": problems, **_audit_facts(audit)}
    if args.json:
        print(json.dumps({"schema": 1, **found}, indent=2))
    else:
        print(_audit_text(args, problems, audit))
    return 1 if problems or audit["unsupported"] else 0


def list_options(args: argparse.Namespace) -> int:
    print(described())
    print("precisions")
    for precision in PRECISIONS.values():
        print(f"  {precision.name}  {precision.summary}")
    return 0


def _audit_facts(audit: dict[str, Any]) -> dict[str, Any]:
    return {name: audit[name] for name in ("nodes", "unsupported", "graphs")}


def _audit_text(args: argparse.Namespace, problems: list[dict[str, Any]], audit: dict[str, Any]) -> str:
    lines = [f"{args.model} on {args.soc}"]
    for problem in problems:
        lines += [f"  {problem['subject']}: {problem['message']}", f"    fix: {problem['remedy']}"]
    for node in audit["unsupported"]:
        lines.append(f"  {node['node']} ({node['operator']}) stays on the CPU: {node['reason']}")
    if audit["nodes"]:
        taken = audit["nodes"] - len(audit["unsupported"])
        nodes, graphs = count(audit["nodes"], "node"), count(audit["graphs"], "graph")
        lines.append(f"  {taken} of {nodes} on HTP, in {graphs}")
    else:
        lines.append("  the provider was not asked, because it takes only models of fixed shapes")
    return "\n".join(lines)


def _soc_of(soc_id: int, model: Path) -> str:
    for name, soc in load_socs().items():
        if soc.id == soc_id:
            return name
    raise CheckFailed(
        f"{model} says that it is for chip {soc_id}, which manifests/socs.toml does not have",
        remedy="say which chip with --soc",
    )
