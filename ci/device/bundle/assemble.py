"""Collect the files of a bundle, check that they fit together, write them."""

from __future__ import annotations

import argparse
import os
import shutil
from pathlib import Path

from ci.device.bundle import checks, contents, manifest, scripts
from ci.device.bundle.contents import Item
from ci.device.bundle.signatures import signature_findings
from ci.engine.dist import RUNNER
from provisioning.base.errors import UsageError
from provisioning.base.findings import Artifact, Severity, StageRun
from provisioning.base.settings import ROOT, Selection
from provisioning.components import QNN_SDK
from provisioning.environment import resolve
from provisioning.manifest import soc_named

TARGETS = ("aarch64-android", "aarch64-linux")


def assemble(args: argparse.Namespace, selection: Selection, stage: StageRun) -> None:
    """Write the bundle, unless a check finds an error."""
    if selection.target not in TARGETS:
        raise UsageError(
            f"bundles are for devices: expected --target {' or '.join(TARGETS)}, found {selection.target}"
        )
    if args.root and not args.lpai:
        raise UsageError("--root is about LPAI's skel, and --lpai is missing", remedy="add --lpai")
    if args.root and not args.root.is_file():
        raise UsageError(f"--root {args.root}: there is no such file", remedy="name the root certificate")
    soc = soc_named(selection.soc)
    models = contents.read_models(args.models)
    dist = args.dist.absolute() if args.dist else ROOT / "dist" / selection.target
    runner = args.runner or RUNNER.name
    items = list(contents.built_items(dist, selection.target, runner))
    # Models may be added to a bundle later.
    if args.lpai or not models or any(model.for_qnn for model in models):
        sdk = resolve(selection, os.environ, needs=(QNN_SDK,)).root(QNN_SDK).path
        online = any(model.online for model in models)
        gpu = any("gpu" in model.processors for model in models)
        items += contents.qnn_items(sdk, selection.target, soc, online=online, gpu=gpu)
        if args.lpai:
            signed = args.signed.absolute() if args.signed else ROOT / "dist" / "overlay"
            items += contents.lpai_items(sdk, selection, soc, signed)
    items += [Item("model", model.path, f"models/{model.path.name}") for model in models]
    items += contents.file_items(args.file)
    stage.findings += checks.check(items, models, selection.target, selection.soc, soc)
    if signed_items := [item.path for item in items if item.kind == "signed"]:
        stage.findings += signature_findings(signed_items, args.root)
    stage.metrics |= {"files": len(items), "qnn_build_id": checks.sdk_build(items), "soc": selection.soc}
    if any(finding.severity is Severity.ERROR for finding in stage.findings):
        return
    into = (args.output or ROOT / "dist" / "bundles" / f"{selection.target}-{selection.soc}").absolute()
    bundle = write(items, into, selection, checks.sdk_build(items), runner)
    stage.artifacts += [
        Artifact(file.kind, str(into / file.path), file.sha256, file.size) for file in bundle.files
    ]


def write(items: list[Item], into: Path, selection: Selection, build_id: str, runner: str) -> manifest.Bundle:
    """Replace an older bundle in one step. Raises UsageError if `into` holds anything else."""
    is_bundle = all((into / name).is_file() for name in (scripts.RUN, manifest.NAME))
    if into.exists() and any(into.iterdir()) and not is_bundle:
        raise UsageError(f"{into} is not empty, and no bundle", remedy="name another folder with --output")
    part = into.with_name(f".{into.name}.part-{os.getpid()}")
    shutil.rmtree(part, ignore_errors=True)
    try:
        for item in items:
            to = part / item.place
            to.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(item.path, to)
            to.chmod(0o755 if item.kind == "runner" else 0o644)
        places = [*(item.place for item in items), scripts.RUN]
        (part / scripts.RUN).write_text(scripts.run_script(selection.target, runner), encoding="utf-8")
        (part / scripts.PUSH).write_text(scripts.push_script(selection.target, places), encoding="utf-8")
        for name in (scripts.RUN, scripts.PUSH):
            (part / name).chmod(0o755)
        files = [_file(part, item.kind, item.place) for item in items]
        files.append(_file(part, "script", scripts.RUN))
        bundle = manifest.Bundle(
            selection.target, selection.soc, selection.profile, build_id, tuple(files), runner
        )
        (part / manifest.NAME).write_text(bundle.encode(), encoding="utf-8")
        shutil.rmtree(into, ignore_errors=True)
        part.replace(into)
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return bundle


def _file(root: Path, kind: str, place: str) -> manifest.File:
    artifact = Artifact.of(kind, root / place)
    return manifest.File(place, kind, artifact.sha256, artifact.size)
