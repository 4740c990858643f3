"""Uses the checkpoint's tokenizer: turns text into tokens and back, applies its chat template, and asks
transformers what it puts before a text."""

from __future__ import annotations

import importlib
import json
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from provisioning.base.commands import leave_out, quote_command
from provisioning.base.errors import CheckFailed, UsageError

TEMPLATE, SETTINGS = "chat_template.jinja", "tokenizer_config.json"


def shorten_error(error: Exception) -> str:
    return " ".join(str(error).split())[:200]


def tokenizer_decides(folder: Path) -> bool:
    """Whether the tokenizer's files say which special tokens a text gets. Without tokenizer_config.json,
    transformers would invent the family's, and tokenizer.json decides if it says what to put around a
    text."""
    path = folder / "tokenizer.json"
    if not path.is_file() or (folder / SETTINGS).is_file():
        return path.is_file()
    return '"post_processor": null' not in path.read_text(encoding="utf-8", errors="replace")


@contextmanager
def _hiding_torch() -> Iterator[None]:
    """Let a process that has no torch import transformers without it: with torch it takes five times as long.
    Workers, which need its models, have imported torch before."""
    values = {} if "torch" in sys.modules else {"USE_TORCH": "0", "TRANSFORMERS_NO_ADVISORY_WARNINGS": "1"}
    os.environ.update(values)
    try:
        yield
    finally:
        for name in values:
            del os.environ[name]


SPECIAL = ("bos_token", "eos_token", "unk_token", "pad_token")


def _is_of_transformers_5(settings: Mapping[str, object]) -> bool:
    """Whether only transformers 5 knows its class of tokenizers, or its list of extra tokens; tokenizer.json
    has them all."""
    names = (settings.get("tokenizer_class"), settings.get("backend"))
    return (
        "TokenizersBackend" in names
        or "tokenizers" in names
        or isinstance(settings.get("extra_special_tokens"), list)
    )


def _word(token: object) -> str:
    return str(token["content"] if isinstance(token, dict) else token)


def transformers_tokenizer(folder: Path) -> Any:
    try:
        with _hiding_torch():
            importlib.import_module("transformers")
        from transformers import AutoTokenizer, PreTrainedTokenizerFast

        path = folder / SETTINGS
        settings = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
        if not path.is_file() or _is_of_transformers_5(settings):
            words = {name: _word(settings[name]) for name in SPECIAL if settings.get(name)}
            tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"), **words)
            template = folder / TEMPLATE
            tokenizer.chat_template = (
                template.read_text(encoding="utf-8") if template.is_file() else settings.get("chat_template")
            )
            return tokenizer
        return AutoTokenizer.from_pretrained(folder, local_files_only=True)
    # Files of the user's: anything can come out of them.
    except Exception as error:
        raise CheckFailed(
            f"{folder}: transformers cannot read its tokenizer: {shorten_error(error)}",
            fix="take the tokenizer's files from the checkpoint, or write them:"
            " AutoTokenizer.from_pretrained(CHECKPOINT).save_pretrained(FOLDER)",
        ) from None


def encoded_by_transformers(folder: Path, text: str, special: bool = True) -> tuple[list[int], list[int]]:
    """Return the tokens of a text, with or without the `special` ones around it, and a 1 for each that was
    added."""
    tokenizer = transformers_tokenizer(folder)
    encoding = tokenizer(text, add_special_tokens=special, return_special_tokens_mask=True)
    return encoding["input_ids"], encoding["special_tokens_mask"]


def load_tokenizer(folder: Path) -> Any:
    from tokenizers import Tokenizer

    path = folder / "tokenizer.json"
    try:
        return Tokenizer.from_file(str(path))
    # The library raises nothing narrower.
    except Exception as error:
        raise CheckFailed(
            f"{path} cannot be read: {shorten_error(error)}", fix="take it from the checkpoint"
        ) from None


def first_token(folder: Path) -> int | None:
    """Return the token that Genie puts first. Raises UsageError for what Genie cannot do: it puts one token
    first and none at the end."""
    tokens, marks = encoded_by_transformers(folder, "a")
    count = marks.index(0) if 0 in marks else len(marks)
    before, after = tokens[:count], [token for token, new in zip(tokens, marks, strict=True) if new][count:]
    if len(before) > 1 or after:
        raise UsageError(
            f"{folder}: its tokenizer puts {before} first and {after} at the end of a text; Genie puts one"
            " token first at most, and none at the end",
            fix="take a checkpoint whose tokenizer does so: its post_processor in tokenizer.json, or"
            " add_bos_token and add_eos_token in tokenizer_config.json",
        )
    return before[0] if before else None


def require_tokenizer(folder: Path, words: int) -> None:
    """Refuse a tokenizer with tokens that a model with this many words lacks."""
    highest = max(load_tokenizer(folder).get_vocab(with_added_tokens=True).values(), default=-1)
    if not 0 <= highest < words:
        raise UsageError(
            f"{folder}/tokenizer.json has tokens up to {highest}, and the model has {words} words",
            fix="take tokenizer.json and weights of one model",
        )


def chat_text(folder: Path, message: str, system: str) -> str:
    """Write a message as a chat, by the template of tokenizer_config.json or of the file that newer
    checkpoints have."""
    if not has_template(folder):
        raise UsageError(
            f"{folder} has no chat template in {SETTINGS}, nor {TEMPLATE} beside it",
            fix=leave_out("--chat", ": a base model continues text"),
        )
    messages = [{"role": "system", "content": system}] if system else []
    return render_template(folder, [*messages, {"role": "user", "content": message}], answered=False)


def render_template(folder: Path, messages: Sequence[Mapping[str, str]], *, answered: bool) -> str:
    try:
        tokenizer = transformers_tokenizer(folder)
        text: str = tokenizer.apply_chat_template(
            messages, tokenize=False, add_generation_prompt=not answered
        )
    # Templates are programs: any error can come out of them.
    except Exception as error:
        raise UsageError(
            f"{folder}: its chat template gives no text: {shorten_error(error)}",
            fix="correct the template, or leave out what it refuses",
        ) from error
    return text


def has_template(folder: Path) -> bool:
    """Whether there is a template; it counts only with the settings, because they name the tokens that it
    writes."""
    settings = folder / SETTINGS
    return settings.is_file() and ((folder / TEMPLATE).is_file() or '"chat_template"' in read_text(settings))


MARKER = re.compile(r"</?[|｜]?[A-Za-z][\w▁ -]{0,40}[|｜]?>")
"""Templates write tokens in this form around messages. Others, as `[INST]`, are words to some models."""
TEMPLATE_FIX = "take tokenizer.json, tokenizer_config.json and the chat template of one model"


def template_problems(folder: Path) -> Iterator[str]:
    """Report a marker of the chat template that is no token of the tokenizer: the model would read its
    letters."""
    if not has_template(folder):
        return
    messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    text, tokenizer = render_template(folder, messages, answered=True), load_tokenizer(folder)
    for marker in dict.fromkeys(MARKER.findall(text)):
        if len(tokens := tokens_of(tokenizer, marker)) > 1:
            yield (
                f"the chat template of {folder} writes {marker}, which its tokenizer splits into"
                f" {len(tokens)} tokens: it is no special token there"
            )


def drop_beginning(tokens: Sequence[int], bos: int) -> list[int]:
    """Remove the token that begins a text: templates write it, and Genie puts it first itself. Some templates
    begin each message with the same token."""
    rest = list(tokens[1:] if tokens[:1] == [bos] else tokens)
    if rest[:1] == [bos]:
        raise UsageError(
            f"token {bos}, which begins a text, stands there twice", fix="leave it out: Genie puts it first"
        )
    if not rest:
        raise UsageError("the prompt is empty", fix="give it a word")
    return rest


def read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        converted = quote_command("iconv", "-f", "LATIN1", "-t", "UTF-8", path)
        raise UsageError(
            f"{path} is not UTF-8 text at byte {error.start}", fix=f"if it is Latin-1: {converted} > OUT"
        ) from None


def tokens_of(tokenizer: Any, text: str) -> list[int]:
    """Return a text's tokens. Special tokens are only those that the text itself has."""
    ids: list[int] = tokenizer.encode(text, add_special_tokens=False).ids
    return ids


def words_after(tokenizer: Any, prompt: Sequence[int], tokens: Sequence[int]) -> str:
    """Return the text that tokens add to a prompt. Decoded without the prompt, they would lose their leading
    space (sentencepiece)."""
    before = list(prompt[-1:])
    text, longer = (tokenizer.decode(ids) for ids in (before, [*before, *tokens]))
    words: str = longer[len(text) :]
    return words
