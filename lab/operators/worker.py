"""The process that runs the tests of the laboratory's suites."""

from __future__ import annotations

import functools
import sys

from ci.engine.workers.child import serve
from ci.lanes.upstream.worker import start
from lab.operators.suites import SUITES

if __name__ == "__main__":
    serve(int(sys.argv[-1]), functools.partial(start, SUITES[sys.argv[1]]), forks=True)
