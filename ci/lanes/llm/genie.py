"""Writes Genie's configuration from the model, and asks Genie. Genie runs in a process of its own
(`genie_process`), because it sometimes crashes. It reports few mistakes and answers with nonsense instead, so
everything that it reads is checked before."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ci.diagnose.logs import nearest
from ci.lanes.llm.architecture import Architecture, Llama3Rope
from ci.lanes.llm.families import read_object
from ci.lanes.llm.orders import GENIE_SAMPLER, ForcedText, GenieOrder, GenieReply, SpokenText
from ci.models.inputs import Array
from ci.work import how_it_ended, read, to_json
from provisioning.base.errors import CheckFailed, UsageError
from provisioning.base.settings import ROOT
from provisioning.base.units import size
from provisioning.manifest import Soc

CONFIG, EXTENSION = "genie_config.json", "htp_backend_ext_config.json"
PROGRAM = "hybrid_llama_qnn.pte"
"""Upstream gives ExecuTorch's program with prefill and decode this name."""
EMULATOR_BYTES = 3_200_000_000
"""The emulator loads this many bytes of context binaries in one process: it loaded 3.23 GB, and failed with
error 1002 at 3.36 GB."""
BLOCK, CONTEXT_BLOCK = 32, 128
"""Genie reads prompts in multiples of BLOCK tokens, and its context is a multiple of CONTEXT_BLOCK."""
NONE = -1
"""If `bos-token` has this value, Genie puts nothing before a text."""
AGAIN = "compile it again, or correct it"


def require_sizes(context: int, prefill: int) -> None:
    """Refuse sizes with which Genie silently answers nonsense or nothing: a prefill of 8 or 16, or of half
    the context or more. With half, it takes the new tokens for those of the cache."""
    if context % CONTEXT_BLOCK or prefill % BLOCK or context <= 2 * prefill:
        raise UsageError(
            f"prefill by {prefill} tokens in a context of {context}: Genie would generate nonsense",
            fix=f"take a --context that is a multiple of {CONTEXT_BLOCK}, and a --prefill that is a multiple"
            f" of {BLOCK} and less than half of it",
        )


def require_short(prompt: Sequence[int], context: int, prefill: int) -> None:
    """Refuse a prompt that is too long: Genie reads whole blocks, and silently answers nothing."""
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
    """Write the configuration, and the extension file that it names. Their paths are relative to `folder`."""
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
    """Return a value of Genie's configuration, which users may have edited."""
    value: Any = read_object(config, fix=AGAIN)
    try:
        for key in ("dialog", *keys):
            value = value[key]
    except (KeyError, TypeError):
        raise UsageError(f"{config}: dialog.{'.'.join(keys)} is missing", fix=AGAIN) from None
    return value


def sizes_of(config: Path) -> dict[str, int]:
    """Return how many bytes the context binaries of each kind have."""
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
    """Refuse binaries if the emulator cannot load even those of one kind together."""
    for kind in kinds:
        if sizes.get(kind, 0) > EMULATOR_BYTES:
            raise UsageError(
                f"the binaries of {kind} have {size(sizes[kind])}, and the emulator loads only some"
                f" {size(EMULATOR_BYTES)} in one process",
                fix="check --on parts judges each part by itself; --precision 16a8w about halves the"
                " binaries",
            )


def kinds_for_genie(sizes: Mapping[str, int]) -> list[str]:
    """Return all kinds, or only decode if the emulator cannot load all binaries in one process."""
    if sum(sizes.values()) <= EMULATOR_BYTES:
        return list(sizes)
    require_loadable(sizes, "decode")
    return ["decode"]


def emulator_settings(config: Path) -> dict[str, Any]:
    """Return Genie's configuration. If the emulator cannot load all binaries together, it has only
    decode's."""
    settings, sizes = read_object(config, fix=AGAIN), sizes_of(config)
    kinds = kinds_for_genie(sizes)
    if len(kinds) < len(sizes):
        total = size(sum(sizes.values()))
        sys.stderr.write(f"decode reads the prompt too: the emulator does not load {total} at once\n")
    binary = settings["dialog"]["engine"]["model"]["binary"]
    binary["ctx-bins"] = [name for name in binary["ctx-bins"] if _kind(name) in kinds]
    return settings


def generate(config: Path, prompt: Sequence[int], most: int, *, timeout: float) -> SpokenText:
    """Return Genie's answer to a prompt, of at most `most` tokens. Genie puts the token that begins a text
    first itself, so the prompt has none."""
    settings = emulator_settings(config)
    settings["dialog"]["max-num-tokens"] = most
    order = GenieOrder(folder=str(config.parent), settings=settings, prompts=[list(prompt)])
    [text] = _reply(order, timeout).spoken
    return text


def encode_texts(config: Path, texts: Sequence[str], *, timeout: float) -> list[list[int]]:
    """Encode texts with Genie's own tokenizer; the token that Genie puts first is not included."""
    order = GenieOrder(folder=str(config.parent), settings=emulator_settings(config), texts=list(texts))
    return _reply(order, timeout).encoded


def forced_logits(config: Path, texts: Sequence[ForcedText], words: int, *, timeout: float) -> list[Array]:
    """Return, for each text, the logits from which Genie would have chosen each token: the first row comes
    from prefill, the others from decode. A text that fills the context must be the last."""
    settings = emulator_settings(config)
    dialog = settings["dialog"]
    # The model's own end may stand in a text, and Genie would stop there.
    tokens = {token for text in texts for token in text.tokens}
    dialog["context"]["eos-token"] = next(token for token in range(words) if token not in tokens)
    dialog["sampler"] = {"version": 1, "type": "custom", "callback-name": GENIE_SAMPLER}
    dialog["max-num-tokens"] = dialog["context"]["size"]
    with tempfile.TemporaryDirectory(prefix="qnn-ci-logits-") as scratch:
        order = GenieOrder(folder=str(config.parent), settings=settings, forced=list(texts), logits=scratch)
        _reply(order, timeout)
        logits = [np.fromfile(Path(scratch, str(number)), np.float32) for number in range(len(texts))]
    for text, rows in zip(texts, logits, strict=True):
        if rows.size != len(text.tokens) * words:
            raise CheckFailed(
                f"Genie gave {rows.size} logits for {len(text.tokens)} tokens of {words} words",
                fix="report it, with the version of onnxruntime-qnn",
            )
    return [rows.reshape(-1, words) for rows in logits]


def _reply(order: GenieOrder, timeout: float) -> GenieReply:
    try:
        process = subprocess.run(
            [sys.executable, "-m", "ci.lanes.llm.genie_process"],
            input=json.dumps(to_json(order)),
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
    if process.returncode:
        raise refusal(f"{process.stdout}{process.stderr}", how_it_ended(process.returncode))
    return read(GenieReply, json.loads(process.stdout.splitlines()[-1]))


def refusal(output: str, ending: str) -> CheckFailed:
    """Return the error of Genie's process, explained by what it printed."""
    explanation = nearest(f"{output}\nGenie {ending}")
    lines = [line.strip() for line in output.splitlines() if line.strip() and not line.startswith("{")]
    words = f": {lines[-1][:300]}" if lines else ""
    if explanation:
        return CheckFailed(f"Genie {ending}{words}. {explanation.cause}", fix=explanation.fix, output=output)
    return CheckFailed(f"Genie {ending}{words}", fix="--debug shows all that it printed", output=output)
