"""`image_pins`: pin what images are built on: Debian packages, and with --renew-base the system itself."""

from __future__ import annotations

import argparse
import datetime as dt
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from provisioning.base.errors import UpstreamError
from provisioning.base.files import replace_text
from provisioning.base.flags import add_valued, switch

if TYPE_CHECKING:
    from ci.image.contents import System
    from ci.image.engine import Engine

EXAMPLES = """\
  nox -s lab -- image_pins
  nox -s lab -- image_pins --renew-base
"""


def configure(parser: argparse.ArgumentParser) -> None:
    switch(parser, "--renew-base", "first pin the newest image of the same Debian")
    add_valued(parser, "--base", "IMAGE", "ask the apt of this image [manifests/images.toml]")


def run(args: argparse.Namespace) -> int:
    import tempfile

    from ci.image.contents import PACKAGES_FILE, fetch_packages, load_images, packages_in
    from ci.image.engine import connect_engine

    system = load_images().system
    with connect_engine() as engine:
        if args.renew_base:
            system = newest_base(system, engine)
            sys.stdout.write(f"the newest base is {system.image}; pinned was {load_images().system.image}\n")
        base = args.base or system.reference
        base_id = engine.image_id(base) or engine.pull(base)
        with tempfile.TemporaryDirectory(prefix="qnn-ci-image-") as folder:
            snapshot = fetch_packages(system.packages, engine, base_id, Path(folder))
            packages = packages_in(Path(folder))
    # Only now: without the packages of its day a new base would be of no use.
    if args.renew_base:
        pin_base(system)
    head = "# Written by `nox -s lab -- image_pins` from images.toml; not to be edited."
    moment = [f"# snapshot: {snapshot}"] if snapshot else []
    replace_text(PACKAGES_FILE, "\n".join([head, *moment, *packages, ""]))
    sys.stdout.write(f"manifests/{PACKAGES_FILE.name}: {len(packages)} packages\n")
    return 0


@contextmanager
def edited(path: Path | None = None) -> Iterator[Any]:
    """The document images.toml, to be changed in place; comments stay."""
    import tomlkit

    from ci.image.contents import MANIFEST, load_images

    path = path or MANIFEST
    document = tomlkit.parse(path.read_text(encoding="utf-8"))
    yield document
    replace_text(path, tomlkit.dumps(document))
    load_images.cache_clear()


def pin_base(system: System, path: Path | None = None) -> None:
    with edited(path) as document:
        document["system"].update(system.model_dump(include={"image", "digest", "epoch"}))


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
