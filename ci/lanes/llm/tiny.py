"""Trains a tiny Llama, the model of the `tiny` case, as a folder in the Hugging Face format. It uses one
thread, one seed, a text from the locked torch, and arithmetic that all processors share
(ci.lanes.llm.steps.PORTABLE), so the same versions give the same weights everywhere."""

from __future__ import annotations

import ast
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ci.lanes.llm.orders import Trained, TrainOrder
from provisioning.base.errors import CheckFailed
from provisioning.base.files import hash_file

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

BOS, EOS = "<|begin_of_text|>", "<|end_of_text|>"
SEED = 1
JUDGED, QUANTIZED_BY = "judged.txt", "calibration.txt"
"""These texts are in the model's folder."""
DOCUMENTED = ("_torch_docs.py", "_tensor_docs.py", "nn/functional.py", "nn/modules/*.py", "optim/*.py")
"""The text is taken from the docstrings of these files of torch."""
SENTENCE = re.compile(r"[A-Z][A-Za-z][^{}<>|\\=*_~#]{24,180}[a-z)]\.(?= |$)")
HELD_OUT, CALIBRATION = 10, 11
"""In every 12 sentences the eleventh is for judging and the last for calibration; the others are for
training."""
PARTS = 12

CONFIG: Mapping[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 512,
    "hidden_size": 128,
    "intermediate_size": 352,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
    "rope_scaling": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        # Within the context, so that an absent or wrong scaling shows.
        "original_max_position_embeddings": 64,
    },
    "tie_word_embeddings": True,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "torch_dtype": "float32",
}


@dataclass(frozen=True, slots=True)
class Texts:
    """Holds sentences for three purposes; no sentence is in two of them."""

    training: tuple[str, ...]
    judged: tuple[str, ...]
    calibration: tuple[str, ...]


def texts() -> Texts:
    sentences = list(dict.fromkeys(_sentences()))
    parts = {part: tuple(sentences[part::PARTS]) for part in (HELD_OUT, CALIBRATION)}
    training = tuple(text for index, text in enumerate(sentences) if index % PARTS not in parts)
    return Texts(training, parts[HELD_OUT], parts[CALIBRATION])


def _sentences() -> Iterator[str]:
    import torch

    root = Path(torch.__file__).parent
    for pattern in DOCUMENTED:
        for file in sorted(root.glob(pattern)):
            for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.isascii():
                    for paragraph in re.split(r"\n\s*\n", node.value):
                        plain = re.sub(r"\([^()]*\)|:\w+:|`", "", " ".join(paragraph.split()))
                        yield from SENTENCE.findall(" ".join(plain.split()))


def order_train(order: TrainOrder) -> Trained:
    return train(Path(order.into))


def train(folder: Path, steps: int = 550, config: Mapping[str, Any] = CONFIG) -> Trained:
    """Write the model, its tokenizer, and the texts to quantize and to judge by to `folder`."""
    import torch
    from tokenizers import processors
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.set_num_threads(1)
    corpus, words = texts(), config["vocab_size"]
    tokenizer = _tokenizer(corpus.training, words)
    rows = [encoding.ids for encoding in tokenizer.encode_batch(list(corpus.training))]
    judged = [encoding.ids for encoding in tokenizer.encode_batch(list(corpus.judged))]
    bos, eos = config["bos_token_id"], config["eos_token_id"]
    generator = torch.Generator().manual_seed(SEED)
    stream = [
        token
        for index in torch.randperm(len(rows), generator=generator).tolist()
        for token in (bos, *rows[index], eos)
    ]
    torch.manual_seed(SEED)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**config))
    model.train()
    _learn(model, stream, generator, steps)
    model.eval()
    folder.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(folder)
    # After its own texts were encoded: what begins a text stands in the stream already.
    tokenizer.post_processor = processors.TemplateProcessing(single=f"{BOS} $A", special_tokens=[(BOS, bos)])
    tokenizer.save(str(folder / "tokenizer.json"))
    special = {"bos_token": BOS, "eos_token": EOS, "tokenizer_class": "PreTrainedTokenizerFast"}
    (folder / "tokenizer_config.json").write_text(json.dumps(special), encoding="utf-8")
    for name, sentences in ((JUDGED, corpus.judged), (QUANTIZED_BY, corpus.calibration)):
        (folder / name).write_text(" ".join(sentences), encoding="utf-8")
    return Trained(_perplexity(model, judged, bos, eos), hash_file(folder / "model.safetensors"))


def _learn(model: PreTrainedModel, stream: Sequence[int], generator: torch.Generator, steps: int) -> None:
    import torch
    from torch.nn import functional

    tokens = torch.tensor(stream)
    length, batch, highest = model.config.max_position_embeddings, 8, 1e-2
    # Without fused it takes MKL's square root, which is not the same on all processors.
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=highest, betas=(0.9, 0.95), weight_decay=0.1, fused=True
    )
    for step in range(steps):
        rate = highest * min(1, (step + 1) / 50) * (0.1 + 0.45 * (1 + math.cos(math.pi * step / steps)))
        for group in optimizer.param_groups:
            group["lr"] = rate
        starts = torch.randint(0, len(tokens) - length, (batch,), generator=generator).tolist()
        optimizer.zero_grad()
        # A batch at once rounds otherwise, and the page's figures are of this model.
        for half in (starts[::2], starts[1::2]):
            window = torch.stack([tokens[start : start + length] for start in half])
            logits = model(window[:, :-1]).logits
            functional.cross_entropy(logits.flatten(0, 1), window[:, 1:].flatten()).backward()
        for parameter in model.parameters():
            parameter.grad /= 2
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()


def _tokenizer(sentences: Sequence[str], words: int) -> Any:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(
        vocab_size=words, special_tokens=[BOS, EOS], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(sentences, trainer)
    if tokenizer.get_vocab_size() != words:
        raise CheckFailed(f"the text gives {tokenizer.get_vocab_size()} words, not {words}")
    return tokenizer


def _perplexity(model: PreTrainedModel, rows: Sequence[Sequence[int]], bos: int, eos: int) -> float:
    import torch
    from torch.nn import functional

    lost, count = 0.0, 0
    with torch.no_grad():
        for row in rows:
            tokens = torch.tensor([bos, *row, eos])
            lost += float(
                functional.cross_entropy(model(tokens[None, :-1]).logits[0], tokens[1:], reduction="sum")
            )
            count += len(tokens) - 1
    return math.exp(lost / count)
