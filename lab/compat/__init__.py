"""Which QNN builds this ExecuTorch works with."""
