"""Genie: its configuration, written from the model, and its answers, in a process of its own.

Genie does not report most mistakes, but speaks nonsense or crashes. So everything that it reads is checked
before."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ci.diagnose.explain import nearest
from ci.lanes.llm.architecture import Architecture, Llama3Rope, read_object
from ci.lanes.llm.orders import GENIE_SAMPLER, ForcedText, GenieOrder, GenieReply, SpokenText
from ci.models.inputs import Array
from ci.outcome import how_it_ended
from ci.plain import as_json, read
from provisioning.base.errors import CheckFailed, UsageError
from provisioning.base.settings import ROOT
from provisioning.base.units import size
from provisioning.manifest import Soc

CONFIG, EXTENSION = "genie_config.json", "htp_backend_ext_config.json"
PROGRAM = "hybrid_llama_qnn.pte"
"""ExecuTorch's: upstream's name of a program with prefill and decode."""


EMULATOR_BYTES = 3_200_000_000
"""Of context binaries that the emulator loads in one process: 3.23 GB it did, at 3.36 GB it said 1002."""
BLOCK, CONTEXT_BLOCK = 32, 128
NONE = -1
"""As `bos-token`: Genie puts nothing before a text."""
AGAIN = "compile it again, or correct it"


def require_sizes(context: int, prefill: int) -> None:
    """Refuse sizes with which Genie silently speaks nonsense or nothing: prefill by 8 or 16, and by half of
    the context or more. With half it takes the new tokens for those of the cache."""
    if context % CONTEXT_BLOCK:
        raise UsageError(
            f"a context of {context} tokens: Genie needs a multiple of {CONTEXT_BLOCK}",
            fix=f"take {context + -context % CONTEXT_BLOCK}",
        )
    if prefill % BLOCK:
        raise UsageError(
            f"prefill by {prefill} tokens: Genie needs a multiple of {BLOCK}",
            fix=f"take {prefill + -prefill % BLOCK}",
        )
    if context <= 2 * prefill:
        longer = 2 * prefill + CONTEXT_BLOCK - 2 * prefill % CONTEXT_BLOCK
        raise UsageError(
            f"prefill by {prefill} tokens in a context of {context}: Genie would generate nonsense",
            fix=f"take prefill by {(context // 2 - 1) // BLOCK * BLOCK}, or a context of {longer}",
        )


def require_short(prompt: Sequence[int], context: int, prefill: int) -> None:
    """Genie reads whole blocks, and without a word says nothing to a longer prompt."""
    most = context - prefill
    if len(prompt) > most:
        raise UsageError(
            f"the prompt has {len(prompt)} tokens: Genie takes at most {most} in a context of {context} with"
            f" prefill by {prefill}",
            fix="give a shorter prompt, or compile with a longer --context",
        )


def write_config(
    folder: Path, shape: Architecture, contexts: Sequence[Path], soc: Soc, *, context: int, most: int
) -> Path:
    """The configuration and the extension file that it names. Their paths are relative to `folder`."""
    core = {"core_id": 0, "perf_profile": "burst", "rpc_control_latency": 100}
    backend = {
        "version": 1,
        "use-mmap": False,
        "spill-fill-bufsize": 0,
        "mmap-budget": 0,
        "poll": False,
        "cpu-mask": "0x1",
        "kv-dim": shape.head_dim,
        "allow-async-init": False,
    }
    words = {
        "n-vocab": shape.vocab_size,
        "bos-token": NONE if shape.bos is None else shape.bos,
        "eos-token": shape.eos[0] if len(shape.eos) == 1 else list(shape.eos),
    }
    ropes = [_rope(shape, rope) for rope in shape.ropes]
    dialog = {
        "version": 1,
        "type": "basic",
        "max-num-tokens": most,
        "context": {"version": 1, "size": context, **words},
        "sampler": {"version": 1, "seed": 42, "temp": 1.0, "top-k": 1, "top-p": 1.0},
        "tokenizer": {"version": 1, "path": "tokenizer.json"},
        "engine": {
            "version": 1,
            "n-threads": 1,
            "backend": {"version": 1, "type": "QnnHtp", "QnnHtp": backend, "extensions": EXTENSION},
            "model": {
                "version": 1,
                "type": "binary",
                "binary": {"version": 1, "ctx-bins": [path.name for path in contexts]},
                "positional-encoding": ropes if len(ropes) > 1 else ropes[0],
            },
        },
    }
    device = {"soc_id": soc.id, "dsp_arch": f"v{soc.arch}", "cores": [core]}
    for name, content in {EXTENSION: {"devices": [device]}, CONFIG: {"dialog": dialog}}.items():
        (folder / name).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    return folder / CONFIG


def _rope(shape: Architecture, prefix: str) -> dict[str, object]:
    base = shape.rope_local_base_freq if prefix else shape.rope_theta
    theta = int(base) if base == int(base) else base
    rope: dict[str, object] = {"type": "rope", "rope-dim": shape.rotary_dim // 2, "rope-theta": theta}
    if prefix:
        # Begins the names of its inputs.
        return {**rope, "prefix": prefix}
    if isinstance(shape.rope, Llama3Rope):
        scaling = shape.rope.model_dump()
        rope["rope-scaling"] = {name.replace("_", "-"): value for name, value in scaling.items()}
    return rope


def setting(config: Path, *keys: str) -> Any:
    """A value of Genie's configuration, which users edit."""
    value: Any = read_object(config, fix=AGAIN)
    try:
        for key in ("dialog", *keys):
            value = value[key]
    except (KeyError, TypeError):
        raise UsageError(f"{config}: dialog.{'.'.join(keys)} is missing", fix=AGAIN) from None
    return value


def sizes_of(config: Path) -> dict[str, int]:
    """By kind, the bytes of its context binaries."""
    sizes: dict[str, int] = {}
    for name in setting(config, "engine", "model", "binary", "ctx-bins"):
        file = config.with_name(name)
        if not file.is_file():
            raise UsageError(f"{file} is missing", fix="compile it again")
        kind = _kind(name)
        sizes[kind] = sizes.get(kind, 0) + file.stat().st_size
    return sizes


def _kind(binary: str) -> str:
    return binary.rpartition("_")[0]


def require_loadable(sizes: Mapping[str, int], *kinds: str) -> None:
    """Refuse binaries of which the emulator cannot load even those of one kind."""
    for kind in kinds:
        if sizes.get(kind, 0) > EMULATOR_BYTES:
            raise UsageError(
                f"the binaries of {kind} have {size(sizes[kind])}, and the emulator loads only some"
                f" {size(EMULATOR_BYTES)} in one process",
                fix="check --on parts judges each part by itself; --precision 16a8w about halves the"
                " binaries",
            )


def kinds_for_genie(sizes: Mapping[str, int]) -> list[str]:
    """All, or decode alone if the emulator cannot load all binaries in one process."""
    if sum(sizes.values()) <= EMULATOR_BYTES:
        return list(sizes)
    require_loadable(sizes, "decode")
    return ["decode"]


def emulator_settings(config: Path) -> dict[str, Any]:
    """The configuration; of binaries that are too large for the emulator together, those of decode alone."""
    settings, sizes = read_object(config, fix=AGAIN), sizes_of(config)
    kinds = kinds_for_genie(sizes)
    if len(kinds) < len(sizes):
        total = size(sum(sizes.values()))
        sys.stderr.write(f"decode reads the prompt too: the emulator does not load {total} at once\n")
    binary = settings["dialog"]["engine"]["model"]["binary"]
    binary["ctx-bins"] = [name for name in binary["ctx-bins"] if _kind(name) in kinds]
    return settings


def generate(config: Path, prompt: Sequence[int], most: int, *, timeout: float) -> SpokenText:
    """Genie's answer to a prompt of tokens, of at most so many. It puts the token that begins a text first
    itself, so the prompt has none."""
    settings = emulator_settings(config)
    settings["dialog"]["max-num-tokens"] = most
    order = GenieOrder(folder=str(config.parent), settings=settings, prompts=[list(prompt)])
    [text] = _reply(order, timeout).spoken
    return text


def encoded(config: Path, texts: Sequence[str], *, timeout: float) -> list[list[int]]:
    """Texts as Genie's own tokenizer has them; the token that Genie puts first is not in them."""
    order = GenieOrder(folder=str(config.parent), settings=emulator_settings(config), texts=list(texts))
    return _reply(order, timeout).encoded


def forced_logits(config: Path, texts: Sequence[ForcedText], words: int, *, timeout: float) -> list[Array]:
    """Of each text the logits from which Genie would have chosen each token: the first row is prefill's, the
    others are decode's. One that fills the context must be the last."""
    settings = emulator_settings(config)
    dialog = settings["dialog"]
    # The model's own end may stand in a text, and Genie would stop there.
    said = {token for text in texts for token in text.tokens}
    dialog["context"]["eos-token"] = next(token for token in range(words) if token not in said)
    dialog["sampler"] = {"version": 1, "type": "custom", "callback-name": GENIE_SAMPLER}
    dialog["max-num-tokens"] = dialog["context"]["size"]
    with tempfile.TemporaryDirectory(prefix="qnn-ci-logits-") as scratch:
        order = GenieOrder(folder=str(config.parent), settings=settings, forced=list(texts), logits=scratch)
        _reply(order, timeout)
        found = [np.fromfile(Path(scratch, str(number)), np.float32) for number in range(len(texts))]
    for text, rows in zip(texts, found, strict=True):
        if rows.size != len(text.tokens) * words:
            raise CheckFailed(
                f"Genie gave {rows.size} logits for {len(text.tokens)} tokens of {words} words",
                fix="report it, with the version of onnxruntime-qnn",
            )
    return [rows.reshape(-1, words) for rows in found]


def _reply(order: GenieOrder, timeout: float) -> GenieReply:
    try:
        ended = subprocess.run(
            [sys.executable, "-m", "ci.lanes.llm.genie_process"],
            input=json.dumps(as_json(order)),
            capture_output=True,
            cwd=ROOT,
            encoding="utf-8",
            errors="replace",
            timeout=timeout,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise CheckFailed(
            f"Genie gave no answer in {timeout:g} s", fix="give it longer with --timeout"
        ) from None
    if ended.returncode:
        raise refusal(f"{ended.stdout}{ended.stderr}", how_it_ended(ended.returncode))
    return read(GenieReply, json.loads(ended.stdout.splitlines()[-1]))


def refusal(output: str, how: str) -> CheckFailed:
    known = nearest(f"{output}\nGenie {how}")
    lines = [line.strip() for line in output.splitlines() if line.strip() and not line.startswith("{")]
    words = f": {lines[-1][:300]}" if lines else ""
    if known:
        return CheckFailed(f"Genie {how}{words}. {known.cause}", fix=known.fix, output=output)
    return CheckFailed(f"Genie {how}{words}", fix="--debug shows all that it printed", output=output)
