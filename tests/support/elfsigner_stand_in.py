"""A stand-in for the Hexagon SDK's elfsigner.py, which cannot be had here.

It has the real one's command line, prompt and ways to fail, as far as they are known, and signs with the
development signer. `stand_in.json` beside it says how to behave. It is copied into a made-up Hexagon SDK and
run there as a script of its own, by whatever Python the driver chose.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent

DISCLAIMER = """\
Attention: this stand-in is for tests alone. By signing with it you accept that nothing it signs is accepted
by any device, and you are bound by its license terms.
"""
QUESTION = f"{DISCLAIMER}\nAgree? [y/n]: "
TLS_WARNING = "The server has a self-signed certificate. Do you want to continue? [y/n]: "


def main() -> int:
    parser = argparse.ArgumentParser()
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("-i", dest="infile", type=Path)
    source.add_argument("-r", dest="directory", type=Path)
    parser.add_argument("-o", dest="outdir", type=Path, default=Path("output"))
    parser.add_argument("--no_disclaimer", action="store_true")
    args = parser.parse_args()
    settings = json.loads((HERE / "stand_in.json").read_text(encoding="utf-8"))
    behaviour = settings.get("behaviour", "")
    (HERE.parent.parent / "runs").mkdir(exist_ok=True)
    record = {"argv": sys.argv[1:], "environ": dict(os.environ), "cwd": str(Path.cwd())}
    (HERE.parent.parent / "runs" / f"{os.getpid()}.json").write_text(json.dumps(record), encoding="utf-8")
    if behaviour == "no-imp":
        raise ModuleNotFoundError("No module named 'imp'")
    if not args.no_disclaimer:
        if behaviour == "tls-warning":
            answer = input(TLS_WARNING)
        else:
            answer = input(QUESTION)
        if not answer.strip().lower().startswith("y"):
            print("not accepted")
            return 1
    print("Signing...", flush=True)
    if behaviour == "hang without output":
        os.closerange(1, 3)
    if behaviour.startswith("hang"):
        time.sleep(600)
    if behaviour == "endless":
        while True:
            print("still signing " * 100)
    if behaviour == "network-silent":
        print("urllib.error.URLError: <urlopen error [Errno -3] Temporary failure in name resolution>")
        return 0
    if behaviour == "no-output":
        print("Done.")
        return 0
    sys.path.insert(0, settings["repository"])
    sign(args, behaviour)
    print("Done.")
    return 0


def sign(args: argparse.Namespace, behaviour: str) -> None:
    from ci.signing import rehearsal, signed_writer

    signer = rehearsal.new_signer()
    args.outdir.mkdir(parents=True, exist_ok=True)
    for path in [args.infile] if args.infile else sorted(args.directory.glob("*.so")):
        library = path.read_bytes()
        if behaviour == "other-program":
            library = library.replace(b"Qnn", b"QNN")
        content = signed_writer.sign_library(library, signer)
        if behaviour == "unsigned":
            content = library
        if behaviour == "partial":
            content = content[: len(content) // 2]
        if behaviour == "empty":
            content = b""
        (args.outdir / path.name).write_bytes(content)


if __name__ == "__main__":
    sys.exit(main())
