"""What an upgrade of QNN or ExecuTorch changes, and which pairs work."""
