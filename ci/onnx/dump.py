"""What ONNX Runtime would have QNN do, written down instead of done: QNN's calls as C, or the graph as a DLC.

Neither can be had together with a compiled context: each is a session of its own, in a child process, for QNN
writes the last of it when the process ends.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from provisioning.base.command_line import TIMEOUT, duration
from provisioning.base.commands import session
from provisioning.base.errors import CheckFailed, EnvironmentLacking, UsageError
from provisioning.base.settings import DEFAULT_SOC, ROOT

CALLS, PARAMETERS = "saver_output.c", "params.bin"
_LAST_LINES = 12
_TYPES = {"float": "FLOAT", "double": "DOUBLE"}


def configure(parser: argparse.ArgumentParser, output: str, meaning: str) -> None:
    parser.add_argument("model", type=Path, metavar="MODEL.onnx", help="a model that is not compiled yet")
    parser.add_argument("-o", "--output", type=Path, required=True, metavar=output, help=meaning)
    parser.add_argument("--soc", default=DEFAULT_SOC, help="the chip [%(default)s]")
    parser.add_argument(
        "--timeout", type=duration, default=TIMEOUT, metavar="S", help="end it after S seconds [%(default)g]"
    )


@contextmanager
def written(kind: str, args: argparse.Namespace) -> Iterator[Path]:
    """A folder with what the child wrote; it is gone afterwards."""
    from ci.onnx.compile import require_installed
    from provisioning.manifest import soc_named

    soc = soc_named(args.soc)
    require_installed()
    if args.model.suffix != ".onnx" or not args.model.is_file():
        raise UsageError(
            f"{args.model}: expected an ONNX model that is there",
            remedy="name a .onnx file; of a program that is prepared on the device: python -m ci inspect"
            " MODEL.pte --extract DIR",
        )
    output = args.output.absolute()
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        folder = tempfile.TemporaryDirectory(prefix=f".{output.name}-", dir=output.parent)
    except OSError as error:
        raise EnvironmentLacking(
            f"{output.parent}: {error.strerror}", remedy="-o names another place"
        ) from error
    with folder as name:
        command = [
            sys.executable,
            "-m",
            __name__,
            kind,
            str(args.model.absolute()),
            str(soc.id),
            str(soc.arch),
        ]
        try:
            done = subprocess.run(
                command,
                cwd=name,
                env={
                    **os.environ,
                    "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
                },
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=args.timeout,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise CheckFailed(
                f"{args.model}: not done after {args.timeout:g} s", remedy="allow more with --timeout"
            ) from error
        if done.returncode:
            lines = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
            raise CheckFailed(
                f"{args.model}: ONNX Runtime refused it for {args.soc}: {lines[-1] if lines else 'it ended'}",
                remedy=session("onnx", "audit", args.model, "--soc", args.soc),
                output="\n".join(lines[-_LAST_LINES:]),
            )
        yield Path(name)


def move(source: Path, target: Path) -> None:
    """Put a finished file or folder in place in one step."""
    try:
        if target.is_dir() and source.is_dir():
            target.rmdir()
        source.chmod(0o755 if source.is_dir() else 0o644)
        source.replace(target)
    except OSError as error:
        raise UsageError(
            f"{target}: {error.strerror}", remedy="-o names a place that is free, or an empty folder"
        ) from error


def _child(kind: str, model: str, soc_id: str, arch: str) -> None:
    import numpy as np
    import onnxruntime as ort
    import onnxruntime_qnn

    provider = "QNNExecutionProvider"
    ort.set_default_logger_severity(3)
    ort.register_execution_provider_library(provider, onnxruntime_qnn.get_library_path())
    device = next(each for each in ort.get_ep_devices() if each.ep_name == provider)
    htp = Path(onnxruntime_qnn.get_qnn_htp_path())
    options = {
        "backend_path": str(htp),
        "soc_model": soc_id,
        "htp_arch": arch,
        "enable_htp_fp16_precision": "1",
    }
    if kind == "calls":
        options["qnn_saver_path"] = str(htp.with_name("libQnnSaver.so"))
    else:
        options |= {
            "dump_qnn_ir_dlc": "1",
            "dump_qnn_ir_dlc_dir": str(Path.cwd()),
            "qnn_ir_backend_path": str(htp.with_name("libQnnIr.so")),
        }
    settings = ort.SessionOptions()
    settings.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
    settings.add_provider_for_devices([device], options)
    made = ort.InferenceSession(model, settings)
    if kind == "calls":
        # So that a run is among the calls. What Saver returns is zeros.
        numbers = np.random.default_rng(0)
        made.run(None, {each.name: _drawn(each, numbers) for each in made.get_inputs()})


def _drawn(tensor: Any, numbers: Any) -> Any:
    import numpy as np
    from onnx import TensorProto, helper

    dtype = helper.tensor_dtype_to_np_dtype(
        TensorProto.DataType.Value(_TYPES.get(tensor.type[7:-1], tensor.type[7:-1].upper()))
    )
    if dtype.kind == "f":
        return numbers.standard_normal(tensor.shape).astype(dtype)
    return np.zeros(tensor.shape, dtype)


def publish_calls(folder: Path, target: Path) -> list[Path]:
    made = folder / "saver_output"
    for name in (CALLS, PARAMETERS):
        if not (made / name).is_file():
            raise CheckFailed(f"QNN's Saver wrote no {name}", remedy="report it with the model")
    staged = folder / "calls"
    shutil.move(made, staged)
    move(staged, target)
    return sorted(target.iterdir())


if __name__ == "__main__":
    _child(*sys.argv[1:])
