"""Compile what importing the modules of a list loads, and no more: bytecode that names no times.

Everything would take minutes and 400 MB. A process of its own imports, and this one compiles in order: what a
process holds besides shows in the bytecode that it writes, and with imported modules that depends on threads.
"""

import py_compile
import subprocess
import sys
from pathlib import Path

IMPORT = """
import importlib, sys
for name in sys.argv[1:]:
    importlib.import_module(name)
print(*(getattr(module, "__file__", None) or "" for module in list(sys.modules.values())), sep="\\n")
"""

names = Path(sys.argv[1]).read_text(encoding="utf-8").split()
said = subprocess.run(
    [sys.executable, "-B", "-c", IMPORT, *names], check=True, stdout=subprocess.PIPE, text=True
).stdout
loaded = {path for path in said.splitlines() if path.startswith(sys.prefix) and path.endswith(".py")}
for path in sorted(loaded):
    py_compile.compile(path, doraise=True, invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH)
