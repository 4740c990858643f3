"""What Genie's process asks of libGenie.so, and what it makes of the answers of a stand-in."""

# ruff: noqa: N802  The functions' names are libGenie.so's.

from __future__ import annotations

import ctypes
import json
from pathlib import Path
from typing import Any

import numpy

from ci.lanes.llm.genie_process import reply_to
from ci.lanes.llm.orders import ForcedText, GenieOrder, GenieReply, SpokenText

CONTEXT, END, WORDS = 8, 99, 3
SETTINGS: dict[str, Any] = {"dialog": {"context": {"size": CONTEXT, "eos-token": END}, "max-num-tokens": 3}}


class StandInGenie:
    """It encodes a word as its length, and answers with each token of a prompt plus one, unless a sampler
    chooses. A row of logits is WORDS times the number of the choice."""

    sampler: Any = None
    settings: dict[str, Any]
    readable, choices = True, 0.0

    def GenieDialogConfig_createFromJson(self, text: bytes, _handle: Any) -> int:
        self.settings = json.loads(text)["dialog"]
        return 0

    def GenieDialog_create(self, _handle: Any, _dialog: Any) -> int:
        return 0

    def GenieDialog_getTokenizer(self, _dialog: Any, _tokenizer: Any) -> int:
        return 0

    def GenieTokenizer_encode(self, _: Any, text: bytes, allocate: Any, numbers: Any, count: Any) -> int:
        lengths = [len(word) for word in text.split()]
        memory = ctypes.c_void_p()
        allocate(4 * len(lengths) + 4, ctypes.pointer(memory))
        numbers._obj.contents = ctypes.c_int32.from_address(memory.value or 0)
        for index, length in enumerate(lengths):
            numbers._obj[index] = length
        count._obj.value = len(lengths)
        return 0

    def GenieSampler_registerUserDataCallback(self, name: bytes, callback: Any, _data: Any) -> int:
        self.sampler = callback if name == b"qnn-ci" else None
        return 0

    def GenieDialog_tokenQuery(self, _: Any, prompt: Any, count: int, code: int, say: Any, data: Any) -> int:
        assert self.readable and code == 0
        said: list[int] = []
        while len(said) < self.settings["max-num-tokens"]:
            if count + len(said) == self.settings["context"]["size"]:
                self.readable = False
                return 4
            token = self._sampled() if self.sampler else [*(t + 1 for t in prompt[:count]), END][len(said)]
            if token == self.settings["context"]["eos-token"]:
                break
            said.append(token)
            say((ctypes.c_uint32 * 1)(token), 1, 0, data)
        self.readable = False
        return 0

    def _sampled(self) -> int:
        self.choices += 1
        row, chosen = (ctypes.c_float * WORDS)(*[self.choices] * WORDS), (ctypes.c_int32 * 1)()
        self.sampler(ctypes.sizeof(row), ctypes.addressof(row), 1, chosen, None)
        return chosen[0]

    def GenieDialog_reset(self, _dialog: Any) -> int:
        self.readable = True
        return 0


def test_texts_are_encoded_and_prompts_answered_until_an_end_the_length_or_the_context() -> None:
    prompts = [[4, 5], [1, 2, 3, 4], [1] * (CONTEXT - 1)]
    order = GenieOrder(folder="", settings=SETTINGS, texts=["two letters", ""], prompts=prompts)
    assert reply_to(StandInGenie(), order) == GenieReply(
        [[3, 7], []],
        [SpokenText([5, 6], "eos"), SpokenText([2, 3, 4], "length"), SpokenText([2], "context")],
    )


def test_of_a_forced_text_the_logits_of_each_of_its_tokens_are_kept(tmp_path: Path) -> None:
    settings = {"dialog": {**SETTINGS["dialog"], "max-num-tokens": CONTEXT}}
    texts = [ForcedText([1, 2], [7, 8]), ForcedText([1], [5])]
    order = GenieOrder(folder="", settings=settings, forced=texts, logits=str(tmp_path))
    assert reply_to(StandInGenie(), order) == GenieReply([], [])
    rows = [numpy.fromfile(tmp_path / str(number), numpy.float32).tolist() for number in range(2)]
    # The third choice is the first text's end.
    assert rows == [[1.0] * WORDS + [2.0] * WORDS, [4.0] * WORDS]
