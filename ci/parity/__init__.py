"""Buck parity: do ExecuTorch's Buck files and its CMake files build the same things?

`tree` is what is looked at, `buck` and `cmake` evaluate each side into the same `model`, `compare` and `pins`
say where they differ, `fix` mends targets.bzl, `verb` is the stage.
"""
