"""A process that has imported libraries, such as torch. Its forks become templates (ci.work.template).

A template imports our own modules itself, in the folder and with the variables that its command gives it:
this process serves clones and installed copies alike."""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import runpy
import socket
import sys
from collections.abc import Sequence
from typing import Any

MOST_BYTES = 1 << 17
TEMPLATE = "ci.work.template"


def main(orders: socket.socket, libraries: Sequence[str]) -> None:
    # As a template does it, whose number of threads a library reads when it is imported.
    os.environ["OMP_NUM_THREADS"] = "1"
    for name in libraries:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()
    while True:
        message, files, _, _ = socket.recv_fds(orders, MOST_BYTES, 2)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        if not message:
            break
        if os.fork() == 0:
            orders.close()
            become_template(json.loads(message), *files)
        for file in files:
            os.close(file)
    orders.close()
    with contextlib.suppress(ChildProcessError):
        while True:
            os.wait()


def become_template(asked: dict[str, Any], control: int, log: int) -> None:
    """Go on as `python -m ci.work.template` does in this folder and with these variables."""
    os.setsid()
    os.chdir(asked["cwd"])
    os.environ.clear()
    os.environ.update(asked["environ"])
    for descriptor in (1, 2):
        os.dup2(log, descriptor)
    os.close(log)
    sys.path.insert(0, asked["cwd"])
    sys.argv[:] = [TEMPLATE, str(control), *asked["prepare"]]
    try:
        runpy.run_module(TEMPLATE, run_name="__main__", alter_sys=True)
        sys.stdout.flush()
        os._exit(0)
    except BaseException:
        # Python would print the same.
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stderr.flush()
        os._exit(1)


if __name__ == "__main__":
    # No library finds what is beside this file.
    del sys.path[0]
    main(socket.socket(fileno=int(sys.argv[1])), sys.argv[2:])
