"""What the checkpoint's own tokenizer puts before a text, by transformers with its defaults."""

from __future__ import annotations

import importlib
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from provisioning.base.errors import CheckFailed, UsageError


def in_a_line(error: Exception) -> str:
    return " ".join(str(error).split())[:200]


def tokenizer_decides(folder: Path) -> bool:
    """Without tokenizer_config.json transformers would invent the special tokens of the family; then
    tokenizer.json decides if it says what to put around a text."""
    path = folder / "tokenizer.json"
    if not path.is_file() or (folder / "tokenizer_config.json").is_file():
        return path.is_file()
    return '"post_processor": null' not in path.read_text(encoding="utf-8", errors="replace")


@contextmanager
def _without_models() -> Iterator[None]:
    """Let a process that has no torch import transformers without it: with torch it takes five times as long.
    Workers, which need its models, have imported torch before."""
    wanted = {} if "torch" in sys.modules else {"USE_TORCH": "0", "TRANSFORMERS_NO_ADVISORY_WARNINGS": "1"}
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


SPECIAL = ("bos_token", "eos_token", "unk_token", "pad_token")


def _is_of_transformers_5(settings: Mapping[str, object]) -> bool:
    """transformers 4 knows neither its class of tokenizers nor its list of extra tokens; tokenizer.json has
    them all."""
    named = (settings.get("tokenizer_class"), settings.get("backend"))
    return (
        "TokenizersBackend" in named
        or "tokenizers" in named
        or isinstance(settings.get("extra_special_tokens"), list)
    )


def _word(token: Any) -> str:
    return str(token["content"] if isinstance(token, dict) else token)


def transformers_tokenizer(folder: Path) -> Any:
    try:
        with _without_models():
            importlib.import_module("transformers")
        from transformers import AutoTokenizer, PreTrainedTokenizerFast

        path = folder / "tokenizer_config.json"
        settings = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
        if not path.is_file() or _is_of_transformers_5(settings):
            words = {name: _word(settings[name]) for name in SPECIAL if settings.get(name)}
            tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"), **words)
            template = folder / "chat_template.jinja"
            tokenizer.chat_template = (
                template.read_text(encoding="utf-8") if template.is_file() else settings.get("chat_template")
            )
            return tokenizer
        return AutoTokenizer.from_pretrained(folder, local_files_only=True)
    # Files of the user's: anything can come out of them.
    except Exception as error:
        raise CheckFailed(
            f"{folder}: transformers cannot read its tokenizer: {in_a_line(error)}",
            fix="take the tokenizer's files from the checkpoint, or write them:"
            " AutoTokenizer.from_pretrained(CHECKPOINT).save_pretrained(FOLDER)",
        ) from None


def encoder_of(folder: Path) -> Callable[[str, bool], tuple[list[int], list[int]]]:
    """By transformers' defaults the tokens of a text, with the special ones around it or without, and a 1
    for each that was put there."""
    if (folder / "tokenizer_config.json").is_file():
        by_settings = transformers_tokenizer(folder)

        def encode(text: str, special: bool) -> tuple[list[int], list[int]]:
            whole = by_settings(text, add_special_tokens=special, return_special_tokens_mask=True)
            return whole["input_ids"], whole["special_tokens_mask"]

        return encode
    # Without settings transformers hands a text to this library, and takes seconds to import.
    tokenizer = load_tokenizer(folder)
    tokenizer.no_truncation()
    tokenizer.no_padding()

    def encode_plainly(text: str, special: bool) -> tuple[list[int], list[int]]:
        whole = tokenizer.encode(text, add_special_tokens=special)
        return whole.ids, whole.special_tokens_mask

    return encode_plainly


def load_tokenizer(folder: Path) -> Any:
    from tokenizers import Tokenizer

    path = folder / "tokenizer.json"
    try:
        return Tokenizer.from_file(str(path))
    # The library raises nothing narrower.
    except Exception as error:
        raise CheckFailed(
            f"{path} cannot be read: {in_a_line(error)}", fix="take it from the checkpoint"
        ) from None


def first_token(folder: Path, words: int) -> int | None:
    """Raises UsageError for what Genie cannot say: it puts one token first and none at the end."""
    tokens, added = encoder_of(folder)("a", True)
    count = added.index(0) if 0 in added else len(added)
    before, after = tokens[:count], [token for token, new in zip(tokens, added, strict=True) if new][count:]
    for place, some, most in (("first", before, 1), ("at the end", after, 0)):
        if len(some) > most:
            raise UsageError(
                f"{folder}: its tokenizer puts {some} {place} of a text; Genie puts at most one token first"
                " and none at the end",
                fix="take a checkpoint whose tokenizer does so: its post_processor in tokenizer.json, or"
                " add_bos_token and add_eos_token in tokenizer_config.json",
            )
    if before and before[0] >= words:
        raise UsageError(
            f"{folder}: its tokenizer puts token {before[0]} first, and the model has {words} words",
            fix="take tokenizer.json, tokenizer_config.json and weights of one model",
        )
    return before[0] if before else None
