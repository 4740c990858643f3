"""Finished programs, read from their bytes alone: ExecuTorch's .pte, QNN contexts, compiled ONNX models."""
