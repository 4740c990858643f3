"""The operator table and its page, measured by tests of ExecuTorch and ours."""
