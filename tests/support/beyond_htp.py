"""Lower one small model in ways that upstream offers beside the HTP, for tests that read what came of it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from executorch.backends.qualcomm.serialization.qc_schema import QcomChipset
from executorch.backends.qualcomm.utils import utils
from executorch.exir import ExecutorchBackendConfig

NET = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU()).eval()
ONE, FOUR = (torch.ones(1, 8),), (torch.ones(4, 8),)


def _spec(options: Any, **more: Any) -> Any:
    return utils.generate_qnn_executorch_compiler_spec(
        soc_model=QcomChipset.SM8850, backend_options=options, **more
    )


def _htp(**more: Any) -> Any:
    return utils.generate_htp_compiler_spec(use_fp16=True, **more)


def _lower(*words: Any, **more: Any) -> Any:
    return utils.to_edge_transform_and_lower_to_qnn(*words, **more)


def _shared() -> Any:
    specs = {name: _spec(_htp(use_weight_sharing=True)) for name in ("one", "four")}
    return _lower({"one": NET, "four": NET}, {"one": ONE, "four": FOUR}, specs)


def _dynamic() -> Any:
    size = torch.export.Dim("n", min=2, max=16)
    return _lower(NET, FOUR, _spec(_htp()), dynamic_shapes={"input": {0: size}})


ROWS: dict[str, Callable[[], Any]] = {
    "gpu": lambda: _lower(NET, ONE, _spec(utils.generate_gpu_compiler_spec())),
    "lpai": lambda: _lower(NET, ONE, _spec(utils.generate_lpai_compiler_spec())),
    "dynamic": _dynamic,
    "shared": _shared,
    "online": lambda: _lower(NET, ONE, _spec(_htp(), online_prepare=True)),
}


def main(into: Path, names: list[str]) -> None:
    for name in names:
        sys.stderr.write(f"\n== {name}\n")
        sys.stderr.flush()
        try:
            edge = ROWS[name]()
        except Exception as error:
            sys.stderr.write(f"{type(error).__name__}: {error}\n")
            continue
        program = edge.to_executorch(ExecutorchBackendConfig(segment_alignment=4096))
        (into / f"{name}.pte").write_bytes(program.buffer)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
