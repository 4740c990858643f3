"""`example`: write small models, a suite and samples, to try the commands on."""

from __future__ import annotations

import argparse
import random
import sys
from array import array
from pathlib import Path

from ci.model_commands.example_onnx import enlarging_network
from provisioning.base.commands import session
from provisioning.base.errors import UsageError
from provisioning.base.files import replace_bytes
from provisioning.base.parser import Parser
from provisioning.base.settings import MANIFESTS

EXAMPLES = """\
  qnn-ci example
"""

FILES = MANIFESTS / "example"
NETWORK = "net.onnx"
SAMPLES, COUNT, SHAPE = "samples", 8, (1, 3, 64, 64)
"""The folder of the network's inputs, how many there are, and the shape of each."""
NEXT = ("net.py:scores", "--soc", "SM8750", "--precision", "fp16", "-o", "out")


def configure(parser: argparse.ArgumentParser) -> None:
    pass


def run(args: argparse.Namespace) -> int:
    folder = Parser.user_folder()
    files = [path for path in sorted(FILES.iterdir()) if path.is_file()]
    for name in (*(path.name for path in files), NETWORK, SAMPLES):
        if (folder / name).exists():
            raise UsageError(f"{name} is already in this folder", fix="type it in an empty folder")
    for path in files:
        replace_bytes(folder / path.name, path.read_bytes())
    replace_bytes(folder / NETWORK, enlarging_network())
    (folder / SAMPLES).mkdir()
    for number in range(COUNT):
        write_sample(folder / SAMPLES / f"{number}.npy", number)
    sys.stdout.write(
        f"wrote net.py and models.toml: a small model, and a suite that tests it\n"
        f"wrote {NETWORK} and {SAMPLES}: a network that enlarges pictures, and {COUNT} of these\n"
        f"next:  {session('compile', *NEXT)}\n"
    )
    return 0


def write_sample(path: Path, number: int) -> None:
    """Write random pixels as numpy.save would: the Python of this command has no numpy."""
    generator = random.Random(number)  # noqa: S311
    count = SHAPE[1] * SHAPE[2] * SHAPE[3]
    pixels = array("f", (generator.uniform(-1, 1) for _ in range(count)))
    header = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {SHAPE}, }}"
    # The header ends with a line break, and the pixels begin at a multiple of 64 bytes.
    replace_bytes(path, b"\x93NUMPY\x01\x00\x76\x00" + header.ljust(117).encode() + b"\n" + pixels.tobytes())
