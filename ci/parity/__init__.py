"""Buck parity: do ExecuTorch's Buck files and its CMake files build the same things?

`tree` is the input. `buck` and `cmake_targets` evaluate each side into the same form. For CMake's,
`cmake_trace` runs it, `cmake_places` finds lines, and `cmake_unknowns` finds what could not be known.
`pairs`, `imports` and `check` find the differences, `mapping` says which are meant, `verb` is the stage.
"""
