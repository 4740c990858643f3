"""What the checkpoint's own tokenizer puts before a text, by transformers with its defaults."""

from __future__ import annotations

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


def transformers_tokenizer(folder: Path) -> Any:
    try:
        # Each imports much that the other does without.
        if not (folder / "tokenizer_config.json").is_file():
            from transformers import PreTrainedTokenizerFast

            return PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"))
        from transformers import AutoTokenizer

        return AutoTokenizer.from_pretrained(folder, local_files_only=True)
    # Files of the user's: anything can come out of them.
    except Exception as error:
        raise CheckFailed(
            f"{folder}: transformers cannot read its tokenizer: {in_a_line(error)}",
            fix="take the tokenizer's files from the checkpoint, or write them:"
            " AutoTokenizer.from_pretrained(CHECKPOINT).save_pretrained(FOLDER)",
        ) from None


def first_token(folder: Path, words: int) -> int | None:
    """Raises UsageError for what Genie cannot say: it puts one token first and none at the end."""
    tokenizer = transformers_tokenizer(folder)
    whole = tokenizer("a", return_special_tokens_mask=True)
    tokens, added = whole["input_ids"], whole["special_tokens_mask"]
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
