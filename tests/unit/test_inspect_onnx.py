"""Reading models that ONNX Runtime compiled: what is inside, what is damaged, what would load it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import onnx
import pytest
from onnx import helper

from ci.artifacts.compiled_onnx import DTYPES, read_model
from provisioning.base.errors import CheckFailed
from provisioning.base.settings import ROOT
from tests.support.onnx_models import BUILD_ID, context_model


def test_a_number_is_the_type_that_onnx_gives_it() -> None:
    names = {"float": "float32", "double": "float64"}
    types = {number: name.lower() for name, number in onnx.TensorProto.DataType.items()}
    assert {number: names.get(types[number], types[number]) for number in DTYPES} == DTYPES


class TestReading:
    @pytest.mark.parametrize("absent", ["embed_mode", "main_context"])
    def test_attributes_that_are_absent_are_1_as_onnxruntime_defines(
        self, tmp_path: Path, absent: str
    ) -> None:
        path = context_model(tmp_path, embed=True)
        model = onnx.load(str(path))
        attributes = [row for row in model.graph.node[0].attribute if row.name != absent]
        del model.graph.node[0].attribute[:]
        model.graph.node[0].attribute.extend(attributes)
        onnx.save(model, str(path))
        (node,) = read_model(path).nodes
        assert node.file == "" and node.context is not None and node.context.build_ids == (BUILD_ID,)

    def test_inputs_outputs_and_what_is_on_the_cpu_are_those_that_onnx_reads(self, tmp_path: Path) -> None:
        path = context_model(tmp_path)
        model = onnx.load(str(path), load_external_data=False)
        model.graph.node.append(helper.make_node("Softmax", ["y"], ["z"]))
        free = helper.make_tensor_value_info("free", onnx.TensorProto.UINT8, ["n", 0])
        weight = helper.make_tensor_value_info("weight", onnx.TensorProto.FLOAT, [1])
        model.graph.input.extend([free, weight])
        model.graph.initializer.append(helper.make_tensor("weight", onnx.TensorProto.FLOAT, [1], [1.0]))
        onnx.save(model, str(path))
        compiled = read_model(path)
        inputs = {"x": "float32[1, 3, 8, 8]", "free": "uint8[-1, 0]"}
        assert {name: str(tensor) for name, tensor in compiled.inputs} == inputs
        assert [(name, str(tensor)) for name, tensor in compiled.outputs] == [("y", "float32[1, 4, 8, 8]")]
        assert compiled.kernels == {"Softmax": 1}
        assert [context.arches for context in compiled.contexts] == [(75,)]
        assert [context.socs for context in compiled.contexts] == [("SM8650",)]


class TestRefused:
    def test_one_that_was_moved_without_its_data_is_reported(self, tmp_path: Path) -> None:
        path = context_model(tmp_path / "a").rename(tmp_path / "moved.onnx")
        with pytest.raises(CheckFailed, match=r"model_ctx_qnn\.bin"):
            read_model(path)

    def test_a_link_that_leads_elsewhere_is_not_followed(self, tmp_path: Path) -> None:
        path = context_model(tmp_path / "model")
        (tmp_path / "secret.bin").write_text(BUILD_ID)
        (tmp_path / "model/model_ctx_qnn.bin").unlink()
        (tmp_path / "model/model_ctx_qnn.bin").symlink_to(tmp_path / "secret.bin")
        with pytest.raises(CheckFailed, match=r"model_ctx\.onnx"):
            read_model(path)


def test_the_command_needs_no_onnx(tmp_path: Path) -> None:
    script = (
        "import sys; sys.modules['onnx'] = None\n"
        "from ci.__main__ import VERBS; from provisioning.base.command_line import main\n"
        "sys.exit(main('', '', VERBS, sys.argv[1:]))"
    )
    command = [sys.executable, "-c", script, "inspect", str(context_model(tmp_path))]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and f"QNN build: {BUILD_ID}" in done.stdout
