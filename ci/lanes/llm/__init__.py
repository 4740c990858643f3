"""A checkpoint of Hugging Face for Genie or ExecuTorch, run on the HTP emulator and judged."""
