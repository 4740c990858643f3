"""ONNX models through ONNX Runtime's QNN provider."""
