"""`test_onnx` of a few .onnx, cold and unchanged, against a script that calls ONNX Runtime in turn.

Ours compiles each model in both forms, reloads it and compares it with float; the script compiles it once.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from lab.bench.frame import Aim, Benchmark, Contender, run_stage, run_whole
from provisioning.base.errors import CheckFailed
from provisioning.base.findings import Report

COLD, WARM, PLAIN = "ours, cold", "ours, nothing changed", "plain script"
AIMS = (Aim(COLD, PLAIN, 0.15), Aim(WARM, 2.0))
NAMES = [f"net{number}" for number in range(6)]
CASE = (
    '[case.{0}]\nmodel = "{0}.onnx"\n[[case.{0}.run]]\nlane = "onnx"\nprecision = "fp16"\nsocs = ["SM8650"]\n'
)

SCRIPT = """\
import sys
from pathlib import Path
import numpy, onnxruntime, onnxruntime_qnn

onnxruntime.register_execution_provider_library("QNN", onnxruntime_qnn.get_library_path())
devices = onnxruntime.get_ep_devices()
device = next(device for device in devices if "onnxruntime_qnn" in device.ep_metadata.get("library_path", ""))
provider = {"backend_path": onnxruntime_qnn.get_qnn_htp_path(), "soc_model": "57", "htp_arch": "75"}
for model in map(Path, sys.argv[1:]):
    options = onnxruntime.SessionOptions()
    options.add_provider_for_devices([device], provider)
    options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
    options.add_session_config_entry("ep.context_enable", "1")
    options.add_session_config_entry("ep.context_file_path", f"{model.stem}_ctx.onnx")
    session = onnxruntime.InferenceSession(model, options)
    for _ in range(2):
        session.run(None, {"x0": numpy.random.rand(1, 16, 32, 32).astype("float32")})
"""


@contextmanager
def prepared(work: Path) -> Iterator[Benchmark]:
    models = [work / f"{name}.onnx" for name in NAMES]
    for number, model in enumerate(models):
        write_model(model, seed=number)
    suite, kept = work / "models.toml", work / "kept"
    suite.write_text("schema = 2\n" + "".join(map(CASE.format, NAMES)), encoding="utf-8")
    script = [sys.executable, "-c", SCRIPT, *map(str, models)]

    def ours(store: Path, into: Path) -> None:
        run_stage("test_onnx", ["--suite", str(suite)], store, into)

    def plain(into: Path) -> None:
        run_whole(script, into / "log", cwd=into, environment=os.environ)

    ours(kept, work / "first")
    yield Benchmark(
        contenders=(
            Contender(COLD, lambda into: ours(into / "store", into), _check(0)),
            Contender(PLAIN, plain),
            Contender(WARM, lambda into: ours(kept, into), _check(len(NAMES))),
        ),
        aims=AIMS,
        facts={"programs": len(NAMES)},
    )


def write_model(path: Path, seed: int) -> None:
    """Six convolutions with weights of their own."""
    import numpy as np
    import onnx
    from onnx import helper, numpy_helper

    generator, nodes, weights, shape = np.random.default_rng(seed), [], [], (1, 16, 32, 32)
    for layer in range(6):
        drawn = generator.standard_normal((16, 16, 3, 3)).astype(np.float32) / 12
        weights.append(numpy_helper.from_array(drawn, f"w{layer}"))
        nodes.append(helper.make_node("Conv", [f"x{layer}", f"w{layer}"], [f"x{layer + 1}"], pads=[1] * 4))
    ends = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape) for name in ("x0", "x6")]
    graph = helper.make_graph(nodes, "net", ends[:1], ends[1:], weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)


def _check(cached: int) -> Callable[[Path], None]:
    def check(into: Path) -> None:
        metrics = Report.read(into / "test_onnx.json").metrics
        counts = metrics.get("selected"), metrics.get("failed"), metrics.get("cached")
        if counts != (len(NAMES), 0, cached):
            raise CheckFailed(f"expected {len(NAMES)} good programs, {cached} cached, found {counts}")

    return check
