"""ONNX models through ONNX Runtime's QNN provider."""

BESIDE, EMBEDDED = FORMS = ("beside", "embedded")
"""A context that lies beside its .onnx, and one inside; folders of a result."""

EXPORTED, EXPORTED_SAMPLES = "model.onnx", "samples"
"""Of a suite's model that a command takes as a file."""
