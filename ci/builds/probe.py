"""Makes a small XNNPACK program and its input: what another machine's runner is tried on.

Run as a program of its own, for exporting imports torch: `python -m ci.builds.probe DIR`.
"""

from __future__ import annotations

import sys
from pathlib import Path

PROGRAM = "probe.pte"
DATA = "probe.raw"
INPUTS = "probe.txt"
SHAPE = (1, 3, 8, 8)


def make(into: Path) -> None:
    import torch
    from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
    from executorch.exir import to_edge_transform_and_lower

    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3, padding=1), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(512, 10)
    ).eval()
    example = (torch.randn(SHAPE),)
    lowered = to_edge_transform_and_lower(
        torch.export.export(model, example, strict=True), partitioner=[XnnpackPartitioner()]
    ).to_executorch()
    into.mkdir(parents=True, exist_ok=True)
    example[0].numpy().tofile(into / DATA)
    # Last and in one step: it tells that all is there.
    part = into / f".{PROGRAM}.part"
    part.write_bytes(lowered.buffer)
    part.replace(into / PROGRAM)


def list_inputs(folder: Path) -> None:
    """Each time, for it names the folder, and that may have been moved."""
    (folder / INPUTS).write_text(f'"{folder / DATA}"\n', encoding="utf-8")


if __name__ == "__main__":
    make(Path(sys.argv[1]))
