"""`shell --image`: a shell, or one command, in an image, with this checkout mounted and its files yours."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ci.image import CACHE
from provisioning.base import answer
from provisioning.base.commands import session
from provisioning.base.flags import add_valued
from provisioning.base.parser import Parser
from provisioning.base.settings import ROOT

if TYPE_CHECKING:
    from ci.image.contents import ImagePlan
    from ci.image.engine import Engine

EXAMPLES = """\
  nox -s shell -- --image wheels
  nox -s shell -- --image wheels nox -s validate
  python -m ci shell --image wheels -- python export.py
"""

PASSED_ON = (
    *("QNN_CI_SOC", "QNN_CI_REPORTS", "QNN_CI_REQUIREMENTS", "CI", "TERM", "NO_COLOR", "FORCE_COLOR"),
    *("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_NO_INDEX"),
)
"""Variables of the user that an image has too; those of pip are for packages that a suite brings."""


def configure(parser: argparse.ArgumentParser) -> None:
    add_valued(parser, "--image", "NAME", "one that `nox -s image` prints", required=True)
    parser.add_argument(
        "command", nargs=argparse.REMAINDER, metavar="[--] CMD", help="what to run [bash, interactive]"
    )


def run(args: argparse.Namespace) -> int:
    """Become docker's process, so that signals and the exit code are the command's own."""
    from ci.image.contents import plan_of
    from ci.image.engine import connect_engine, engine_address
    from provisioning.verbs.shell import become

    answer.refuse("shell")
    plan = plan_of(args.image)
    with connect_engine() as engine:
        check(plan, engine)
        owner = engine.owner
    command = args.command[1:] if args.command[:1] == ["--"] else args.command
    terminal = sys.stdin.isatty() and sys.stdout.isatty()
    folder = Path(Parser.started_in or Path.cwd())
    argv = docker_run(
        plan, command or ["bash"], owner=owner, terminal=terminal, environ=os.environ, cwd=folder
    )
    sys.stdout.flush()
    sys.stderr.flush()
    environ, address = dict(os.environ), engine_address(os.environ)
    if address.startswith("unix://"):
        environ["DOCKER_HOST"] = address
    return become(argv, environ)


def docker_run(
    plan: ImagePlan,
    command: Sequence[str],
    *,
    owner: str,
    terminal: bool,
    environ: Mapping[str, str],
    cwd: Path,
    root: Path = ROOT,
) -> list[str]:
    """The command line. The checkout keeps its path, since build folders contain it."""
    uid = int(owner.partition(":")[0])
    argv = ["docker", "run", "--rm", "--init", "--interactive", *(["--tty"] if terminal else [])]
    argv += ["--user", owner, "--read-only", "--tmpfs", "/tmp:exec,mode=1777"]  # noqa: S108
    folders = (root,) if cwd.is_relative_to(root) else (root, cwd)
    argv += [word for folder in folders for word in ("--volume", f"{folder}:{folder}")]
    # One volume for each user, because users may not write each other's files.
    argv += ["--mount", f"type=volume,source=qnn-ci-{uid},target={CACHE}"]
    # By name alone: an index's address may have a password.
    argv += [word for name in PASSED_ON if name in environ for word in ("--env", name)]
    return [*argv, "--workdir", str(cwd), plan.tag, *command]


def check(plan: ImagePlan, engine: Engine) -> None:
    """Raise if the image cannot be entered; warn if it was built from other manifests."""
    from provisioning.base.errors import EnvironmentLacking

    if engine.image_id(plan.tag) is None:
        raise EnvironmentLacking(
            f"the image {plan.tag} was not built on this machine", fix=session("image", plan.name)
        )
    labels = engine.attributes(plan.tag)["Config"]["Labels"] or {}
    base = labels.get("qnn-ci.base-id", "")
    if labels.get("qnn-ci.manifest") != plan.key(base):
        sys.stderr.write(
            f"note: {plan.tag} was built from other manifests than this checkout's;"
            f" `{session('image', plan.name)}` renews it\n"
        )
