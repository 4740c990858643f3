"""`image`: build a container image from the manifests and validate it, or build twice and compare."""

from __future__ import annotations

import argparse
import datetime as dt
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from ci.image import CACHE
from provisioning import licences
from provisioning.base import units
from provisioning.base.commands import Fix, session
from provisioning.base.errors import CheckFailed, UsageError
from provisioning.base.findings import Artifact, Outcome, Report, Severity
from provisioning.base.flags import add_valued, switch
from provisioning.base.selection import add_selection, selection_of
from provisioning.base.settings import ROOT
from provisioning.base.stage_run import StageRun

if TYPE_CHECKING:
    from ci.image.contents import ImagePlan, Order
    from ci.image.engine import Engine

EXAMPLES = """\
  nox -s image -- wheels
  nox -s image -- wheels --base my-debian:12
  nox -s image -- base --check-reproducible
  nox -s image -- qnn-2.37-ndk-r26c
"""


def configure(parser: argparse.ArgumentParser) -> None:
    add_selection(parser)
    parser.add_argument("name", nargs="?", metavar="NAME", help="the image; without one, their names")
    licences.add_flag(parser)
    add_valued(
        parser,
        "--base",
        "IMAGE",
        "build on this image, local or not [QNN_CI_BASE_IMAGE, manifests/images.toml]",
        default=os.environ.get("QNN_CI_BASE_IMAGE"),
    )
    switch(parser, "--check-reproducible", "build twice and compare; only builds that differ are kept")


def run(args: argparse.Namespace) -> int:
    from filelock import FileLock

    from ci.image.contents import CONTEXT, Order, inputs_of, load_images, plan_of, trees_of
    from ci.image.engine import connect_engine
    from provisioning.store import Store

    if args.name is None:
        names = ", ".join(load_images().images)
        raise UsageError("which image?", fix=Fix("{}, one of: {}", ("image", "NAME"), names))
    plan = plan_of(args.name)
    selection = selection_of(args)
    stage = StageRun("image", plan.profile.name if plan.profile else "", "x86_64-linux")
    with stage.reported(selection.reports, "image", plan.name), connect_engine() as engine:
        base = args.base or plan.system.reference
        base_id = engine.image_id(base) or engine.pull(base)
        CONTEXT.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{CONTEXT}.lock"):
            trees = trees_of(plan, Store(selection.store), licences.acceptances(args.accept))
            inputs = inputs_of(plan, engine, base_id, trees)
            log = CONTEXT.with_name(f"image-{plan.name}.log")
            order = Order(plan, inputs, base_id, labels(plan, base, base_id), log)
            if args.check_reproducible:
                _compare(stage, order, engine)
            else:
                _build(stage, order, engine)
    return stage.close(selection.reports)


def labels(plan: ImagePlan, base: str, base_id: str) -> dict[str, str]:
    """The labels of an image. All come from manifests, so every build has the same."""
    created = dt.datetime.fromtimestamp(plan.system.epoch, dt.timezone.utc)
    pinned = base == plan.system.reference
    names = {
        "org.opencontainers.image.title": f"qnn-ci {plan.name}",
        "org.opencontainers.image.description": plan.summary,
        "org.opencontainers.image.created": created.strftime("%Y-%m-%dT%H:%M:%SZ"),
        "org.opencontainers.image.base.name": base,
        "org.opencontainers.image.base.digest": plan.system.digest if pinned else base_id,
        "qnn-ci.base-id": base_id,
        "qnn-ci.image": plan.name,
        "qnn-ci.manifest": plan.key(base_id),
    }
    if plan.licences:
        names["qnn-ci.not-to-be-published"] = "; ".join(licence.title for licence in plan.licences)
    return names


def _build(stage: StageRun, order: Order, engine: Engine) -> None:
    from ci.image.contents import build

    plan = order.plan
    sys.stderr.write(f"building {plan.tag}; its log is {order.log}\n")
    build(order, engine, plan.tag)
    attributes = engine.attributes(plan.tag)
    size, layers = int(attributes["Size"]), list(attributes["RootFS"]["Layers"])
    stage.metrics |= {"size": size, "layers": layers, "manifest": order.labels["qnn-ci.manifest"]}
    stage.artifacts.append(Artifact("image", plan.tag, str(attributes["Id"]).removeprefix("sha256:"), size))
    stage.add("image-size", Severity.NOTE, plan.tag, f"{units.size(size)} in {len(layers)} layers")
    if plan.profile is None:
        message = "holds no SDK, so there is nothing to validate inside"
        stage.add("image-validate", Severity.NOTE, plan.tag, message)
        return
    _validate(stage, plan, engine)


def _validate(stage: StageRun, plan: ImagePlan, engine: Engine) -> None:
    """Run the `validate` session inside: no root, nothing of the image writable, no network."""
    import tempfile

    from ci.image.engine import SCRATCH

    with tempfile.TemporaryDirectory(prefix="qnn-ci-image-") as reports:
        process = engine.run(
            plan.tag,
            ["nox", "-s", "validate", "--", "--reports", "/reports"],
            user=engine.owner,
            volumes=[f"{ROOT}:{ROOT}:ro", f"{reports}:/reports"],
            environment={"HOME": "/tmp", "PYTHONDONTWRITEBYTECODE": "1"},  # noqa: S108 - a tmpfs of its own
            working_dir=str(ROOT),
            read_only=True,
            tmpfs={"/tmp": SCRATCH, CACHE: SCRATCH},  # noqa: S108
        )
        file = Path(reports) / "validate.json"
        if not file.is_file():
            output = "\n".join((process.stdout + process.stderr).splitlines()[-12:])
            raise CheckFailed(
                f"validate did not run in {plan.tag} (exit code {process.returncode}):\n{output}",
                fix=session("shell", "--image", plan.name, "nox", "-s", "validate"),
            )
        report = Report.read(file)
    stage.findings += report.findings
    stage.metrics["validate"] = {"outcome": report.outcome.value, "states": report.metrics.get("states")}
    if report.outcome is not Outcome.PASS:
        stage.add("image-validate", Severity.ERROR, plan.tag, f"validate inside says {report.outcome.value}")


def _compare(stage: StageRun, order: Order, engine: Engine) -> None:
    from ci.image.contents import build_twice, compared_tags

    name = order.plan.name
    sys.stderr.write(f"building {name} twice; the log is {order.log}\n")
    layers, differences = build_twice(order, engine)
    stage.metrics["layers"] = [[*digests] for digests in layers]
    if not differences:
        message = f"two builds have the same {len(layers[0])} layers"
        stage.add("image-reproducible", Severity.NOTE, name, message)
    first, second = compared_tags(order.plan)
    save = f"docker save -o first.tar {first}; docker save -o second.tar {second}"
    fix = f"{save}; diffoscope first.tar second.tar"
    for command in differences:
        message = f"two builds differ: the layer of {command}"
        stage.add("image-reproducible", Severity.ERROR, name, message, fix)
