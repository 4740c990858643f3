"""ONNX models through ONNX Runtime's QNN provider."""

EXPORTED, EXPORTED_SAMPLES = "model.onnx", "samples"
"""Of a suite's model that a command takes as a file."""
