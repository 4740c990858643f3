"""`onnx_operators`: the node test of each ONNX operator that is measured, chosen from the installed onnx."""

from __future__ import annotations

import argparse

from provisioning.base.flags import switch

EXAMPLES = """\
  nox -s lab -- onnx_operators
  nox -s lab -- onnx_operators --check
"""


def configure(parser: argparse.ArgumentParser) -> None:
    switch(parser, "--check", "write nothing; fail if the choice is stale")


def run(args: argparse.Namespace) -> int:
    from ci.lanes.onnx.steps import require_installed

    require_installed()
    from lab.onnx_operators.choice import write_choice

    return write_choice(check=args.check)
