"""Lower one small model with whatever QNN is on the library path; run as a process of its own.

`python -m ci.upstream.compat.probe fp16|8a8w SOC DIRECTORY` leaves model.pte, input.raw and reference.raw.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from ci.upstream import shims


def lower(quantization: str, soc: str, directory: Path) -> None:
    shims.install()
    import torch
    from executorch.backends.qualcomm.export_utils import get_backend_type, make_quantizer
    from executorch.backends.qualcomm.quantizer.quantizer import QuantDtype
    from executorch.backends.qualcomm.utils import utils as qnn
    from executorch.exir import ExecutorchBackendConfig
    from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e

    torch.manual_seed(0)
    torch.set_grad_enabled(False)
    model: Any = torch.nn.Sequential(
        torch.nn.Conv2d(4, 8, 3, padding=1),
        torch.nn.ReLU(),
        torch.nn.AdaptiveAvgPool2d(4),
        torch.nn.Flatten(),
        torch.nn.Linear(128, 16),
    ).eval()
    inputs = (torch.randn(1, 4, 16, 16),)
    reference = model(*inputs)
    if quantization == "8a8w":
        exported = torch.export.export(model, inputs, strict=True).module()
        quantizer = make_quantizer(
            quant_dtype=QuantDtype.use_8a8w, backend=get_backend_type("htp"), soc_model=soc
        )
        prepared = prepare_pt2e(exported, quantizer)
        prepared(*inputs)
        model = convert_pt2e(prepared)
    spec = qnn.generate_qnn_executorch_compiler_spec(
        soc_model=qnn.get_soc_to_chipset_map()[soc],
        backend_options=qnn.generate_htp_compiler_spec(use_fp16=quantization == "fp16"),
    )
    edge = qnn.to_edge_transform_and_lower_to_qnn(model, inputs, spec)
    program = edge.to_executorch(ExecutorchBackendConfig())
    delegates = program.executorch_program.execution_plan[0].delegates
    if [delegate.id for delegate in delegates] != ["QnnBackend"]:
        raise SystemExit(f"expected 1 delegate of QnnBackend, found {[each.id for each in delegates]}")
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "model.pte").write_bytes(program.buffer)
    inputs[0].numpy().tofile(directory / "input.raw")
    reference.numpy().tofile(directory / "reference.raw")


if __name__ == "__main__":
    lower(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
