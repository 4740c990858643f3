"""`image`: build a container image from the manifests and validate it, or build twice and compare."""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ci.image.shell import CACHE
from provisioning.base import units
from provisioning.base.command_line import switch, valued
from provisioning.base.commands import Fix, session
from provisioning.base.errors import UsageError
from provisioning.base.files import replace_text
from provisioning.base.findings import Artifact, Outcome, Report, Severity
from provisioning.base.selection import add_selection, selection_of
from provisioning.base.settings import ROOT, dist_path
from provisioning.base.stage_run import StageRun

if TYPE_CHECKING:
    from ci.image.builders import Order
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


@dataclass(frozen=True, slots=True)
class ImageOptions:
    """What `image` was asked for."""

    store: Path
    base: str | None
    builder: str
    apt: Apt
    save: Path | None
    check_reproducible: bool
    lock: bool
    renew_base: bool


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
    parser.add_argument(
        "--builder",
        choices=("auto", "docker", "buildah"),
        default="auto",
        help="build with docker and BuildKit, or with buildah [%(default)s]",
    )
    switch(parser, "--check-reproducible", "build twice, compare, and keep neither")
    valued(parser, "--save", "FILE", "also write the image as an archive", type=Path)
    valued(parser, "--apt-sources", "FILE", "fetch Debian packages from the sources in this file", type=Path)
    valued(parser, "--apt-conf", "FILE", "apt settings for fetching them", type=Path)
    switch(parser, "--lock", "pin the Debian packages that apt offers now, and build nothing")
    switch(parser, "--renew-base", "with --lock: first pin the newest image of the same Debian")


def run(args: argparse.Namespace) -> int:
    from ci.image.image_plan import load_images, plan_of

    if args.list:
        rows = ((name, entry.summary) for name, entry in load_images().images.items())
        sys.stdout.writelines(f"{line}\n" for line in units.aligned(rows))
        return 0
    from ci.image.context import Apt

    names = list(load_images().images)
    if args.name is None and not args.lock:
        raise UsageError("which image?", fix=Fix("{}, one of: {}", ("image", "NAME"), ", ".join(names)))
    for file in filter(None, (args.apt_sources, args.apt_conf)):
        if not file.is_file():
            raise UsageError(f"there is no file {file}", fix="name an existing file")
    plan = plan_of(args.name or names[0])
    selection = selection_of(args)
    options = ImageOptions(
        store=selection.store,
        base=args.base,
        builder=args.builder,
        apt=Apt(args.apt_sources, args.apt_conf),
        save=args.save,
        check_reproducible=args.check_reproducible,
        lock=args.lock,
        renew_base=args.renew_base,
    )
    profile = plan.profile.name if plan.profile else ""
    stage = StageRun.as_typed("image", profile, "x86_64-linux")
    with stage.reported(selection.reports, "image", plan.name):
        _work(stage, plan, options)
    return stage.close(selection.reports)


def _work(stage: StageRun, plan: ImagePlan, options: ImageOptions) -> None:
    from filelock import FileLock

    from ci.image import context
    from ci.image.engine import connect
    from provisioning.store import Store

    engine = connect()
    if options.renew_base and not options.base:
        plan = _renewed(plan, engine)
    base = options.base or plan.system.reference
    base_id = engine.image_id(base) or engine.pull(base)
    context.CONTEXT.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{context.CONTEXT}.lock"):
        if options.lock:
            _lock(plan, engine, base, options.apt)
            return
        with _timed(stage, "context_seconds"):
            context.assemble(plan, engine, base_id, Store(options.store), options.apt)
        order = _order(plan, base, base_id)
        if options.check_reproducible:
            _compare(stage, plan, order, engine, options.builder)
        else:
            _build(stage, plan, order, engine, options)


def _order(plan: ImagePlan, base: str, base_id: str) -> Order:
    from ci.image import context
    from ci.image.builders import Order

    profile = plan.profile.name if plan.profile else ""
    return Order(
        context=context.CONTEXT,
        stage=plan.stage,
        base=base,
        base_id=base_id,
        tag=plan.tag,
        epoch=plan.system.epoch,
        arguments={"PROFILE": profile} if profile else {},
        labels=labels(plan, base, base_id),
        log=context.CONTEXT.with_name(f"image-{plan.name}.log"),
    )


def labels(plan: ImagePlan, base: str, base_id: str) -> dict[str, str]:
    """The labels of an image. All come from manifests, so every build has the same."""
    import datetime as dt

    created = dt.datetime.fromtimestamp(plan.system.epoch, dt.timezone.utc)
    names = {
        "org.opencontainers.image.title": f"qnn-ci {plan.name}",
        "org.opencontainers.image.description": plan.summary,
        "org.opencontainers.image.created": created.strftime("%Y-%m-%dT%H:%M:%SZ"),
        "org.opencontainers.image.base.name": base,
        "org.opencontainers.image.base.digest": plan.system.digest
        if base == plan.system.reference
        else base_id,
        "qnn-ci.base-id": base_id,
        "qnn-ci.image": plan.name,
        "qnn-ci.profile": plan.profile.name if plan.profile else "",
        "qnn-ci.manifest": plan.manifest_hash(base_id),
        "qnn-ci.build-ids": " ".join(f"{name}={value}" for name, value in plan.build_ids.items()),
    }
    if plan.licences:
        names["qnn-ci.not-to-be-published"] = "; ".join(licence.title for licence in plan.licences)
    return names


def _build(stage: StageRun, plan: ImagePlan, order: Order, engine: Engine, options: ImageOptions) -> None:
    from ci.image.builders import choose
    from ci.image.contents import installed_items, vendor_items
    from provisioning.base.bill_of_materials import Item, document

    builder = choose(options.builder)
    sys.stderr.write(f"building {plan.tag} with {builder.name}; its log is {order.log}\n")
    with _timed(stage, "build_seconds"):
        builder.build(order, engine)
    attributes = engine.attributes(plan.tag)
    size = int(attributes["Size"])
    stage.metrics |= {
        "builder": builder.name,
        "size": size,
        "layers": list(attributes["RootFS"]["Layers"]),
        "manifest": order.labels["qnn-ci.manifest"],
    }
    stage.artifacts.append(Artifact("image", plan.tag, str(attributes["Id"]).removeprefix("sha256:"), size))
    if options.save:
        options.save.parent.mkdir(parents=True, exist_ok=True)
        engine.save(plan.tag, options.save)
        stage.artifacts.append(Artifact.of("archive", options.save))
    items = [*installed_items(plan, engine, plan.tag), *vendor_items(plan)]
    text = document(Item(plan.tag, kind="container"), items, order.labels)
    DIST.mkdir(parents=True, exist_ok=True)
    path = DIST / f"{plan.name}.cdx.json"
    replace_text(path, text)
    stage.artifacts.append(Artifact.of("sbom", path))
    stage.add(
        "image-size",
        Severity.NOTE,
        plan.tag,
        f"{units.size(size)}{' compressed' if engine.compresses else ''}"
        f" in {len(attributes['RootFS']['Layers'])} layers",
    )
    if plan.profile is None:
        stage.add(
            "image-validate", Severity.NOTE, plan.tag, "holds no SDK, so there is nothing to validate inside"
        )
    else:
        with _timed(stage, "validate_seconds"):
            _validate(stage, plan, engine)


def _validate(stage: StageRun, plan: ImagePlan, engine: Engine) -> None:
    """Run the `validate` session inside: no root, nothing of the image writable, no network."""
    import tempfile

    from ci.image.engine import ContainerCommand, Mount
    from provisioning.base.errors import CheckFailed

    with tempfile.TemporaryDirectory(prefix="qnn-ci-image-") as reports:
        done = engine.run(
            ContainerCommand(
                plan.tag,
                ["nox", "-s", "validate", "--", "--reports", "/reports"],
                user=engine.owner,
                mounts=[Mount(str(ROOT), str(ROOT), read_only=True), Mount(reports, "/reports")],
                environment={"HOME": "/tmp", "PYTHONDONTWRITEBYTECODE": "1"},  # noqa: S108 - a tmpfs of its own
                workdir=str(ROOT),
                read_only=True,
                tmpfs=["/tmp", CACHE],  # noqa: S108
            )
        )
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


def _compare(stage: StageRun, plan: ImagePlan, order: Order, engine: Engine, wanted: str) -> None:
    from ci.image.builders import choose
    from ci.image.reproduce import build_twice

    builder = choose(wanted)
    sys.stderr.write(f"building {plan.name} twice with {builder.name}\n")
    with _timed(stage, "build_twice_seconds"):
        comparison = build_twice(order, engine, builder, order.context.with_name("image-twice"))
    stage.metrics |= {
        "builder": builder.name,
        "digests": [comparison.first.digest, comparison.second.digest],
        "layers": [list(comparison.first.layers), list(comparison.second.layers)],
    }
    if comparison.same:
        message = f"two builds have the {builder.digest} {comparison.first.digest}"
        stage.add("image-reproducible", Severity.NOTE, plan.name, message)
        return
    for line, fix in comparison.problems:
        stage.add("image-reproducible", Severity.ERROR, plan.name, f"two builds differ: {line}", fix)


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
    import datetime as dt

    from provisioning.base.errors import UpstreamError

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
        snapshot = fetch_packages(plan.system.packages, engine, base, apt, folder)
        lock = PackageLock(tuple(packages_in(folder)), snapshot)
    replace_text(PACKAGES, render_packages(lock))
    sys.stdout.write(f"manifests/{PACKAGES.name}: {len(lock.packages)} packages\n")


@contextlib.contextmanager
def _timed(stage: StageRun, metric: str) -> Iterator[None]:
    begun = time.monotonic()
    yield
    stage.metrics[metric] = round(time.monotonic() - begun, 2)
