"""CMake files, read by CMake itself.

`trace` configures a copy of them without a compiler and keeps what CMake ran. `libraries` makes targets of
that, `words` finds the line of a word, `unknowns` names what only a real configure step could know, `genex`
evaluates generator expressions.
"""
