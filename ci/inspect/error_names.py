"""The names of error codes, asked from a QNN library through its C interface."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from provisioning.base.errors import EnvironmentLacking

# QnnInterface_t: backend id, name, two versions of three numbers, then functions in the C header's order.
_ASK = """
import ctypes, json, os, sys
library = ctypes.CDLL(sys.argv[1])
providers, count = ctypes.POINTER(ctypes.c_void_p)(), ctypes.c_uint32()
library.QnnInterface_getProviders.restype = ctypes.c_uint64
if library.QnnInterface_getProviders(ctypes.byref(providers), ctypes.byref(count)) or not count.value:
    sys.exit("it offers no interface")
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
    """Code → name. Runs in a process of its own, because a library with another layout may crash it."""
    known = [str(library.parent), *filter(None, [os.environ.get("LD_LIBRARY_PATH")])]
    done = subprocess.run(
        [sys.executable, "-c", _ASK, str(library.absolute())],
        env={**os.environ, "LD_LIBRARY_PATH": os.pathsep.join(known)},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode == 0:
        names: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
        if names.get("1000", "").startswith("QNN_"):
            return {int(code): name for code, name in names.items()}
    reason = (done.stderr.strip().splitlines() or [f"ended with exit code {done.returncode}"])[-1]
    raise EnvironmentLacking(
        f"{library}: expected a QNN backend library for this machine that names its errors, found: {reason}",
        fix="give libQnnHtp.so of lib/x86_64-linux-clang; `nox -s provision` brings one",
        output=done.stderr,
    )
