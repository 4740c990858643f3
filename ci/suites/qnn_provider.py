"""ONNX Runtime's QNN provider, as the lanes that compile with it share it. Imported only by workers."""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path
from typing import Any

import onnxruntime as ort
import onnxruntime_qnn

from provisioning.base.errors import EnvironmentLacking
from provisioning.build_id import build_ids
from provisioning.manifest import Soc

PROVIDER = "QNNExecutionProvider"
ERRORS_ONLY, VERBOSE = 3, 0


@cache
def device() -> Any:
    """The provider's device; registers the provider, which can be done once a process."""
    # QNN says what a graph costs only where this, at registration too, and the session are at their most
    # talkative.
    ort.set_default_logger_severity(VERBOSE)
    ort.register_execution_provider_library(PROVIDER, onnxruntime_qnn.get_library_path())
    found = [each for each in ort.get_ep_devices() if each.ep_name == PROVIDER]
    if not found:
        raise EnvironmentLacking(
            "onnxruntime-qnn registers no device, so nothing can be compiled",
            remedy="nox -s test_onnx, which installs versions that fit each other",
        )
    return found[0]


@cache
def installed_build() -> str:
    return ", ".join(build_ids(Path(onnxruntime_qnn.get_qnn_htp_path())))


def load() -> None:
    """Do beforehand what every session needs, so that forks of this process have it."""
    device()
    installed_build()
    # Stays open: a session would load it again, all 106 MB of it.
    ctypes.CDLL(onnxruntime_qnn.get_qnn_htp_path())


def htp_options(soc: Soc) -> dict[str, str]:
    """For a chip's HTP. Inputs and outputs are converted on it, not by the CPU."""
    return {
        "backend_path": onnxruntime_qnn.get_qnn_htp_path(),
        "soc_model": str(soc.id),
        "htp_arch": str(soc.arch),
        "offload_graph_io_quantization": "0",
    }
