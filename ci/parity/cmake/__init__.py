"""CMake files, read by CMake itself.

`trace` configures a copy of them without a compiler and records the executed commands. `libraries` makes
targets of the record, `words` finds the line of a word, `unknowns` names what only a real configure step can
know, `genex` evaluates generator expressions.
"""
