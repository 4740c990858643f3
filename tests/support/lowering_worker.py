"""Stands in for the process that lowers: does what the factory's name says."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path


def main(descriptor: int) -> None:
    replies = os.fdopen(descriptor, "w")
    _say(replies, {"seconds": 0})
    for line in sys.stdin:
        order = json.loads(line)
        Path(order["log"]).write_text("what it printed\n")
        what = order["case"]["factory"].partition(":")[2]
        if what == "crash":
            os.kill(os.getpid(), signal.SIGSEGV)
        elif what == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        elif what == "hang":
            time.sleep(600)
        elif what == "refuse":
            _say(replies, {"fault": "factory", "message": "it is no model", "resident": 1})
        else:
            (Path(order["into"]) / "program.pte").write_bytes(b"program of " + order["soc"].encode())
            _say(replies, {"opened": [], "left": [], "delegates": 1, "pid": os.getpid(), "resident": 1})


def _say(replies: object, message: dict[str, object]) -> None:
    replies.write(json.dumps(message) + "\n")  # type: ignore[attr-defined]
    replies.flush()  # type: ignore[attr-defined]


if __name__ == "__main__":
    main(int(sys.argv[1]))
