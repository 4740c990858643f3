"""Suites of programs, for both lanes: ExecuTorch's and ONNX Runtime's."""
