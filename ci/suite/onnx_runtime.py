"""Use ONNX Runtime's QNN provider, for all lanes that compile with it. Only workers import this module.

`session_on_htp` compiles a model for a chip and `session_on_cpu` computes it as it is written. Errors become
one line, with the command that explains QNN's codes."""

from __future__ import annotations

import contextlib
import ctypes
import re
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

import onnx
import onnxruntime as ort
import onnxruntime_qnn

from ci.artifacts.compiler_log import Refusal
from ci.diagnose.logs import read
from ci.models.inputs import Sample
from ci.work import doing
from provisioning.base.commands import Fix, join_fixes
from provisioning.base.errors import CheckFailed, EnvironmentLacking
from provisioning.build_ids import build_ids
from provisioning.manifest import Soc

PROVIDER = "QNNExecutionProvider"
FALLBACK = "session.disable_cpu_ep_fallback"
ERRORS_ONLY, VERBOSE = 3, 0
OnnxModel: TypeAlias = "Path | onnx.ModelProto"
SOURCE = re.compile(r"(?:\[ONNXRuntimeError\] : \d+ : \w+ : )|/onnxruntime_src/\S+?:\d+ .*?\) (?=[A-Z\"'])")


@cache
def device() -> Any:
    """Return the provider's device. Registers the provider, which works once per process."""
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
    """Load what every session needs, so that forks of this process already have it."""
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
    model: OnnxModel, provider: Mapping[str, str], entries: Mapping[str, str], severity: int = ERRORS_ONLY
) -> Any:
    options = session_options(severity)
    for name, value in entries.items():
        options.add_session_config_entry(name, value)
    options.add_provider_for_devices([device()], dict(provider))
    session = ort.InferenceSession(_source_of(model), options)
    # Otherwise a failed run would be repeated on the CPU, and its outputs taken for the chip's.
    session.disable_fallback()
    return session


def session_on_cpu(model: OnnxModel) -> Any:
    """Make a session of the model as written, without optimizations: a quantized model computes in float
    between roundings."""
    options = session_options()
    # Optimizing would compute quantized operators in integers, which round differently.
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    return ort.InferenceSession(_source_of(model), options, providers=["CPUExecutionProvider"])


def _source_of(model: OnnxModel) -> str | bytes:
    return str(model) if isinstance(model, Path) else model.SerializeToString()


def run(session: Any, sample: Sample) -> Sample:
    """Return the outputs of one inference."""
    names = [output.name for output in session.get_outputs()]
    with failing("it was compiled, and running it fails", "look at the inputs' values"):
        outputs = session.run(names, sample)
    return dict(zip(names, outputs, strict=True))


def run_on_cpu(model: OnnxModel, samples: Iterable[Sample]) -> list[Sample]:
    """Return the outputs of each sample, computed on the CPU."""
    doing("run on CPU")
    try:
        session = session_on_cpu(model)
    except Exception as error:
        message = message_of(error)
        is_unknown = "not a registered function/op" in message
        message = f"the CPU cannot run the model either: {message}"
        fix = "write it with operators that ONNX Runtime has" if is_unknown else "export the model again"
        raise CheckFailed(message, fix=fix) from error
    return [run(session, sample) for sample in samples]


def fold_constants(model: OnnxModel) -> onnx.ModelProto:
    """Copy the model without the nodes that do not depend on inputs, so that the shapes of all values can be
    inferred."""
    options = session_options()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_BASIC
    with tempfile.TemporaryDirectory(prefix="qnn-ci-folded-") as folder:
        options.optimized_model_filepath = f"{folder}/model.onnx"
        ort.InferenceSession(_source_of(model), options, providers=["CPUExecutionProvider"])
        return onnx.load(options.optimized_model_filepath)


@contextlib.contextmanager
def failing(message: str, *fixes: str) -> Iterator[None]:
    """Turn any error into CheckFailed with a message that begins with `message`."""
    try:
        yield
    except Exception as error:
        fix = join_fixes([*fixes, explain_codes(str(error))])
        raise CheckFailed(f"{message}: {message_of(error)}", fix=fix) from error


def message_of(error: Exception) -> str:
    """The error's message without the location in ONNX Runtime's source."""
    text = SOURCE.sub("", " ".join(str(error).split()))
    return text[:600] or type(error).__name__


def explain_codes(message: str, *refused: Refusal) -> str:
    """The command that explains the error codes; empty if none is known."""
    codes = dict.fromkeys(str(code.code) for code in read(message).codes)
    codes |= dict.fromkeys(str(row.code.code) for row in refused)
    word = "code" if len(codes) == 1 else "codes"
    return Fix(f"{{}} explains the {word}", ("diagnose", *codes)) if codes else ""
