"""`compare`: one suite on two or more stacks, side by side: QNN builds, or executorch versions."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from ci.pipeline.flags import add_accept
from provisioning.base.command_line import add_timeout, repeatable, switch, valued
from provisioning.base.selection import add_selection

EXAMPLES = """\
  nox -s compare -- --qnn 2.51.0 --qnn 2.50.40 --tag pr
  nox -s compare -- --qnn 2.49.40 --qnn 2.51.0 --suite models-onnx.toml --soc SM8750
  nox -s compare -- --lane executorch --executorch 1.4.1 --executorch 1.5.1 --tag pr
  nox -s compare -- --bisect --qnn 2.47..2.51 --case llama_decode --soc SM8650 --where
  nox -s compare -- --tag pr --accept          every build of manifests/compat.toml, into docs/upgrades.md
"""


def configure(parser: argparse.ArgumentParser) -> None:
    add_selection(parser)
    repeatable(
        parser,
        "--qnn",
        "VERSION",
        "a build of manifests/compat.toml [onnx: all, the newest first; executorch: the profile's];"
        " the others are compared with the first",
    )
    repeatable(
        parser,
        "--executorch",
        "VERSION",
        "for --lane executorch: the profile's version or one of manifests/compat.toml [all, newest first];"
        " the others are compared with the first",
    )
    parser.add_argument(
        "--lane", choices=("onnx", "executorch"), default="onnx", help="the lane [%(default)s]"
    )
    switch(parser, "--bisect", "find the first version that differs from the earliest: --qnn 2.47..2.51")
    switch(parser, "--where", "with --bisect: and the operator whose outputs differ")
    valued(parser, "--suite", "FILE", "the suite [the lane's own]", type=Path)
    repeatable(parser, "--case", "NAME", "only this case")
    repeatable(parser, "--tag", "TAG", "only programs with this tag")
    add_timeout(parser, "a program", 600)
    switch(parser, "--no-cache", "also repeat unchanged programs")
    add_accept(parser, "the table of docs/upgrades.md")
    parser.epilog = (parser.epilog or "") + (
        "\nEach version is compared with the first.\n"
        "Exit code: 0 the later of the two is never worse, 1 it is; 3 a version could not be measured.\n"
    )


def run(args: argparse.Namespace) -> int:
    from ci.upgrades.compare.bisect import bisect
    from ci.upgrades.compare.stage import ComparedBuilds, compare
    from provisioning.base.errors import UsageError
    from provisioning.base.selection import selection_of

    flags = [flag for name in args.case for flag in ("--case", name)]
    flags += [flag for name in args.tag for flag in ("--tag", name)]
    flags += ["--timeout", f"{args.timeout:g}", *(["--no-cache"] if args.no_cache else [])]
    choice = ComparedBuilds(
        args.lane, tuple(args.qnn), tuple(args.executorch), args.suite, tuple(flags), args.accept
    )
    if args.bisect:
        if args.accept:
            raise UsageError("--bisect measures a part, and --accept wants all", fix="leave one of them out")
        return bisect(selection_of(args), choice, os.environ, where=args.where)
    if args.where:
        raise UsageError("--where searches between the two versions of --bisect", fix="add --bisect")
    return compare(selection_of(args), choice, os.environ)
