"""`quantize`: one model with its ranges and scales in it: an .onnx with QDQ nodes, or a quantized .pt2."""

from __future__ import annotations

import argparse

from ci.pipeline.compile_flags import ONNX, add_model, add_output, one_model_of
from ci.pipeline.flags import add_work

EXAMPLES = """\
  qnn-ci quantize model.onnx --precision 16a8w --calibrate samples/ -o out/
  qnn-ci quantize model.pt2 --soc SM8750 --precision 8a8w --calibrate samples/ -o out/
  qnn-ci quantize net.py:model --precision 16a4w -o out/
"""


def configure(parser: argparse.ArgumentParser) -> None:
    add_model(parser)
    add_output(parser, "where the quantized model and its record go")
    parser.add_argument("--precision", required=True, help="8a8w, 16a8w, 16a4w … (u8u8, u16u8 …)")
    add_work(parser.add_argument_group("how"), "a step")


def run(args: argparse.Namespace) -> int:
    model = one_model_of(args)
    if model.lane == ONNX:
        from ci.lanes.onnx.one_model import quantize_model
    else:
        from ci.lanes.executorch.one_model import quantize_model
    return quantize_model(model, args.output)
