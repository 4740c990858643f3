"""The commands as users meet them, with the real provider and the HTP emulator."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from onnx import helper

from ci.lanes.onnx import preparation, provider
from ci.lanes.onnx.options import NO_SETTINGS
from ci.lanes.onnx.orders import Preparing
from ci.lanes.onnx.steps import request_of
from ci.lanes.onnx.suite import OnnxOrder, OnnxRequest
from ci.lanes.onnx.suite import programs_of as onnx_programs
from ci.lanes.onnx.task_files import CALIBRATION, SAMPLES
from ci.models.inputs import load_samples
from ci.suite.accepted import load_baseline
from ci.suite.precision import precision_named
from ci.work.plain import read
from ci.work.request import NOTHING, sent_request
from provisioning.base.findings import Report
from provisioning.base.settings import ROOT
from provisioning.base.units import decibels
from provisioning.manifest import soc_named
from tests.support.onnx_models import conv_model, model_of, write
from tests.support.typed import typed

pytestmark = pytest.mark.heavy


def onnx_command(
    *arguments: str | Path, code: int = 0, cwd: Path = ROOT, verb: tuple[str, ...] = ()
) -> subprocess.CompletedProcess[str]:
    ended = typed(*verb, *arguments, cwd=cwd)
    assert ended.returncode == code, f"{ended.stdout}\n{ended.stderr}"
    assert "Traceback" not in ended.stderr
    return ended


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(conv_model(), tmp_path_factory.mktemp("model") / "net.onnx")


@pytest.fixture(scope="module")
def samples(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("samples")
    generator = np.random.default_rng(1)
    for number in range(3):
        np.save(folder / f"{number}.npy", generator.standard_normal((1, 3, 8, 8)).astype(np.float32))
    return folder


@pytest.fixture(scope="module")
def compiled(model: Path, samples: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("compiled")
    onnx_command("compile", model, "--precision", "u16u8", "--calibrate", samples, "-o", out)
    return out


class TestCompile:
    @pytest.mark.whole
    def test_a_quantized_model_runs_in_plain_onnx_runtime_and_compiles(
        self, model: Path, samples: Path, tmp_path: Path
    ) -> None:
        import onnxruntime as ort

        onnx_command(
            "quantize", model, "--precision", "u16u8", "--calibrate", samples, "-o", tmp_path, verb=()
        )
        product, x = tmp_path / "net-16a8w.onnx", np.load(samples / "0.npy")
        wanted, quantized = (
            ort.InferenceSession(str(path), providers=["CPUExecutionProvider"]).run(None, {"x": x})[0]
            for path in (model, product)
        )
        assert 40 < decibels((wanted**2).sum(), ((wanted - quantized) ** 2).sum()) < 110
        done = onnx_command("compile", product, "-o", tmp_path / "out")
        assert "SM8650 qdq" in done.stdout

    @pytest.mark.long("compiles a model and reads its context again")
    def test_an_unchanged_model_is_compiled_once(self, compiled: Path, model: Path, samples: Path) -> None:
        arguments = (model, "--precision", "u16u8", "--calibrate", samples)
        before = (compiled / "net_ctx_qnn.bin").read_bytes()
        done = onnx_command("compile", *arguments, "-o", compiled)
        assert "cached" in done.stderr and "dB SQNR" in done.stdout
        assert (compiled / "net_ctx_qnn.bin").read_bytes() == before

    def test_a_run_that_fails_is_not_repeated_on_the_cpu(self, model: Path, tmp_path: Path) -> None:
        import onnxruntime as ort

        from ci.suite.onnx_runtime import FALLBACK, session_on_htp

        (tmp_path / "adapter.bin").write_bytes(bytes(64))
        (tmp_path / "lora.txt").write_text(f"no_such_graph;{tmp_path / 'adapter.bin'}\n")
        options = provider.provider_options(precision_named("fp16"), soc_named("SM8650"), NO_SETTINGS, None)
        session, failing = session_on_htp(model, options, {FALLBACK: "1"}), ort.RunOptions()
        failing.add_run_config_entry("qnn.lora_config", str(tmp_path / "lora.txt"))
        inputs = {"x": np.zeros((1, 3, 8, 8), np.float32)}
        with pytest.raises(Exception, match="Failed to retrieve graph: no_such_graph"):
            session.run(None, inputs, failing)
        assert session.run(None, inputs)


@pytest.mark.whole
class TestRefused:
    def test_a_node_is_named_with_qnns_code_and_reason_and_the_printed_commands_work(
        self, tmp_path: Path
    ) -> None:
        shape = (1, 1, 1, 1, 1, 2, 2)
        nodes = [helper.make_node("Relu", ["x"], ["y"], name="seven")]
        model = write(model_of(nodes, shape=shape, output=shape), tmp_path / "net.onnx")
        ended = onnx_command("compile", model, "-o", tmp_path / "out", code=1)
        assert re.search(r"seven \(Relu\): .*3110 QNN_OP_PACKAGE_ERROR_VALIDATION_FAILURE", ended.stderr)
        assert "tensor of 7 dimensions" in ended.stderr
        (words,) = re.findall(r"nox -s audit -- (.+?) names all", ended.stderr)
        audit = onnx_command("audit", *shlex.split(words), code=1)
        assert "seven" in audit.stdout and "7 dimensions" in audit.stdout


class TestBadInput:
    """Each in words, with the right exit code, and with nothing left behind."""

    @pytest.mark.parametrize(("kind", "code"), [("corrupt", 1), ("compiled already", 2), ("unwritable", 2)])
    def test_is_refused(self, kind: str, code: int, model: Path, compiled: Path, tmp_path: Path) -> None:
        (tmp_path / "cut.onnx").write_bytes(model.read_bytes()[:200])
        # Root may write everywhere but where nobody can.
        out = Path("/proc/self/out") if kind == "unwritable" else tmp_path / "out"
        source = {"corrupt": tmp_path / "cut.onnx", "compiled already": compiled / "net_ctx.onnx"}
        ended = onnx_command("compile", source.get(kind, model), "-o", out, code=code)
        assert "error: " in ended.stderr
        assert not out.exists() or list(out.iterdir()) == []


LATER = pytest.mark.long("compiles for the emulator, where `run` is refused and repaired by the same flag")


@pytest.mark.parametrize(
    "verb",
    [pytest.param("compile", marks=LATER), pytest.param("repair", marks=LATER), "run"],
)
def test_an_open_size_is_refused_with_the_flag_that_fixes_it_and_works_with_that_flag(
    verb: str, tmp_path: Path
) -> None:
    model = write(conv_model(("batch", 3, 8, 8)), tmp_path / "net.onnx")
    more = () if verb == "run" else ("-o", "out")
    refused = onnx_command(model, *more, code=1, cwd=tmp_path, verb=(verb,))
    flags = re.findall(r"(--dimension) (\S+=\S+?)\b;?", refused.stderr)
    assert flags == [("--dimension", "batch=1")]
    onnx_command(model, *flags[0], *more, cwd=tmp_path, verb=(verb,))


def test_a_forecast_names_what_stays_on_the_cpu_and_the_command_that_names_all_of_it(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Relu", ["x"], ["r"], name="relu"),
        helper.make_node("Det", ["r"], ["y"], name="determinant"),
    ]
    write(model_of(nodes, output=(1, 3)), tmp_path / "det.onnx")
    ended = onnx_command("forecast", "det.onnx", "--precision", "fp16", code=1, cwd=tmp_path)
    assert "determinant (Det)" in ended.stdout
    (typed_next,) = re.findall(r"nox -s (audit) -- ((?:\S+ )+?)names", ended.stdout)
    verb, words = typed_next
    named = onnx_command(*shlex.split(words), code=1, cwd=tmp_path, verb=(verb,))
    assert "determinant" in named.stdout + named.stderr


class TestRun:
    @pytest.mark.long("starts the emulator, as each page of tests/journeys.toml does that runs a model")
    def test_gives_outputs_near_the_float_model(self, compiled: Path, samples: Path, tmp_path: Path) -> None:
        import onnxruntime

        onnx_command(
            "run", compiled / "net_ctx.onnx", "--input", samples / "0.npy", "--output", tmp_path / "outputs"
        )
        session = onnxruntime.InferenceSession(
            conv_model().SerializeToString(), providers=["CPUExecutionProvider"]
        )
        expected = session.run(None, {"x": np.load(samples / "0.npy")})[0]
        output = np.load(tmp_path / "outputs" / "y.npy")
        assert np.abs(output - expected).max() < 0.05 * np.abs(expected).max()

    def test_a_changed_byte_is_reported(self, compiled: Path, samples: Path, tmp_path: Path) -> None:
        copied = Path(shutil.copytree(compiled, tmp_path / "copied"))
        data = copied / "net_ctx_qnn.bin"
        content = bytearray(data.read_bytes())
        content[100] ^= 0x41
        data.write_bytes(content)
        ended = onnx_command("run", copied / "net_ctx.onnx", "--input", samples / "0.npy", code=1)
        assert "was changed after it was compiled" in ended.stderr


@pytest.mark.whole
class TestAudit:
    def test_what_stays_on_the_cpu_is_named_and_is_no_program(self, tmp_path: Path) -> None:
        nodes = [
            helper.make_node("Relu", ["x"], ["r"], name="relu"),
            helper.make_node("Det", ["r"], ["d"], name="determinant"),
            helper.make_node("Relu", ["d"], ["y"], name="last"),
        ]
        model = write(model_of(nodes, output=(1, 3)), tmp_path / "det.onnx")
        answer = tmp_path / "audit.json"
        onnx_command(model, "--precision", "fp16", "--json", answer, code=1, verb=("audit",))
        row = json.loads(answer.read_text())["precisions"]["fp16"]
        assert (row["delegated"], row["delegates"]) == ({"Relu": 2}, 2)
        assert [(node["node"], node["operator"]) for node in row["cpu"]] == [("determinant", "Det")]
        ended = onnx_command("compile", model, "-o", tmp_path / "out", code=1)
        assert "determinant (Det)" in ended.stderr
        assert not (tmp_path / "out").exists()


def test_every_option_of_the_table_is_in_the_provider() -> None:
    import onnxruntime_qnn

    from ci.lanes.onnx.options import options

    library = Path(onnxruntime_qnn.get_library_path()).read_bytes()
    runtime = b"session.disable_cpu_ep_fallback"
    absent = [name for name in options() if name.encode() not in library and name.encode() != runtime]
    assert absent == []


OPERATORS = """\
schema = 2
[case.Abs]
factory = "ci.models.shipped.onnx_nodes:node"
arguments = { test = "test_abs", module = "abs", opset = 20 }
recorded = true
run = [{ lane = "onnx", precision = "8a8w", socs = ["SM8650"] }]
[case.Erf]
factory = "ci.models.shipped.onnx_nodes:node"
arguments = { test = "test_erf", module = "erf", opset = 20 }
recorded = true
run = [{ lane = "onnx", precision = "fp16", socs = ["SM8650"] }]
[case.Transpose]
factory = "ci.models.shipped.onnx_nodes:node"
arguments = { test = "test_transpose_default", module = "transpose", opset = 20 }
recorded = true
run = [{ lane = "onnx", precision = "8a8w", socs = ["SM8650"] }]
[case.Relu]
factory = "ci.models.shipped.onnx_nodes:node"
arguments = { test = "test_relu", module = "relu", opset = 20 }
recorded = true
run = [{ lane = "onnx", precision = "8a8w", socs = ["SM8650"] }]
"""


@pytest.mark.whole
def test_a_node_test_gives_a_figure_that_is_remembered_or_what_qnn_refuses(tmp_path: Path) -> None:
    suite = tmp_path / "operators.toml"
    suite.write_text(OPERATORS)
    places = ("--suite", suite, "--store", tmp_path / "store", "--reports", tmp_path / "reports")
    onnx_command(*places, "--accept", verb=("test_onnx",))
    recorded = load_baseline(suite, "wheels", "onnx").programs
    assert recorded["Erf/fp16/SM8650"].refused == ("Erf",)
    assert recorded["Abs/8a8w/SM8650"].accuracy["reference_sqnr_db"] > 40
    # In fp16 it would be above 70 dB.
    assert 40 < recorded["Transpose/8a8w/SM8650"].accuracy["sqnr_db"] < 60
    in_float = [name for name, row in recorded.items() if row.in_float]
    assert in_float == ["Relu/8a8w/SM8650"]
    onnx_command(*places, verb=("test_onnx",))
    assert Report.read(tmp_path / "reports/test_onnx.json").metrics["cached"] == 3


NAMED_INPUTS = """\
schema = 2
[case.drawn]
factory = "net_without_inputs:make"
inputs = [{ shape = [1, 3, 8, 8], low = 5.0, high = 6.0 }]
[[case.drawn.run]]
lane = "onnx"
precision = "8a8w"
calibration = 3
socs = ["SM8650"]
[case.held]
factory = "net_without_inputs:with_inputs"
samples = "data"
[[case.held.run]]
lane = "onnx"
precision = "8a8w"
calibration = 3
socs = ["SM8650"]
"""
NET_WITHOUT_INPUTS = """\
import torch
def make():
    return torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3, padding=1), torch.nn.ReLU()).eval()
def with_inputs():
    return make(), (torch.randn(1, 3, 8, 8),)
"""


@pytest.mark.whole
def test_a_factory_gets_the_inputs_and_samples_that_the_suite_names_as_through_executorch(
    tmp_path: Path,
) -> None:
    (tmp_path / "net_without_inputs.py").write_text(NET_WITHOUT_INPUTS)
    (tmp_path / "data").mkdir()
    for number in range(6):
        np.save(tmp_path / "data" / f"{number}.npy", np.full((1, 3, 8, 8), 7.0 + number, np.float32))
    suite = tmp_path / "models.toml"
    suite.write_text(NAMED_INPUTS)
    means: dict[str, dict[str, list[float]]] = {}
    for program in onnx_programs(suite):
        into = tmp_path / program.case_name
        into.mkdir()
        folders = {"log": str(into / "log"), "export_folder": str(into)}
        request = read(OnnxRequest, {**sent_request(request_of(program, NOTHING)), **folders})
        preparation.prepare(OnnxOrder.of(request), Preparing())
        means[program.case_name] = {
            name: [float(value.mean()) for arrays in load_samples(into / name) for value in arrays.values()]
            for name in (SAMPLES, CALIBRATION)
        }
    assert all(5 < mean < 6 for every in means["drawn"].values() for mean in every)
    held, (own, *calibrating) = means["held"][SAMPLES], means["held"][CALIBRATION]
    # The model's own example calibrates beside two of the four others.
    assert len(held) == len(calibrating) == 2 and {*held, *calibrating} < {*range(7, 13)} and abs(own) < 1
