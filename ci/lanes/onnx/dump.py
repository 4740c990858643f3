"""The process in which ONNX Runtime writes QNN's calls, or the graph as a DLC, to the working folder."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

_TYPES = {"float": "FLOAT", "double": "DOUBLE"}


def _child(kind: str, model: str, soc_id: str, arch: str) -> None:
    import numpy as np
    import onnxruntime as ort
    import onnxruntime_qnn

    provider = "QNNExecutionProvider"
    ort.set_default_logger_severity(3)
    ort.register_execution_provider_library(provider, onnxruntime_qnn.get_library_path())
    device = next(device for device in ort.get_ep_devices() if device.ep_name == provider)
    htp = Path(onnxruntime_qnn.get_qnn_htp_path())
    options = {"backend_path": str(htp), "soc_model": soc_id, "htp_arch": arch}
    options["enable_htp_fp16_precision"] = "1"
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
    session = ort.InferenceSession(model, settings)
    if kind == "calls":
        # Run once, so that the calls contain a run. Saver returns zeros.
        numbers = np.random.default_rng(0)
        session.run(None, {input_.name: _drawn(input_, numbers) for input_ in session.get_inputs()})


def _drawn(tensor: Any, numbers: Any) -> Any:
    import numpy as np
    from onnx import TensorProto, helper

    dtype = helper.tensor_dtype_to_np_dtype(
        TensorProto.DataType.Value(_TYPES.get(tensor.type[7:-1], tensor.type[7:-1].upper()))
    )
    if dtype.kind == "f":
        return numbers.standard_normal(tensor.shape).astype(dtype)
    return np.zeros(tensor.shape, dtype)


if __name__ == "__main__":
    _child(*sys.argv[1:])
