"""`python -m ci.lanes.llm.genie_process FOLDER`: the process in which Genie works, and sometimes crashes.

Reads {"config": file, "texts": [text, …], "prompts": [[token, …], …]} and writes lines of JSON: for each text
its tokens by Genie's tokenizer, then one for each token, and one for each prompt. A prompt that fills the
context must be the last: Genie answers no other after it, not even after a reset.

With "forced": [{"prompt": [token, …], "tokens": [token, …], "logits": file}, …] Genie says these tokens after
each prompt, and the logits from which it would have chosen each go to the file."""

from __future__ import annotations

import ctypes
import importlib.util
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

COMPLETE = 0
CONTEXT_EXCEEDED = 4
TOKENS = ctypes.CFUNCTYPE(
    None, ctypes.POINTER(ctypes.c_uint32), ctypes.c_uint32, ctypes.c_int, ctypes.c_void_p
)
SAMPLE = ctypes.CFUNCTYPE(
    None, ctypes.c_uint32, ctypes.c_void_p, ctypes.c_uint32, ctypes.POINTER(ctypes.c_int32), ctypes.c_void_p
)
REGISTER, SAMPLER = "GenieSampler_registerUserDataCallback", "qnn-ci"
ALLOCATE = ctypes.CFUNCTYPE(None, ctypes.c_size_t, ctypes.POINTER(ctypes.c_void_p))


def library() -> Path:
    """Found without importing onnxruntime-qnn, which loads more than Genie needs."""
    spec = importlib.util.find_spec("onnxruntime_qnn")
    if spec is None or spec.origin is None:
        sys.exit("onnxruntime-qnn, which has libGenie.so, is not installed")
    return Path(spec.origin).with_name("libGenie.so")


class ForcedChoice:
    """Genie's sampler here: it says given tokens, then `end`, and keeps the logits of each choice."""

    def __init__(self, end: int) -> None:
        self.end, self.left, self.logits = end, list[int](), list[bytes]()
        self.callback = SAMPLE(self._choose)

    def _choose(self, size: int, logits: int, _count: int, chosen: Any, _: Any) -> None:
        self.logits.append(ctypes.string_at(logits, size))
        chosen[0] = self.left.pop(0) if self.left else self.end


class Dialog:
    def __init__(self, config: dict[str, object]) -> None:
        self._genie = load_genie()
        handle, self._dialog = ctypes.c_void_p(), ctypes.c_void_p()
        text = json.dumps(config).encode()
        self._call("GenieDialogConfig_createFromJson", text, ctypes.byref(handle))
        self._call("GenieDialog_create", handle, ctypes.byref(self._dialog))

    def encode(self, text: str) -> list[int]:
        tokenizer, numbers, count = ctypes.c_void_p(), ctypes.POINTER(ctypes.c_int32)(), ctypes.c_uint32()
        memory: list[Any] = []

        def allocate(size: int, into: Any) -> None:
            memory.append(ctypes.create_string_buffer(size))
            into[0] = ctypes.addressof(memory[-1])

        self._call("GenieDialog_getTokenizer", self._dialog, ctypes.byref(tokenizer))
        into = ctypes.byref(numbers), ctypes.byref(count)
        self._call("GenieTokenizer_encode", tokenizer, text.encode(), ALLOCATE(allocate), *into)
        return [int(numbers[index]) for index in range(count.value)]

    def answer(self, prompt: list[int]) -> dict[str, object]:
        tokens: list[int] = []

        def take(values: Any, count: int, _code: int, _: Any) -> None:
            for index in range(count):
                tokens.append(int(values[index]))
                print(json.dumps({"token": tokens[-1]}), flush=True)

        began = time.monotonic()
        array = (ctypes.c_uint32 * len(prompt))(*prompt)
        arguments = self._dialog, array, len(prompt), COMPLETE, TOKENS(take), None
        status = self._call("GenieDialog_tokenQuery", *arguments, allowed=CONTEXT_EXCEEDED)
        seconds = time.monotonic() - began
        if not status:
            self._call("GenieDialog_reset", self._dialog)
        return {
            "tokens": tokens,
            "stopped": "context" if status else "end",
            "seconds": seconds,
        }

    def _call(self, function: str, *arguments: Any, allowed: int = 0) -> int:
        """The status of a function of Genie's; ends the process unless it is 0 or `allowed`."""
        status = int(getattr(self._genie, function)(*arguments))
        if status not in (0, allowed):
            sys.stdout.flush()
            sys.stderr.write(f"{function}: status {status}\n")
            # Genie crashes if it is freed after a failure.
            os._exit(3)
        return status


def load_genie() -> Any:
    return ctypes.CDLL(str(library()), mode=ctypes.RTLD_GLOBAL)


def force(config: dict[str, Any], forced: list[dict[str, Any]]) -> None:
    register = getattr(load_genie(), REGISTER, None)
    if register is None:
        print(json.dumps({"logits": None}), flush=True)
        return
    context = config["dialog"]["context"]
    # The model's own end may stand in a text, and Genie would stop there.
    said = {token for row in forced for token in row["tokens"]}
    end = context["eos-token"] = next(token for token in range(context["n-vocab"]) if token not in said)
    choice = ForcedChoice(end)
    if status := register(SAMPLER.encode(), choice.callback, None):
        sys.exit(f"{REGISTER}: status {status}")
    config["dialog"]["sampler"] = {"version": 1, "type": "custom", "callback-name": SAMPLER}
    config["dialog"]["max-num-tokens"] = context["size"]
    dialog = Dialog(config)
    for row in forced:
        choice.left, choice.logits = list(row["tokens"]), []
        dialog.answer(row["prompt"])
        # The last row is of the end, which follows no token of the text.
        rows = choice.logits[: len(row["tokens"])]
        Path(row["logits"]).write_bytes(b"".join(rows))
        print(json.dumps({"logits": len(rows)}), flush=True)


def main() -> None:
    os.chdir(sys.argv[1])
    request = json.load(sys.stdin)
    config = json.loads(Path(request["config"]).read_text(encoding="utf-8"))
    if request["forced"]:
        force(config, request["forced"])
        os._exit(0)
    dialog = Dialog(config)
    for text in request["texts"]:
        print(json.dumps({"encoded": dialog.encode(text)}), flush=True)
    for prompt in request["prompts"]:
        print(json.dumps(dialog.answer(prompt)), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
