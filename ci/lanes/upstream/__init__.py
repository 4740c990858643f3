"""The tests that ExecuTorch ships with its wheel, and which pairs of ExecuTorch and QNN work."""
