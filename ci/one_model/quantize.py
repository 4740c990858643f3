"""`quantize`: one model with its ranges and scales in it: an .onnx with QDQ nodes, or a quantized .pt2."""

from __future__ import annotations

import argparse

from ci.pipeline.compile_flags import add_model, add_output, one_model_of
from ci.pipeline.flags import add_work

EXAMPLES = """\
  qnn-ci quantize model.onnx --precision 16a8w --calibrate samples/ -o out/
  qnn-ci quantize model.pt2 --soc SM8750 --precision 8a8w --calibrate samples/ -o out/
  qnn-ci quantize net.py:model --precision 16a4w -o out/
"""


def configure(parser: argparse.ArgumentParser) -> None:
    add_model(parser)
    add_output(parser, "where the quantized model and its record go")
    parser.add_argument("--precision", required=True, help="8a8w, 16a8w, 16a4w …")
    add_work(parser.add_argument_group("how"), "a step")


def run(args: argparse.Namespace) -> int:
    from ci.pipeline.one_model import lane_model, quantize_model
    from ci.pipeline.options import Compiling

    return quantize_model(lane_model(one_model_of(args), Compiling(args.output)))
