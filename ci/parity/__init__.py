"""Buck parity: do ExecuTorch's Buck files and its CMake files build the same things?

`tree` is the input. `buck` and `cmake_targets` evaluate each side into the same form. `pairs` and `check`
find the differences, `mapping` says which are meant, `verb` is the stage.
"""
