"""Why QNN refused a node is read from what ONNX Runtime prints at the verbose level."""

from __future__ import annotations

from ci.artifacts.compiler_log import refusals, reword_error

PREFIX = "2026-11-20 06:21:34.180934702 "
QNN = f"{PREFIX}[V:onnxruntime:Default, qnn_backend_manager.cc:519 QnnLogging] "
LOG = f"""\
\x1b[0;93m{QNN} <E> unexpected GraphHtpSettings option 66
{PREFIX}[V:onnxruntime:, base_op_builder.cc:40 AddToModelBuilder] QNN node builder is trying to add node.
{QNN} <E> [4294967295] has incorrect Rank 7.
{QNN} <V> registered validator failed => 3110
{QNN} <E> Failed to validate op relu with error 0xc26
{PREFIX}[W:onnxruntime:, qnn_model_wrapper.cc:565 CreateQnnNode] QNN.backendValidateOpConfig() failed \
for node `relu` of type `Relu` with error code 3110
{QNN} <E> STATIC or UPDATEABLE_STATIC tensor client buffer should be not nullptr at tensor creation
{QNN} <E> exits with 7004, tensor buffer parameters not supported
{PREFIX}[E:onnxruntime:, qnn_model_wrapper.cc:235 CreateQnnInputOutputTensors] Failed to create tensor \
for node: constant.141_DequantizeLinear tensor_name: constant.141_QuantizeLinear_Output error code: 7004
{PREFIX}[E:onnxruntime:, qnn_model_wrapper.cc:235 CreateQnnInputOutputTensors] Failed to create tensor \
for node: silent tensor_name: t error code: 7004
"""


def test_each_refused_node_has_its_code_and_the_first_error_that_was_printed_for_it() -> None:
    found = {node: (refusal.code.code, refusal.error) for node, refusal in refusals(LOG).items()}
    assert found == {
        "relu": (3110, "[4294967295] has incorrect Rank 7."),
        "constant.141_DequantizeLinear": (
            7004,
            "STATIC or UPDATEABLE_STATIC tensor client buffer should be not nullptr at tensor creation",
        ),
        "silent": (7004, ""),
    }
    assert refusals("[INFO] all is well\n") == {}


def test_a_number_of_dimensions_is_said_in_words() -> None:
    said = str(refusals(LOG)["relu"])
    assert "7 dimensions" in said and "4294967295" not in said
    scalar = reword_error("Output[4294967295] has incorrect Rank 1.")
    assert scalar.startswith("HTP") and "keepdim=True" in scalar and "keepdim" not in said
    assert reword_error("Tensor 0 has mismatching datatypes") == "Tensor 0 has mismatching datatypes"
