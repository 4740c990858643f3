"""`image`: build a container image from the manifests and validate it, or build twice and compare."""

from __future__ import annotations

import argparse
import contextlib
import datetime as dt
import json
import os
import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from ci.bill_of_materials import Item, document, package_url
from ci.image.shell import CACHE
from provisioning.base import units
from provisioning.base.command_line import switch, valued
from provisioning.base.commands import Fix, quoted, session
from provisioning.base.errors import CheckFailed, UpstreamError, UsageError
from provisioning.base.files import replace_text
from provisioning.base.findings import Artifact, Outcome, Report, Severity
from provisioning.base.selection import add_selection, selection_of
from provisioning.base.settings import ROOT, dist_path
from provisioning.base.stage_run import StageRun

if TYPE_CHECKING:
    from ci.image.build import Order
    from ci.image.context import Apt
    from ci.image.engine import Engine
    from ci.image.image_plan import ImagePlan, System

EXAMPLES = """\
  nox -s image -- wheels
  nox -s image -- wheels --base my-debian:12 --apt-sources /etc/apt/sources.list
  nox -s image -- base --check-reproducible
  nox -s image -- qnn-2.37-ndk-r26c
  python -m ci image --list
"""

DIST = dist_path() / "images"
LIST_PACKAGES = r"dpkg-query --show --showformat '${Package}\t${Version}\n'"
LIST_DISTRIBUTIONS = """
import importlib.metadata as metadata, json
found = {(d.name, d.version, d.metadata["License-Expression"] or "") for d in metadata.distributions()}
print(json.dumps(sorted(found)))
"""


def configure(parser: argparse.ArgumentParser) -> None:
    add_selection(parser)
    parser.add_argument("name", nargs="?", metavar="NAME", help="the image; --list prints them")
    switch(parser, "--list", "list the images and stop")
    valued(
        parser,
        "--base",
        "IMAGE",
        "build on this image, local or not [QNN_CI_BASE_IMAGE, manifests/images.toml]",
        default=os.environ.get("QNN_CI_BASE_IMAGE"),
    )
    switch(parser, "--check-reproducible", "build twice, compare, and keep neither")
    valued(parser, "--save", "FILE", "also write the image as an archive", type=Path)
    valued(parser, "--apt-sources", "FILE", "fetch Debian packages from the sources in this file", type=Path)
    valued(parser, "--apt-conf", "FILE", "apt settings for fetching them", type=Path)
    switch(parser, "--lock", "pin the Debian packages that apt offers now, and build nothing")
    switch(parser, "--renew-base", "with --lock: first pin the newest image of the same Debian")


def run(args: argparse.Namespace) -> int:
    from filelock import FileLock

    from ci.image.context import CONTEXT, Apt
    from ci.image.engine import connected
    from ci.image.image_plan import load_images, plan_of

    if args.list:
        rows = ((name, entry.summary) for name, entry in load_images().images.items())
        sys.stdout.writelines(f"{line}\n" for line in units.aligned(rows))
        return 0
    names = list(load_images().images)
    if args.name is None and not args.lock:
        raise UsageError("which image?", fix=Fix("{}, one of: {}", ("image", "NAME"), ", ".join(names)))
    for file in filter(None, (args.apt_sources, args.apt_conf)):
        if not file.is_file():
            raise UsageError(f"there is no file {file}", fix="name an existing file")
    plan, apt = plan_of(args.name or names[0]), Apt(args.apt_sources, args.apt_conf)
    selection = selection_of(args)
    stage = StageRun.as_typed("image", plan.profile.name if plan.profile else "", "x86_64-linux")
    with stage.reported(selection.reports, "image", plan.name), connected() as engine:
        if args.renew_base and not args.base:
            plan = _renewed(plan, engine)
        base = args.base or plan.system.reference
        base_id = engine.image_id(base) or engine.pull(base)
        CONTEXT.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{CONTEXT}.lock"):
            if args.lock:
                _lock(plan, engine, base, apt)
                return stage.close(selection.reports)
            order = _order(stage, plan, engine, base, base_id, apt, selection.store)
            if args.check_reproducible:
                _compare(stage, order, engine)
            else:
                _build(stage, order, engine, args.save)
    return stage.close(selection.reports)


def _order(
    stage: StageRun, plan: ImagePlan, engine: Engine, base: str, base_id: str, apt: Apt, store: Path
) -> Order:
    """What is to be built, with all that it is built from fetched and verified."""
    from ci.image import context
    from ci.image.build import Order
    from provisioning.store import Store

    with _timed(stage, "context_seconds"):
        trees = context.trees_of(plan, Store(store))
        context.keep_packages(plan, engine, base_id, apt, context.CONTEXT / context.PACKAGES)
        for environment in plan.environments:
            context.keep_wheels(plan, environment, context.CONTEXT / context.ENVIRONMENTS / environment)
    folders = {name: context.CONTEXT / name for name in (context.PACKAGES, context.ENVIRONMENTS)}
    inputs = {**folders, **{name: tree.root for name, tree in trees.items()}}
    log = context.CONTEXT.with_name(f"image-{plan.name}.log")
    return Order(plan, inputs, base_id, labels(plan, base, base_id), log)


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
        "qnn-ci.profile": plan.profile.name if plan.profile else "",
        "qnn-ci.manifest": plan.keys(base_id)[-1],
        "qnn-ci.build-ids": " ".join(f"{name}={value}" for name, value in plan.build_ids.items()),
    }
    if plan.licences:
        names["qnn-ci.not-to-be-published"] = "; ".join(licence.title for licence in plan.licences)
    return names


def _build(stage: StageRun, order: Order, engine: Engine, save: Path | None) -> None:
    from ci.image.build import build

    plan = order.plan
    sys.stderr.write(f"building {plan.tag}; its log is {order.log}\n")
    with _timed(stage, "build_seconds"):
        build(order, engine, plan.tag)
    attributes = engine.attributes(plan.tag)
    size, layers = int(attributes["Size"]), list(attributes["RootFS"]["Layers"])
    stage.metrics |= {"size": size, "layers": layers, "manifest": order.labels["qnn-ci.manifest"]}
    stage.artifacts.append(Artifact("image", plan.tag, str(attributes["Id"]).removeprefix("sha256:"), size))
    if save:
        save.parent.mkdir(parents=True, exist_ok=True)
        engine.save(plan.tag, save)
        stage.artifacts.append(Artifact.of("archive", save))
    items = [*installed_items(plan, engine), *vendor_items(plan)]
    DIST.mkdir(parents=True, exist_ok=True)
    bill = DIST / f"{plan.name}.cdx.json"
    replace_text(bill, document(Item(plan.tag, kind="container"), items, order.labels))
    stage.artifacts.append(Artifact.of("sbom", bill))
    stage.add("image-size", Severity.NOTE, plan.tag, f"{units.size(size)} in {len(layers)} layers")
    if plan.profile is None:
        message = "holds no SDK, so there is nothing to validate inside"
        stage.add("image-validate", Severity.NOTE, plan.tag, message)
        return
    with _timed(stage, "validate_seconds"):
        _validate(stage, plan, engine)


def installed_items(plan: ImagePlan, engine: Engine) -> list[Item]:
    """The Debian packages and Python distributions that the image itself lists."""
    from ci.image.build import VARIABLES
    from ci.image.engine import ContainerCommand

    home = VARIABLES["QNN_CI_ENVIRONMENTS"]
    pythons = [
        quoted(f"{home}/{environment}/bin/python", "-c", LIST_DISTRIBUTIONS)
        for environment in plan.environments
    ]
    # One container for all, because starting it takes longest.
    script = " && ".join([*pythons, LIST_PACKAGES])
    done = engine.run(ContainerCommand(plan.tag, ["sh", "-ec", script], read_only=True))
    if done.returncode:
        message = f"{plan.tag} cannot list its contents: {done.stderr.strip()}"
        raise CheckFailed(message, fix="build the image again")
    lines = done.stdout.splitlines()
    python = [package for line in lines[: len(pythons)] for package in json.loads(line)]
    debian = [line.split("\t") for line in lines[len(pythons) :]]
    return [
        *(Item(name, version, purl=package_url("deb", name, version, "debian")) for name, version in debian),
        *(
            Item(name, version, purl=package_url("pypi", name, version), licence=licence)
            for name, version, licence in python
        ),
    ]


def vendor_items(plan: ImagePlan) -> list[Item]:
    """The parts of the profile's components, as the manifest pins them."""
    return [
        Item(
            f"{name}-{part.name}",
            component.version,
            purl=package_url("generic", f"{name}-{part.name}", component.version),
            licence=component.licence.title if component.licence else "",
            sha256=getattr(part.source, "sha256", None) or "",
        )
        for name, component in plan.components.items()
        for part in component.parts
    ]


def _validate(stage: StageRun, plan: ImagePlan, engine: Engine) -> None:
    """Run the `validate` session inside: no root, nothing of the image writable, no network."""
    import tempfile

    from ci.image.engine import ContainerCommand

    with tempfile.TemporaryDirectory(prefix="qnn-ci-image-") as reports:
        job = ContainerCommand(
            plan.tag,
            ["nox", "-s", "validate", "--", "--reports", "/reports"],
            user=engine.owner,
            inputs={str(ROOT): ROOT},
            outputs={"/reports": Path(reports)},
            environment={"HOME": "/tmp", "PYTHONDONTWRITEBYTECODE": "1"},  # noqa: S108 - a tmpfs of its own
            workdir=str(ROOT),
            read_only=True,
            tmpfs=["/tmp", CACHE],  # noqa: S108
        )
        done = engine.run(job)
        written = Path(reports) / "validate.json"
        if not written.is_file():
            output = "\n".join((done.stdout + done.stderr).splitlines()[-12:])
            raise CheckFailed(
                f"validate did not run in {plan.tag} (exit code {done.returncode}):\n{output}",
                fix=session("shell", "--image", plan.name, "nox", "-s", "validate"),
            )
        report = Report.read(written)
    stage.findings += report.findings
    stage.metrics["validate"] = {"outcome": report.outcome.value, "states": report.metrics.get("states")}
    if report.outcome is not Outcome.PASS:
        stage.add("image-validate", Severity.ERROR, plan.tag, f"validate inside says {report.outcome.value}")


def _compare(stage: StageRun, order: Order, engine: Engine) -> None:
    import tempfile

    from ci.image.build import build_twice

    name = order.plan.name
    sys.stderr.write(f"building {name} twice; the log is {order.log}\n")
    with (
        _timed(stage, "build_twice_seconds"),
        tempfile.TemporaryDirectory(prefix="qnn-ci-image-", dir=order.log.parent) as scratch,
    ):
        layers, differences = build_twice(order, engine, Path(scratch))
    stage.metrics["layers"] = [[*names] for names in layers]
    if not differences:
        message = f"two builds have the same settings and the same {len(layers[0])} layers"
        stage.add("image-reproducible", Severity.NOTE, name, message)
    fix = "find what writes it in docker/, and make it write the same or remove it"
    for line in differences:
        stage.add("image-reproducible", Severity.ERROR, name, f"two builds differ: {line}", fix)


def _renewed(plan: ImagePlan, engine: Engine) -> ImagePlan:
    """The plan with the newest base, pinned by digest in images.toml."""
    from ci.image.image_plan import pin_base, plan_of

    before = plan.system.image
    system = newest_base(plan.system, engine)
    sys.stdout.write(f"the newest base is {system.image}; pinned was {before}\n")
    pin_base(system)
    return plan_of(plan.name)


def newest_base(system: System, engine: Engine) -> System:
    """What the name without a date means today, under its name with the date."""
    dated = re.compile(r"-\d{8}(?=-|$)")
    rolling = dated.sub("", system.image)
    engine.pull(rolling)
    attributes = engine.attributes(rolling)
    day = dt.datetime.fromisoformat(str(attributes["Created"])[:10]).replace(tzinfo=dt.timezone.utc)
    image = dated.sub(f"-{day:%Y%m%d}", system.image)
    digest = attributes["RepoDigests"][0].partition("@")[2]
    engine.pull(image)
    if engine.attributes(image)["RepoDigests"][0].partition("@")[2] != digest:
        raise UpstreamError(f"{image} is not what {rolling} is", fix="pin the base by hand in images.toml")
    return system.model_copy(update={"image": image, "digest": digest, "epoch": int(day.timestamp())})


def _lock(plan: ImagePlan, engine: Engine, base: str, apt: Apt) -> None:
    import tempfile

    from ci.image.context import fetch_packages, packages_in
    from ci.image.image_plan import PACKAGES, PackageLock, render_packages

    with tempfile.TemporaryDirectory(prefix="qnn-ci-image-") as scratch:
        folder = Path(scratch) / "packages"
        folder.mkdir()
        snapshot = fetch_packages(plan.system.packages, engine, base, apt, folder)
        lock = PackageLock(tuple(packages_in(folder)), snapshot)
    replace_text(PACKAGES, render_packages(lock))
    sys.stdout.write(f"manifests/{PACKAGES.name}: {len(lock.packages)} packages\n")


@contextlib.contextmanager
def _timed(stage: StageRun, metric: str) -> Iterator[None]:
    begun = time.monotonic()
    yield
    stage.metrics[metric] = round(time.monotonic() - begun, 2)
