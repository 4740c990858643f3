"""Stands in for qnn_executor_runner: the program file says what to do with the inputs.

With `executorchs` as its first argument it has the flags, lists and files of ExecuTorch's own."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

FLAGS = (
    *("--model_path", "--input_list_path", "--output_folder_path", "--etdump_path"),
    *("--performance_output_path", "--iteration", "--profile_level"),
)
"""Those of ExecuTorch's that stages name."""


def main(arguments: list[str]) -> int:
    executorchs = arguments[:1] == ["executorchs"]
    if arguments[-1] == "--help":
        sys.stdout.write("\n".join(FLAGS if executorchs else (*FLAGS, "--metrics_path")))
        return int(executorchs)
    words = [word for argument in arguments[executorchs:] for word in argument.split("=", 1)]
    values = dict(zip(words[::2], words[1::2], strict=True))
    if executorchs and (unknown := sorted(values.keys() - set(FLAGS))):
        sys.stderr.write(f"ERROR: unknown command line flag '{unknown[0]}'\n")
        return 1
    what = Path(values["--model_path"]).read_text()
    if what == "crash":
        os.kill(os.getpid(), signal.SIGSEGV)
    if what == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if what == "killed-in-a-shell":
        return 128 + signal.SIGKILL
    if what == "refuse" and executorchs:
        sys.stderr.write("F 00:00:00.1 executorch:runner.cpp:4] In function main(), failed: no delegate\n")
        os.abort()
    if what == "refuse":
        sys.stderr.write("qnn_executor_runner: error: the method could not be loaded\n")
        return 40
    outputs = Path(values["--output_folder_path"])
    for number, line in enumerate(Path(values["--input_list_path"]).read_text().splitlines()):
        name = line.split(" ")[0]
        data = Path(name if executorchs else name.strip('"')).read_bytes()
        if what == "nan":
            data = b"\x00\x00\xc0\x7f" * (len(data) // 4)
        if what == "truncated":
            data = data[:-4]
        if what != "nothing":
            (outputs / f"output_{number}_0.raw").write_bytes(bytes(len(data)) if what == "zeros" else data)
    if executorchs:
        # Both are opened, whatever was asked for.
        Path(values["--etdump_path"]).write_text("events")
        Path(values["--performance_output_path"]).write_text("2.5")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
