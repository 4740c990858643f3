"""Mistakes of ExecuTorch's tests and code, as issues to file."""
