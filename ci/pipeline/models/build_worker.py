"""A worker that runs commands: what they read is seen, so that it is known when to run them again."""

from __future__ import annotations

import sys
from typing import Any

from ci.engine.workers.child import serve
from provisioning.base.commands import captured


def answer(order: dict[str, Any]) -> dict[str, Any]:
    done = captured(order["command"], cwd=order["where"], encoding="utf-8")
    return {"code": done.returncode, "errors": done.stderr}


if __name__ == "__main__":
    serve(int(sys.argv[1]), lambda: answer, forks=True)
