"""Genie: its configuration, written from the model, and its answers, in a process of its own.

Genie does not report most mistakes, but speaks nonsense or crashes. So everything that it reads is checked
before."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ci.diagnose.explain import nearest
from ci.lanes.llm.architecture import SCALING, Architecture
from ci.lanes.llm.config import read_object
from ci.models.arrays import Array
from ci.trouble import how_it_ended
from provisioning.base.commands import Fix
from provisioning.base.errors import CheckFailed, EnvironmentLacking, UsageError
from provisioning.base.settings import ROOT
from provisioning.manifest import Soc

CONFIG, EXTENSION = "genie_config.json", "htp_backend_ext_config.json"
RECORD = "compiled.json"
"""The request of `compile`, beside its output."""
ROUNDING = "rounding"
"""Its part that says what rounding alone costs the checkpoint."""
PROGRAM = "hybrid_llama_qnn.pte"
"""ExecuTorch's: upstream's name of a program with prefill and decode."""
KINDS = ("prefill", "decode")
"""Of graphs, by which their binaries are named: a block of tokens at once, or one."""


@dataclass(frozen=True, slots=True)
class GeneratedText:
    tokens: tuple[int, ...]
    stopped: str
    """`eos`, `length`, or `context` when that was full."""
    seconds: float
    first_seconds: float


BLOCK, CONTEXT_BLOCK = 32, 128
NONE = -1
"""As `bos-token`: Genie puts nothing before a text."""


def require_sizes(context: int, counts: Sequence[int]) -> None:
    """Refuse sizes with which Genie silently speaks nonsense or nothing: prefill by 8 or 16, and by half of
    the context or more. With half it takes the new tokens for those of the cache."""
    if context % CONTEXT_BLOCK:
        raise UsageError(
            f"a context of {context} tokens: Genie needs a multiple of {CONTEXT_BLOCK}",
            fix=f"take {context + -context % CONTEXT_BLOCK}",
        )
    for count in counts:
        if count != 1 and count % BLOCK:
            raise UsageError(
                f"prefill by {count} tokens: Genie needs a multiple of {BLOCK}",
                fix=f"take {count + -count % BLOCK}",
            )
        if context <= 2 * count:
            longer = 2 * count + CONTEXT_BLOCK - 2 * count % CONTEXT_BLOCK
            raise UsageError(
                f"prefill by {count} tokens in a context of {context}: Genie would generate nonsense",
                fix=f"take prefill by {(context // 2 - 1) // BLOCK * BLOCK}, or a context of {longer}",
            )


def require_short(prompt: Sequence[int], record: Mapping[str, Any]) -> None:
    """Genie reads whole blocks, and without a word says nothing to a longer prompt. `record` is of the
    compile."""
    most = record["context"] - record["prefill"]
    if len(prompt) > most:
        raise UsageError(
            f"the prompt has {len(prompt)} tokens: Genie takes at most {most} in a context of"
            f" {record['context']} with prefill by {record['prefill']}",
            fix="give a shorter prompt, or compile with a longer --context",
        )


def write_config(
    folder: Path,
    shape: Architecture,
    contexts: Sequence[Path],
    soc: Soc,
    *,
    context: int,
    most: int,
    name: str = CONFIG,
) -> Path:
    """The configuration and the extension file that it names. Their paths are relative to `folder`."""
    core = {"core_id": 0, "perf_profile": "burst", "rpc_control_latency": 100}
    extension = {"devices": [{**_chip(soc), "cores": [core]}]}
    (folder / EXTENSION).write_text(json.dumps(extension, indent=2) + "\n", encoding="utf-8")
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
    config = {
        "dialog": {
            "version": 1,
            "type": "basic",
            "max-num-tokens": most,
            "context": {"version": 1, "size": context, **_words(shape)},
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
                    "positional-encoding": _ropes(shape),
                },
            },
        }
    }
    path = folder / name
    path.write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    return path


def _words(shape: Architecture) -> dict[str, Any]:
    eos = shape.eos[0] if len(shape.eos) == 1 else list(shape.eos)
    return {
        "n-vocab": shape.vocab_size,
        "bos-token": NONE if shape.bos is None else shape.bos,
        "eos-token": eos,
    }


def _chip(soc: Soc) -> dict[str, Any]:
    return {"soc_id": soc.id, "dsp_arch": f"v{soc.arch}"}


def _ropes(shape: Architecture) -> dict[str, Any] | list[dict[str, Any]]:
    """One, or each with what the names of its inputs begin with."""
    first, *others = ({**_rope(shape, rope), **({"prefix": rope} if rope else {})} for rope in shape.ropes)
    return [first, *others] if others else first


def _rope(shape: Architecture, prefix: str = "") -> dict[str, Any]:
    base = shape.local_theta if prefix else shape.rope_theta
    theta = int(base) if base == int(base) else base
    rope: dict[str, Any] = {"type": "rope", "rope-dim": shape.rotary_dim // 2, "rope-theta": theta}
    if prefix:
        return rope
    if shape.rope_scaling is not None:
        scaling = {name.replace("_", "-"): shape.rope_scaling[name] for name in SCALING}
        rope["rope-scaling"] = {"rope-type": "llama3", **scaling}
    return rope


def through(record: Mapping[str, Any]) -> str:
    return str(record.get("through", "genie"))


def setting(config: Path, *keys: str) -> Any:
    """A value of Genie's configuration, which users edit."""
    value: Any = read_object(config, fix="compile it again, or correct it")
    for key in ("dialog", *keys):
        if not isinstance(value, dict) or key not in value:
            name = ".".join(("dialog", *keys))
            raise UsageError(f"{config}: {name} is missing", fix="compile it again")
        value = value[key]
    return value


def contradictions(config: Path, shape: Architecture, soc: Soc, context: int) -> list[str]:
    """Differences between a configuration and the model. Genie does not report most of them."""
    dialog = setting(config)
    devices = json.loads(config.with_name(EXTENSION).read_text(encoding="utf-8"))["devices"]
    settings = {
        f"{EXTENSION}: devices": devices[0],
        "context": setting(config, "context"),
        **_by_name(setting(config, "engine", "model").get("positional-encoding", {})),
        "engine.backend.QnnHtp": setting(config, "engine", "backend", "QnnHtp"),
        "sampler": dialog.get("sampler", {}),
    }
    wanted = {
        f"{EXTENSION}: devices": _chip(soc),
        "context": {"size": context, **_words(shape)},
        **_by_name(_ropes(shape)),
        "engine.backend.QnnHtp": {"kv-dim": shape.head_dim},
        # Other samplers choose at random, so that nothing could be compared.
        "sampler": {"top-k": 1},
    }
    return [
        f"{where}.{key}: expected {value}, found {settings.get(where, {}).get(key)}"
        for where, keys in wanted.items()
        for key, value in keys.items()
        if settings.get(where, {}).get(key) != value
    ]


def _by_name(ropes: Any) -> dict[str, dict[str, Any]]:
    """By where each stands in the configuration."""
    name = "engine.model.positional-encoding"
    every = (
        {f"{name}[{at}]": rope for at, rope in enumerate(ropes)} if isinstance(ropes, list) else {name: ropes}
    )
    return {where: {"rope-scaling": None, **rope} for where, rope in every.items()}


def generate(
    config: Path,
    prompts: Sequence[Sequence[int]],
    *,
    timeout: float,
    on_token: Callable[[int], None] = lambda token: None,
) -> list[GeneratedText]:
    """Genie's answers to prompts of tokens. It puts the token that begins a text first itself, so prompts
    have none. The process starts in the configuration's folder, where relative paths lead. `on_token` gets
    each token as it comes."""
    replies = _replies(config, timeout, on_token, prompts=[list(prompt) for prompt in prompts])
    most = setting(config, "max-num-tokens")
    generated = []
    for reply in replies:
        tokens, stopped = tuple(reply["tokens"]), reply["stopped"]
        if stopped != "context":
            stopped = "length" if len(tokens) >= most else "eos"
        generated.append(GeneratedText(tokens, stopped, reply["seconds"], reply["first_seconds"]))
    return generated


def encoded(config: Path, texts: Sequence[str], *, timeout: float) -> list[list[int]]:
    """Texts as Genie's own tokenizer has them; the token that Genie puts first is not in them."""
    return [reply["encoded"] for reply in _replies(config, timeout, texts=list(texts))]


@dataclass(frozen=True, slots=True)
class ForcedText:
    """A text of which Genie reads `prompt`, and then says `tokens`, whatever it would have chosen."""

    prompt: Sequence[int]
    tokens: Sequence[int]


def forced_logits(config: Path, texts: Sequence[ForcedText], words: int, *, timeout: float) -> list[Array]:
    """Of each text the logits from which Genie would have chosen each token: the first row is prefill's, the
    others are decode's. One that fills the context must be the last."""
    with tempfile.TemporaryDirectory(prefix="qnn-ci-logits-") as scratch:
        files = [Path(scratch, str(index)) for index in range(len(texts))]
        forced = [
            {"prompt": list(text.prompt), "tokens": list(text.tokens), "logits": str(file)}
            for text, file in zip(texts, files, strict=True)
        ]
        replies = _replies(config, timeout, forced=forced)
        if replies[0]["logits"] is None:
            raise EnvironmentLacking(
                "this build's libGenie.so gives no logits",
                fix=Fix("take the locked onnxruntime-qnn: {}", ("test_llm",)),
            )
        found = [np.fromfile(file, np.float32) for file in files]
    for text, rows in zip(texts, found, strict=True):
        if rows.size != len(text.tokens) * words:
            raise CheckFailed(
                f"Genie gave {rows.size} logits for {len(text.tokens)} tokens of {words} words",
                fix="report it, with the version of onnxruntime-qnn",
            )
    return [rows.reshape(-1, words) for rows in found]


def _replies(
    config: Path,
    timeout: float,
    on_token: Callable[[int], None] = lambda token: None,
    *,
    texts: Sequence[str] = (),
    prompts: Sequence[Sequence[int]] = (),
    forced: Sequence[Mapping[str, Any]] = (),
) -> list[dict[str, Any]]:
    """One reply to each; of all that are forced one, if this Genie cannot be forced."""
    _require_head_size(config)
    request = json.dumps({"config": config.name, "texts": texts, "prompts": prompts, "forced": forced})
    printed, answers = list[str](), list[str]()
    late = threading.Event()
    with (
        tempfile.TemporaryFile("w+", errors="replace") as errors,
        subprocess.Popen(
            [sys.executable, "-m", "ci.lanes.llm.genie_process", str(config.parent)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            cwd=ROOT,
            text=True,
            errors="replace",
        ) as process,
    ):

        def stop() -> None:
            late.set()
            process.kill()

        timer = threading.Timer(timeout, stop)
        timer.start()
        try:
            assert process.stdin is not None and process.stdout is not None
            # A process that has ended already takes nothing; its exit code says so.
            with contextlib.suppress(BrokenPipeError):
                process.stdin.write(request)
                process.stdin.close()
            for line in process.stdout:
                if line.startswith('{"token":'):
                    on_token(json.loads(line)["token"])
                elif line.startswith(('{"tokens"', '{"encoded"', '{"logits"')):
                    answers.append(line)
                else:
                    printed.append(line)
            code = process.wait()
        except BaseException:
            process.kill()
            raise
        finally:
            timer.cancel()
        errors.seek(0)
        output = "".join(printed) + errors.read()
    if late.is_set():
        raise CheckFailed(f"Genie gave no answer in {timeout:g} s", fix="give it longer with --timeout")
    replies: list[dict[str, Any]] = [json.loads(answer) for answer in answers]
    wanted = 1 if replies == [{"logits": None}] else len(texts) + len(prompts) + len(forced)
    if code or len(replies) != wanted:
        raise refusal(output, how_it_ended(code))
    return replies


def _require_head_size(config: Path) -> None:
    """Without it Genie reads unrelated memory: mostly an error of JSON, and a wrong size where it finds a
    number."""
    backend = setting(config, "engine", "backend", "QnnHtp")
    if not isinstance(backend, dict) or not isinstance(backend.get("kv-dim"), int):
        raise CheckFailed(
            f"{config} has no number engine.backend.QnnHtp.kv-dim",
            fix="set engine.backend.QnnHtp.kv-dim to a head's size (head_dim in config.json)",
        )


def refusal(output: str, how: str) -> CheckFailed:
    known = nearest(f"{output}\nGenie {how}")
    lines = [line.strip() for line in output.splitlines() if line.strip() and not line.startswith("{")]
    words = f": {lines[-1][:300]}" if lines else ""
    if known:
        return CheckFailed(f"Genie {how}{words}. {known.cause}", fix=known.fix, output=output)
    return CheckFailed(f"Genie {how}{words}", fix="--debug shows all that it printed", output=output)
