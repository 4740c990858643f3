"""`timing`: the share of time of each operator, line and module of a program on the emulator."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from ci.pipeline.compile_flags import PRECISION_HELP, add_model, add_option, one_model_of, require_one_chip
from ci.pipeline.flags import add_work
from ci.pipeline.models.user_model import MODEL_HELP
from ci.pipeline.options import OneModel
from provisioning.base import answer
from provisioning.base.command_line import switch, valued

if TYPE_CHECKING:
    from ci.pipeline.profile import ProgramProfile
    from ci.pipeline.simulated import SimulatedProfile

EXAMPLES = """\
  qnn-ci timing net.py:model --precision 8a8w --soc SM8650
  qnn-ci timing model.onnx --precision 8a8w --json now.json --against before.json
  qnn-ci timing model.onnx --precision 8a8w --soc SM8750 --simulate --timeline net.json
  qnn-ci timing net.py:model --page timing.html
  qnn-ci timing out/net.pte --input x.npy
  qnn-ci timing out/model_ctx.onnx --input x.npy --source model.onnx
"""


class Times(Protocol):
    """What is asked of a lane."""

    def profiled(
        self, model: OneModel, files: Sequence[str], source: Path | None, /
    ) -> tuple[dict[str, str], ProgramProfile]:
        """What was profiled, and its figures. `source` is what a compiled .onnx was compiled from."""

    def simulated_profile(self, model: OneModel) -> SimulatedProfile:
        """What each operator takes of the chip by QNN's own simulator."""


def configure(parser: argparse.ArgumentParser) -> None:
    model = f"{MODEL_HELP}; or a program: .pte, or what compile wrote"
    add_option(add_model(parser, model))
    parser.add_argument("--precision", help=PRECISION_HELP)
    parser.add_argument(
        "--input",
        action="append",
        default=[],
        metavar="[NAME=]FILE",
        help="for a program or an ONNX model: .npy of an input, or .npz with all; may be repeated [drawn]",
    )
    valued(
        parser,
        "--source",
        "MODEL.onnx",
        "the model that a compiled .onnx was compiled from, to show its lines",
        type=Path,
    )
    switch(
        parser,
        "--simulate",
        "also simulate each operator's time on the chip (QNN's simulator, not documented)",
    )
    valued(parser, "--timeline", "FILE.json", "with --simulate: write a timeline for Perfetto", type=Path)
    valued(parser, "--against", "FILE", "compare with an earlier --json", type=Path)
    valued(parser, "--page", "FILE.html", "write a page with bars and a tree", type=Path)
    add_work(parser.add_argument_group("how"), "a step")


def run(args: argparse.Namespace) -> int:
    from ci.artifacts.simulation import timeline
    from ci.pipeline.lane_model import of_lane
    from ci.pipeline.model_report import ModelReport, reported
    from ci.pipeline.profile import as_text, document, read_document
    from ci.pipeline.simulated import as_text as simulated_as_text
    from ci.report.profiles import profile_page
    from provisioning.base.errors import CheckFailed, UsageError
    from provisioning.base.files import write_named

    model = one_model_of(args)
    require_one_chip(model.selection)
    if args.timeline and not args.simulate:
        raise UsageError("--timeline needs --simulate", fix="add --simulate")
    earlier = read_document(args.against) if args.against else None

    lane: Times = of_lane(model, "timing")

    def work(report: ModelReport) -> int:
        about, measured = lane.profiled(model, args.input, args.source)
        if not measured.costs and not measured.cpu:
            raise CheckFailed(f"{model.typed}: QNN profiled no operator", fix="it contains no operator")
        body = document(measured, {"model": model.typed, **about})
        simulated = lane.simulated_profile(model) if args.simulate else None
        if simulated:
            body["simulated"] = simulated.as_dict()
        if simulated and args.timeline:
            write_named(args.timeline, json.dumps(timeline(simulated.simulation, simulated.names)))
        report.more["profiles"] = body
        answer.add(**body)
        if args.page:
            write_named(args.page, profile_page(model.typed, measured, simulated))
        if simulated:
            print("\n".join(simulated_as_text(simulated)))
        print("\n".join(as_text(measured, earlier, args.against)))
        return 0

    return reported("timing", model, model.named, work)
