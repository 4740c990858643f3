"""A prompt as Genie gets it: the chat template rendered, and tokens without the one that begins a text."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from provisioning.base.errors import UsageError

TEMPLATE = "chat_template.jinja"


def chat_text(folder: Path, message: str, system: str) -> str:
    """By the template of tokenizer_config.json, or of the file that newer checkpoints have."""
    if not has_template(folder):
        raise UsageError(
            f"{folder}: neither tokenizer_config.json nor {TEMPLATE} has a chat template",
            remedy="leave out --chat: a base model continues text",
        )
    from transformers import AutoTokenizer

    messages = [{"role": "system", "content": system}] if system else []
    messages.append({"role": "user", "content": message})
    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    text: str = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    return text


def has_template(folder: Path) -> bool:
    config = folder / "tokenizer_config.json"
    return (folder / TEMPLATE).is_file() or (
        config.is_file() and '"chat_template"' in config.read_text(encoding="utf-8")
    )


def without_beginning(tokens: Sequence[int], bos: int) -> list[int]:
    """Templates write the token that begins a text, and Genie puts it first itself."""
    rest = list(tokens[1:] if tokens[:1] == [bos] else tokens)
    if bos in rest:
        raise UsageError(
            f"token {bos}, which begins a text, stands inside of it",
            remedy="leave it out: Genie puts it first",
        )
    if not rest:
        raise UsageError("the prompt is empty", remedy="give it a word")
    return rest


def tokens_of(tokenizer: Any, text: str) -> list[int]:
    """Special tokens are what stands in the text: none is added."""
    ids: list[int] = tokenizer.encode(text, add_special_tokens=False).ids
    return ids
