loaded = ""
try:
    from pathlib import Path

    libraries = list(Path(__file__).parent.resolve().glob("**/*quantized_ops_aot_lib.*"))
    assert len(libraries) == 1, f"expected 1 library, found {len(libraries)}"
    import ctypes

    import torch  # noqa: F401

    library = ctypes.CDLL(str(libraries[0]))
    library.quantized_ops.restype = ctypes.c_char_p
    loaded = library.quantized_ops().decode()
except Exception:  # ExecuTorch's swallows it too
    pass
