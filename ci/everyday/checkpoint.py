"""`compile` of a language model: the flags that all models share, for `llm compile`."""

from __future__ import annotations

import argparse
from pathlib import Path

from ci.llm import LONG
from ci.llm.suite import PRECISIONS
from ci.suites.precision import precision_named
from provisioning.base.command_line import TIMEOUT
from provisioning.base.errors import UsageError
from provisioning.base.settings import selection_of


def compile_model(args: argparse.Namespace) -> int:
    from ci.llm.commands import compile_checkpoint

    socs = selection_of(args).socs
    if len(socs) > 1:
        raise UsageError(
            f"a language model is compiled for one chip, found {', '.join(socs)}", remedy="name one --soc"
        )
    precision = precision_named(args.precision or "fp16").name
    if precision not in PRECISIONS["genie"]:
        raise UsageError(
            f"precision {args.precision}: Genie's language models are compiled in fp16 or 16a8w",
            remedy="take 16a8w",
        )
    wanted = argparse.Namespace(
        model=Path(args.model),
        output=args.output,
        soc=socs[0],
        precision=precision,
        context=args.context or 128,
        prefill=args.prefill or 32,
        parts=args.parts,
        calibrate=Path(args.calibrate) if args.calibrate else None,
        # Minutes for a billion weights.
        timeout=LONG if args.timeout == TIMEOUT else args.timeout,
    )
    return compile_checkpoint(wanted)
