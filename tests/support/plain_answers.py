"""How the plain scripts of cells answer: each question in a process of its own, a line of JSON each."""

import json
import os
import sys
from collections.abc import Callable


def answer_each(measured: Callable[..., tuple[str, list[float]]]) -> None:
    """`measured` gets the fields of each question of the script's argument."""
    for asked in json.loads(sys.argv[1]):
        # It may end by a signal.
        if child := os.fork():
            _, status = os.waitpid(child, 0)
            if os.WIFSIGNALED(status):
                print(json.dumps(["crash", []]), flush=True)
            continue
        try:
            answer = measured(**asked)
        except Exception as error:
            print(f"{type(error).__name__}: {error}"[:500], file=sys.stderr)
            answer = "dies", []
        print(json.dumps(answer), flush=True)
        os._exit(0)
