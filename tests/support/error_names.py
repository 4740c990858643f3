"""The names of error codes, asked from a QNN library through its C interface, in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

# QnnInterface_t: backend id, name, two versions of three numbers, then functions in the C header's order.
_ASK = """
import ctypes, json, os, sys
library = ctypes.CDLL(sys.argv[1])
providers, count = ctypes.POINTER(ctypes.c_void_p)(), ctypes.c_uint32()
library.QnnInterface_getProviders.restype = ctypes.c_uint64
assert library.QnnInterface_getProviders(ctypes.byref(providers), ctypes.byref(count)) == 0
functions = (ctypes.c_void_p * 49).from_address(providers[0] + 40)
signature = ctypes.CFUNCTYPE(ctypes.c_uint64, ctypes.c_uint64, ctypes.POINTER(ctypes.c_char_p))
get_message = signature(functions[48])
names, message = {}, ctypes.c_char_p()
for code in range(1, 1 << 16):
    if get_message(code, ctypes.byref(message)) == 0 and message.value:
        names[code] = message.value.decode().partition(":")[0]
print(json.dumps(names), flush=True)
os._exit(0)  # What the library itself still holds back is not printed after the names.
"""


def error_names(library: Path) -> dict[int, str]:
    done = subprocess.run(
        [sys.executable, "-c", _ASK, str(library.absolute())],
        env={"LD_LIBRARY_PATH": str(library.parent)},
        capture_output=True,
        text=True,
        check=True,
    )
    names: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
    return {int(code): name for code, name in names.items()}
