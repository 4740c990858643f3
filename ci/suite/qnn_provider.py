"""ONNX Runtime's QNN provider, for all lanes that compile with it. Imported only by workers."""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path
from typing import Any

import onnxruntime as ort
import onnxruntime_qnn

from provisioning.base.commands import Fix
from provisioning.base.errors import EnvironmentLacking
from provisioning.components import build_ids
from provisioning.manifest import Soc

PROVIDER = "QNNExecutionProvider"
ERRORS_ONLY, VERBOSE = 3, 0


@cache
def device() -> Any:
    """The provider's device. Registers the provider, which works once per process."""
    # QNN reports a graph's costs only at the highest log level, set here, at registration and in the session.
    ort.set_default_logger_severity(VERBOSE)
    ort.register_execution_provider_library(PROVIDER, onnxruntime_qnn.get_library_path())
    devices = [ep_device for ep_device in ort.get_ep_devices() if ep_device.ep_name == PROVIDER]
    if not devices:
        raise EnvironmentLacking(
            "onnxruntime-qnn registers no device, so nothing can be compiled",
            fix=Fix("{}, which installs versions that fit each other", ("test_onnx",)),
        )
    return devices[0]


@cache
def installed_build() -> str:
    return ", ".join(build_ids(Path(onnxruntime_qnn.get_qnn_htp_path())))


def load() -> None:
    """Load what every session needs, so that forks of this process have it already."""
    device()
    installed_build()
    # Kept open: otherwise each session would load all 106 MB again.
    ctypes.CDLL(onnxruntime_qnn.get_qnn_htp_path())


def htp_options(soc: Soc) -> dict[str, str]:
    """The options for a chip's HTP. The HTP converts inputs and outputs, not the CPU."""
    return {
        "backend_path": onnxruntime_qnn.get_qnn_htp_path(),
        "soc_model": str(soc.id),
        "htp_arch": str(soc.arch),
        "offload_graph_io_quantization": "0",
    }
