"""CMake files, evaluated without CMake: `parser` makes commands and blocks of a text, `evaluator` runs them
for one variant, `commands` are those it knows, `conditions` and `genex` the two little languages inside.

Only what decides which files and libraries a target is made of is evaluated. A value that only a configure
step could know is carried as unknown, and is reported where a target, or a condition around one, needs it.
"""
