"""Buck parity: do ExecuTorch's Buck files and its CMake files build the same things?

`tree` is the input. `buck` and `cmake` evaluate each side into the same `model`. `pairs` and `check` find the
differences, `fix` corrects targets.bzl, `verb` is the stage.
"""
