"""Small checkpoints in the Hugging Face format: with random weights, of which transformers says what tensors
there are; and files that are written by hand, for tests that need no torch."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

PUBLISHED: dict[str, Any] = json.loads(
    Path(__file__).with_name("published_checkpoints.json").read_text(encoding="utf-8")
)
"""config.json as it is published, and of small models as those would be; of transformers' own model for it
(4.57, on the device meta) the tensors of the first layer and around the layers, and what it computes.
Frequencies of ropes: how many, the second, the middle one and the last."""
SMALL = PUBLISHED["small llama"]["config"]


def shapes_of(kind: str = "llama", layers: int = 1, *, tied: bool = False) -> dict[str, list[int]]:
    """What transformers saves of a small model of a family."""
    return {
        name.replace("layers.0.", f"layers.{layer}."): shape
        for name, shape in PUBLISHED[f"small {kind}"]["tensors"].items()
        for layer in range(layers)
        if not (tied and name == "lm_head.weight")
    }


def write_config_json(folder: Path, **changes: Any) -> Path:
    """config.json alone; None leaves a key out."""
    config = {name: value for name, value in (SMALL | changes).items() if value is not None}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


SIZES = {"BF16": 2, "F16": 2, "F32": 4, "F64": 8, "I32": 4}


def write_weights(
    folder: Path,
    shapes: Mapping[str, Sequence[int]],
    dtype: str = "BF16",
    *,
    dtypes: Mapping[str, str] | None = None,
    values: Mapping[str, bytes] | None = None,
) -> None:
    """Zeros, byte by byte as the format is published; `values` are what a tensor begins with."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    data = b""
    for name, shape in shapes.items():
        kind = (dtypes or {}).get(name, dtype)
        tensor = (values or {}).get(name, b"").ljust(math.prod(shape) * SIZES[kind], b"\0")
        place = [len(data), len(data) + len(tensor)]
        header[name] = {"dtype": kind, "shape": list(shape), "data_offsets": place}
        data += tensor
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    (folder / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + data)


def write_tokenizer(
    folder: Path, words: Mapping[str, int] | None = None, *, form: str = "", special: str = ""
) -> Path:
    """Each word is a token; `form` is what it puts around a text, in which `special` words may stand."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    vocabulary = dict({"a": 0, "b": 5} if words is None else words)
    tokenizer = Tokenizer(models.WordLevel(vocabulary, "a"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    if form:
        numbers = [(word, vocabulary[word]) for word in special.split()]
        tokenizer.post_processor = processors.TemplateProcessing(form, special_tokens=numbers)
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


def write_checkpoint(folder: Path, seed: int = 3, **changes: Any) -> Path:
    """With a tokenizer of bytes. Weights are so large that choices are clear."""
    import torch
    from safetensors.torch import save_file
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
    from transformers import AutoConfig, AutoModelForCausalLM

    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(SMALL | changes))
    config = AutoConfig.from_pretrained(folder, local_files_only=True)
    # The token by which a family pads may lie beyond a small vocabulary.
    config.pad_token_id = None
    with torch.device("meta"):
        shapes = {
            name: tuple(tensor.shape)
            for name, tensor in AutoModelForCausalLM.from_config(config).state_dict().items()
            if not (config.tie_word_embeddings and name == "lm_head.weight")
        }
    generator, weights = np.random.default_rng(seed), dict[str, Any]()
    for name in sorted(shapes, key=_drawn_in_turn):
        values = generator.standard_normal(shapes[name])
        scaled = 1 + values / 10 if name.endswith("norm.weight") else values * shapes[name][-1] ** -0.5
        weights[name] = torch.from_numpy(scaled.astype(np.float32))
    save_file(weights, folder / "model.safetensors")
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())[: config.vocab_size]
    tokenizer = Tokenizer(models.BPE({letter: index for index, letter in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    if (SMALL | changes)["bos_token_id"] is not None:
        first = (SMALL | changes)["bos_token_id"]
        word = alphabet[first]
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{word} $A", special_tokens=[(word, first)]
        )
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


def _drawn_in_turn(name: str) -> tuple[bool, int, bool]:
    """Layers come first, and their norms before the rest. Another order would be other weights."""
    number = name.split(".")[2] if name.startswith("model.layers.") else ""
    return not number, int(number or 0), "layernorm" not in name
