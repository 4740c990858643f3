"""Stands in for qnn_executor_runner: the program file says what to do with the inputs."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path


def main(arguments: list[str]) -> int:
    values = dict(zip(arguments[::2], arguments[1::2], strict=False))
    what = Path(values["--model_path"]).read_text()
    if what == "hang":
        time.sleep(600)
    if what == "crash":
        os.kill(os.getpid(), signal.SIGSEGV)
    if what == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if what == "killed-in-a-shell":
        return 128 + signal.SIGKILL
    if what == "refuse":
        sys.stderr.write("qnn_executor_runner: error: the method could not be loaded\n")
        return 40
    outputs = Path(values["--output_folder_path"])
    for number, line in enumerate(Path(values["--input_list_path"]).read_text().splitlines()):
        data = Path(line.split()[0].strip('"')).read_bytes()
        if what == "nan":
            data = b"\x00\x00\xc0\x7f" * (len(data) // 4)
        if what == "truncated":
            data = data[:-4]
        if what != "nothing":
            (outputs / f"output_{number}_0.raw").write_bytes(bytes(len(data)) if what == "zeros" else data)
    if what != "no-times":
        times = '{"load_ms": 1.5, "mean_ms": 2.5, "peak_rss_kb": 100}'
        Path(values["--metrics_path"]).write_text(times[:9] if what == "half-times" else times)
    return 0


if __name__ == "__main__":
    sys.exit(main([part for part in sys.argv[1:] if not part.endswith("=")]))
