"""`operator_history`: what did earlier builds give for each operator of the table?"""

from __future__ import annotations

import argparse
import os

from ci.pipeline.flags import add_accept
from provisioning.base.command_line import add_timeout, repeatable
from provisioning.base.selection import add_selection

EXAMPLES = """\
  nox -s operator_history -- --qnn 2.50.40 -k RotaryEmbedding/
  nox -s operator_history -- --qnn 2.47.0 --qnn 2.48.40 --accept
  nox -s operator_history -- --executorch 1.4.1..1.5.0 --accept
"""


def configure(parser: argparse.ArgumentParser) -> None:
    add_selection(parser)
    repeatable(
        parser,
        "--qnn",
        "VERSION",
        "a build of manifests/compat.toml, or a range A..B: ONNX's operators, through ONNX Runtime",
    )
    repeatable(
        parser,
        "--executorch",
        "VERSION",
        "a version of manifests/compat.toml, or a range A..B: the plain cases of the suite `values`",
    )
    repeatable(parser, "-k", "EXPR", "only these programs or tests; not with --accept", dest="expressions")
    add_timeout(parser, "a program", 600)
    add_accept(parser, "what differs from now in manifests/upstream/operators/history.json")


def run(args: argparse.Namespace) -> int:
    from ci.operator_history.stage import EarlierBuilds, measure_all
    from provisioning.base.errors import UsageError
    from provisioning.base.selection import selection_of

    if args.expressions and args.accept:
        raise UsageError("-k measures a part, and --accept wants all", fix="leave one of them out")
    builds = EarlierBuilds(
        tuple(args.qnn), tuple(args.executorch), tuple(args.expressions), args.timeout, args.accept
    )
    return measure_all(selection_of(args), builds, os.environ)
