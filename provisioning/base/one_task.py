"""A module as the program of a process that imports much, does one thing and ends.

With Python's defaults, looking for garbage takes a third of the time that importing executorch takes, and
most of that when the process ends.
"""

from __future__ import annotations

import atexit
import gc
import runpy
import sys

if __name__ == "__main__":
    gc.set_threshold(50_000)
    atexit.register(gc.freeze)
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
