"""The stages that compile: ExecuTorch's runner here, ExecuTorch itself from source."""
