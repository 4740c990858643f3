"""CMake files, read by CMake itself.

`configure` runs CMake on a copy of them without a compiler and records the executed commands. `targets` makes
targets of the record, and names what only a real configure step can know. `language` reads the text: the line
of each word, generator expressions.
"""
