"""`chips`: QNN's names of chips beside those that people use."""

from __future__ import annotations

import argparse

from provisioning.base import answer
from provisioning.base.selection import chip_named, names_of
from provisioning.base.units import align, columns

EXAMPLES = """\
  qnn-ci chips
  qnn-ci chips 8-elite
  qnn-ci chips "Galaxy S24"
"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "name", nargs="?", metavar="NAME", help="a chip or a device; --soc takes it too [all]"
    )


def run(args: argparse.Namespace) -> int:
    from provisioning.manifest import load_socs

    socs = load_socs()
    chips = [chip_named(args.name)] if args.name else sorted(socs, key=lambda name: (socs[name].arch, name))
    rows, facts = [("chip", "Hexagon", "VTCM", "lanes", "also called, and devices")], {}
    for name in chips:
        hexagon, vtcm, names = f"V{socs[name].arch}", socs[name].vtcm_mb, names_of(name)
        lanes = ["executorch", "onnx"] if socs[name].executorch else ["onnx"]
        aliases = ", ".join(alias.among(name) for alias in names)
        rows.append((name, hexagon, f"{vtcm} MB", ", ".join(lanes), aliases))
        facts[name] = {
            "hexagon": hexagon,
            "vtcm_mb": vtcm,
            "lanes": lanes,
            "names": {alias.text: list(alias.chips) for alias in names},
        }
    answer.add(chips=facts)
    print("\n".join(align(rows, columns())))
    return 0
