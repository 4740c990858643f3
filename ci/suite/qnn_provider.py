"""ONNX Runtime's QNN provider, for all lanes that compile with it. Imported only by workers."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
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
FALLBACK = "session.disable_cpu_ep_fallback"
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


def session_options(severity: int = ERRORS_ONLY) -> Any:
    """Session options with this worker's number of threads, none of which waits by spinning."""
    options = ort.SessionOptions()
    options.log_severity_level = severity
    options.intra_op_num_threads = 1
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return options


def session_on_htp(
    model: Path, provider: Mapping[str, str], entries: Mapping[str, str], severity: int = ERRORS_ONLY
) -> Any:
    options = session_options(severity)
    for name, value in entries.items():
        options.add_session_config_entry(name, value)
    options.add_provider_for_devices([device()], dict(provider))
    session = ort.InferenceSession(str(model), options)
    # Otherwise a failed run would be repeated on the CPU, and its outputs taken for the chip's.
    session.disable_fallback()
    return session


def session_on_cpu(model: Path) -> Any:
    """Of the model as written: a quantized one computes in float between roundings."""
    options = session_options()
    # Optimizing would compute quantized operators in integers, which round differently.
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    return ort.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])
