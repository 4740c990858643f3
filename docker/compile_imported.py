"""Compile the modules that importing a list of modules loads, to bytecode without times.

Compiling everything would take a minute and 400 MB. One process compiles all in order: what a process
compiled before changes the bytecode of what it compiles next.
"""

import importlib
import py_compile
import sys
from pathlib import Path

sys.dont_write_bytecode = True
for name in Path(sys.argv[1]).read_text(encoding="utf-8").split():
    importlib.import_module(name)
loaded = {getattr(module, "__file__", None) or "" for module in list(sys.modules.values())}
for path in sorted(path for path in loaded if path.startswith(sys.prefix) and path.endswith(".py")):
    py_compile.compile(path, doraise=True, invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH)
