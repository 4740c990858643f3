"""Small checkpoints in the Hugging Face format with random weights. Which tensors one has, and of what shape,
transformers says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

SMALL: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 256,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
    "rope_scaling": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    },
    "max_position_embeddings": 128,
    "tie_word_embeddings": False,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "torch_dtype": "float32",
}

LLAMA_3_2: dict[str, Any] = {
    "rope_type": "llama3",
    "factor": 32.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
"""Its rope_scaling."""
LLAMA_3_2_ROPE: dict[str, Any] = {
    "rope_scaling": LLAMA_3_2,
    "max_position_embeddings": 131072,
    "head_dim": 64,
}


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
