"""The everyday commands. Work is done by one worker process; files appear in the output all at once."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from ci.engine.workers.parent import Gone, Worker
from ci.llm.architecture import Architecture, read_architecture, shards_of
from ci.llm.genie import CONFIG, require_sizes, speak
from ci.llm.work import require_installed, setup_of
from provisioning.base.commands import quoted, session
from provisioning.base.errors import CheckFailed, ToolkitError, UsageError
from provisioning.base.units import size
from provisioning.manifest import soc_named

PART = 1 << 30
"""Bytes of a context binary: one of this size was compiled with 6 GB of memory."""
LOG = Path("reports", "llm", "compile.log")


def compile_checkpoint(args: argparse.Namespace) -> int:
    soc_named(args.soc)
    folder, output = args.model.absolute(), args.output.absolute()
    shape = read_architecture(folder)
    _require(args, shape, folder)
    require_installed()
    if output.exists() and any(output.iterdir()):
        raise UsageError(f"{output} is not empty", remedy="name another folder with -o, or remove it")
    parts = args.parts or parts_of(shape, 2 if args.precision == "fp16" else 1)
    if parts > 1 and args.precision != "fp16":
        raise UsageError(
            f"{args.precision} in {parts} parts is not offered yet", remedy="--precision fp16, or --parts 1"
        )
    sys.stderr.write(f"{shape.layers} layers in {parts} binaries for {args.soc}, {args.precision}\n")
    output.parent.mkdir(parents=True, exist_ok=True)
    log = Path.cwd() / LOG
    order = {
        "do": "compile",
        "log": str(log),
        "model": str(folder),
        "soc": args.soc,
        "precision": args.precision,
        "context": args.context,
        "prefill": args.prefill,
        "parts": parts,
        "calibrate": str(args.calibrate.absolute()) if args.calibrate else "",
    }
    # Beside the output, so that it is moved there at once.
    with tempfile.TemporaryDirectory(prefix=".qnn-ci-new-", dir=output.parent) as scratch:
        facts = _ordered({**order, "into": scratch}, log, args.timeout)
        written = Path(scratch, "out")
        if output.exists():
            output.rmdir()
        written.rename(output)
    sys.stdout.write(f"{output}: {facts['binaries']} binaries, {size(facts['bytes'])}; see its README.md\n")
    sys.stdout.write(f"try it: {quoted('python', '-m', 'ci', 'llm', 'run', args.output, 'The answer is')}\n")
    return 0


def _require(args: argparse.Namespace, shape: Architecture, folder: Path) -> None:
    """What is known before anything heavy is imported."""
    require_sizes(args.context, [args.prefill])
    if args.prefill >= args.context:
        raise UsageError(
            f"prefill by {args.prefill} fills a context of {args.context}", remedy="take a longer context"
        )
    if args.context > shape.context:
        raise UsageError(
            f"a context of {args.context} tokens: the model was made for {shape.context}",
            remedy=f"--context {shape.context}",
        )
    shards_of(folder)
    if not (folder / "tokenizer.json").is_file():
        found = "tokenizer.model alone" if (folder / "tokenizer.model").is_file() else "none"
        raise UsageError(
            f"{folder}: expected tokenizer.json, which Genie reads; found {found}",
            remedy="AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER) writes it",
        )
    if shape.bos is None or not shape.eos:
        raise UsageError(
            f"{folder}/config.json names no bos_token_id or no eos_token_id, and Genie wants both",
            remedy="add them: generation_config.json of the same model may have them",
        )
    if args.precision != "fp16" and args.calibrate is None:
        raise UsageError(f"{args.precision} needs text to calibrate by", remedy="--calibrate text.txt")
    if args.calibrate is not None and not args.calibrate.is_file():
        raise UsageError(f"--calibrate {args.calibrate}: there is no such file", remedy="name a text file")


def parts_of(shape: Architecture, weight: int) -> int:
    """So many that none is larger than PART, as far as whole layers allow; `weight` in bytes."""
    layer = shape.width * (shape.heads * 2 + shape.groups * 2) * shape.size + 3 * shape.width * shape.hidden
    # The embedding lies in the first and the head in the last.
    total = weight * (layer * shape.layers + 2 * shape.words * shape.width)
    return max(1, min(shape.layers, -(-total // PART)))


def _ordered(order: dict[str, Any], log: Path, timeout: float) -> dict[str, Any]:
    log.parent.mkdir(parents=True, exist_ok=True)
    worker = Worker(setup_of("speak", log.parent, timeout))
    try:
        reply = worker.ask(order)
    except Gone as gone:
        raise CheckFailed(gone.sentence(log), remedy=session("diagnose", log)) from gone
    finally:
        worker.end()
    if error := reply.get("error"):
        refused = ToolkitError(error["message"], remedy=error["remedy"])
        refused.exit_code = error.get("exit_code", 1)
        raise refused
    log.unlink(missing_ok=True)
    return reply


def run_model(args: argparse.Namespace) -> int:
    from tokenizers import Tokenizer

    config = args.model.absolute() / CONFIG
    if not config.is_file():
        raise UsageError(f"{args.model}: there is no {CONFIG}", remedy="name what llm compile wrote")
    tokenizer = Tokenizer.from_file(str(config.with_name("tokenizer.json")))
    tokens = tokenizer.encode(args.prompt, add_special_tokens=False).ids
    if not tokens:
        raise UsageError("the prompt is empty", remedy="give it a word")
    with tempfile.TemporaryDirectory(prefix="qnn-ci-llm-") as scratch:
        changed = json.loads(config.read_text(encoding="utf-8"))
        changed["dialog"]["max-num-tokens"] = args.tokens
        for file in config.parent.iterdir():
            Path(scratch, file.name).symlink_to(file)
        copy = Path(scratch, "run.json")
        copy.write_text(json.dumps(changed), encoding="utf-8")
        [spoken] = speak(copy, [tokens], timeout=args.timeout)
    sys.stdout.write(args.prompt + tokenizer.decode(list(spoken.tokens)) + "\n")
    rate = len(spoken.tokens) / spoken.seconds
    sys.stderr.write(
        f"{len(spoken.tokens)} tokens, stopped by {spoken.stopped}; {rate:.1f} a second on the emulator\n"
    )
    return 0
