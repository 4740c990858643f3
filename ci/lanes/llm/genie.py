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
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ci.diagnose.explain import nearest
from ci.lanes.llm.architecture import Architecture, Llama3Rope, read_object
from ci.lanes.llm.orders import ForcedText
from ci.models.arrays import Array
from ci.plain import as_json
from ci.trouble import how_it_ended
from provisioning.base.commands import Fix
from provisioning.base.errors import CheckFailed, EnvironmentLacking, UsageError
from provisioning.base.settings import ROOT
from provisioning.manifest import Soc

CONFIG, EXTENSION = "genie_config.json", "htp_backend_ext_config.json"
PROGRAM = "hybrid_llama_qnn.pte"
"""ExecuTorch's: upstream's name of a program with prefill and decode."""


@dataclass(frozen=True, slots=True)
class GeneratedText:
    tokens: tuple[int, ...]
    stopped: str
    """`eos`, `length`, or `context` when that was full."""
    seconds: float


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
    written = config_of(shape, [path.name for path in contexts], soc, context, most)
    for name, content in written.items():
        (folder / name).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    return folder / CONFIG


def config_of(
    shape: Architecture, binaries: Sequence[str], soc: Soc, context: int, most: int
) -> dict[str, dict[str, Any]]:
    """By the names of the files."""
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
                "binary": {"version": 1, "ctx-bins": list(binaries)},
                "positional-encoding": ropes if len(ropes) > 1 else ropes[0],
            },
        },
    }
    device = {"soc_id": soc.id, "dsp_arch": f"v{soc.arch}", "cores": [core]}
    return {EXTENSION: {"devices": [device]}, CONFIG: {"dialog": dialog}}


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
    value: Any = read_object(config, fix="compile it again, or correct it")
    for key in ("dialog", *keys):
        if not isinstance(value, dict) or key not in value:
            name = ".".join(("dialog", *keys))
            raise UsageError(f"{config}: {name} is missing", fix="compile it again")
        value = value[key]
    return value


DECISIVE = (
    "context.",
    "engine.model.positional-encoding",
    "engine.backend.QnnHtp.kv-dim",
    # Other samplers choose at random, so that nothing could be compared.
    "sampler.top-k",
    f"{EXTENSION}.devices[0].soc_id",
    f"{EXTENSION}.devices[0].dsp_arch",
)
"""How the names of settings begin with which Genie speaks nonsense if they are not the model's."""


def contradictions(config: Path, shape: Architecture, soc: Soc, context: int) -> list[str]:
    """Decisive settings that are not those that `compile` writes. Genie does not report most of them."""
    extension = read_object(config.with_name(EXTENSION), fix="compile it again")
    written = config_of(shape, [], soc, context, 0)
    expected, found = (
        {name: value for name, value in _settings(document) if name.startswith(DECISIVE)}
        for document in (
            {**written[CONFIG]["dialog"], EXTENSION: written[EXTENSION]},
            {**setting(config), EXTENSION: extension},
        )
    )
    return [
        f"{name}: expected {expected.get(name)}, found {found.get(name)}"
        for name in {**expected, **found}
        if expected.get(name) != found.get(name)
    ]


def _settings(document: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """By dotted names."""
    if isinstance(document, dict):
        for key, value in document.items():
            yield from _settings(value, f"{name}.{key}" if name else key)
    elif isinstance(document, list) and any(isinstance(value, dict) for value in document):
        for index, value in enumerate(document):
            yield from _settings(value, f"{name}[{index}]")
    else:
        yield name, document


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
        generated.append(GeneratedText(tokens, stopped, reply["seconds"]))
    return generated


def encoded(config: Path, texts: Sequence[str], *, timeout: float) -> list[list[int]]:
    """Texts as Genie's own tokenizer has them; the token that Genie puts first is not in them."""
    return [reply["encoded"] for reply in _replies(config, timeout, texts=list(texts))]


def forced_logits(config: Path, texts: Sequence[ForcedText], words: int, *, timeout: float) -> list[Array]:
    """Of each text the logits from which Genie would have chosen each token: the first row is prefill's, the
    others are decode's. One that fills the context must be the last."""
    with tempfile.TemporaryDirectory(prefix="qnn-ci-logits-") as scratch:
        files = [Path(scratch, str(index)) for index in range(len(texts))]
        forced = [{**as_json(text), "logits": str(file)} for text, file in zip(texts, files, strict=True)]
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
    forced: Sequence[Mapping[str, object]] = (),
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
