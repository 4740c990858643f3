"""A small program lowered to HTP, in fp16: `python -m tests.support.runner_qnn_program DIR SOC`."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from executorch.backends.qualcomm.serialization.qc_schema import QcomChipset
from executorch.backends.qualcomm.utils.utils import (
    generate_htp_compiler_spec,
    generate_qnn_executorch_compiler_spec,
    to_edge_transform_and_lower_to_qnn,
)


def main(into: Path, soc: str) -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3, padding=1), torch.nn.ReLU()).eval()
    example = (torch.randn(1, 3, 8, 8),)
    spec = generate_qnn_executorch_compiler_spec(
        soc_model=QcomChipset[soc], backend_options=generate_htp_compiler_spec(use_fp16=True)
    )
    program = to_edge_transform_and_lower_to_qnn(model, example, spec).to_executorch()
    into.mkdir(parents=True, exist_ok=True)
    (into / "htp.pte").write_bytes(program.buffer)
    example[0].numpy().tofile(into / "htp_in0.raw")
    model(*example).detach().numpy().tofile(into / "htp_ref0.raw")
    (into / "htp.txt").write_text("htp_in0.raw\n", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
