"""Run Genie's library: this process reads a GenieOrder from its input, and prints a GenieReply as its
last line.

It imports little, so that nothing but Genie loads QNN."""

from __future__ import annotations

import ctypes
import importlib.util
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ci.lanes.llm.orders import GENIE_SAMPLER, GenieOrder, GenieReply, SpokenText
from ci.work import read, to_json

COMPLETE = 0
CONTEXT_EXCEEDED = 4
TOKENS = ctypes.CFUNCTYPE(
    None, ctypes.POINTER(ctypes.c_uint32), ctypes.c_uint32, ctypes.c_int, ctypes.c_void_p
)
SAMPLE = ctypes.CFUNCTYPE(
    None, ctypes.c_uint32, ctypes.c_void_p, ctypes.c_uint32, ctypes.POINTER(ctypes.c_int32), ctypes.c_void_p
)
ALLOCATE = ctypes.CFUNCTYPE(None, ctypes.c_size_t, ctypes.POINTER(ctypes.c_void_p))


def library() -> Path:
    """Find Genie's library without importing onnxruntime-qnn, which loads more than Genie needs."""
    spec = importlib.util.find_spec("onnxruntime_qnn")
    if spec is None or spec.origin is None:
        sys.exit("onnxruntime-qnn, which has libGenie.so, is not installed")
    return Path(spec.origin).with_name("libGenie.so")


class ForcedChoice:
    """Replaces Genie's sampler: it chooses the given tokens, then `end`, and keeps the logits of each
    choice."""

    def __init__(self, end: int) -> None:
        self.end, self.rest, self.logits = end, list[int](), list[bytes]()
        self.callback = SAMPLE(self._choose)

    def _choose(self, size: int, logits: int, _count: int, choice: Any, _: Any) -> None:
        self.logits.append(ctypes.string_at(logits, size))
        choice[0] = self.rest.pop(0) if self.rest else self.end


class Dialog:
    """Calls Genie's library for one configuration."""

    def __init__(self, genie: Any, settings: dict[str, Any]) -> None:
        self._genie, self._most = genie, settings["dialog"]["max-num-tokens"]
        handle, self._dialog = ctypes.c_void_p(), ctypes.c_void_p()
        text = json.dumps(settings).encode()
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

    def answer(self, prompt: Sequence[int]) -> SpokenText:
        """Return what Genie says to a prompt, and why it ended."""
        tokens: list[int] = []

        def take(values: Any, count: int, _code: int, _: Any) -> None:
            tokens.extend(int(values[index]) for index in range(count))

        array = (ctypes.c_uint32 * len(prompt))(*prompt)
        arguments = self._dialog, array, len(prompt), COMPLETE, TOKENS(take), None
        status = self._call("GenieDialog_tokenQuery", *arguments, normal=CONTEXT_EXCEEDED)
        if status:
            # Genie answers no other prompt after it, not even after a reset.
            return SpokenText(tokens, "context")
        self._call("GenieDialog_reset", self._dialog)
        return SpokenText(tokens, "length" if len(tokens) >= self._most else "eos")

    def _call(self, function: str, *arguments: Any, normal: int = 0) -> int:
        """Call a function of Genie's and return its status; end the process unless that is 0 or `normal`."""
        status = int(getattr(self._genie, function)(*arguments))
        if status not in (0, normal):
            sys.stdout.flush()
            sys.stderr.write(f"{function}: status {status}\n")
            # Genie crashes if it is freed after a failure.
            os._exit(3)
        return status


def force(genie: Any, order: GenieOrder) -> None:
    """Write the logits from which Genie would have chosen each token of the forced texts."""
    choice = ForcedChoice(order.settings["dialog"]["context"]["eos-token"])
    register = "GenieSampler_registerUserDataCallback"
    if status := getattr(genie, register)(GENIE_SAMPLER.encode(), choice.callback, None):
        sys.exit(f"{register}: status {status}")
    dialog = Dialog(genie, order.settings)
    for number, text in enumerate(order.forced):
        choice.rest, choice.logits = list(text.tokens), []
        dialog.answer(text.prompt)
        # The last row is of the end, which follows no token of the text.
        Path(order.logits, str(number)).write_bytes(b"".join(choice.logits[: len(text.tokens)]))


def reply_to(genie: Any, order: GenieOrder) -> GenieReply:
    if order.forced:
        force(genie, order)
        return GenieReply([], [])
    dialog = Dialog(genie, order.settings)
    return GenieReply(
        [dialog.encode(text) for text in order.texts], [dialog.answer(prompt) for prompt in order.prompts]
    )


def main() -> None:
    """Run the order and print the reply as the last line, after those that Genie prints."""
    order = read(GenieOrder, json.load(sys.stdin))
    # Where the paths of the configuration lead.
    os.chdir(order.folder)
    genie = ctypes.CDLL(str(library()), mode=ctypes.RTLD_GLOBAL)
    print(f"\n{json.dumps(to_json(reply_to(genie, order)))}", flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
