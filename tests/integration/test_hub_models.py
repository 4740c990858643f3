"""A factory that loads a model from the Hub's cache, offline, with transformers' own loader."""

from __future__ import annotations

import hashlib
import os
import shutil
from pathlib import Path

import pytest

from tests.support.lowering_suites import Done, environment, run

pytestmark = [pytest.mark.whole, pytest.mark.heavy, pytest.mark.timeout(900)]

NET = """\
import torch
from transformers import AutoModel

class Last(torch.nn.Module):
    def __init__(self, bert):
        super().__init__()
        self.bert = bert

    def forward(self, embedded):
        return self.bert(inputs_embeds=embedded).last_hidden_state

def make():
    bert = AutoModel.from_pretrained("acme/tiny-bert", attn_implementation="eager")
    return Last(bert).eval(), lambda generator: (torch.rand(1, 8, 32, generator=generator),)
"""
SUITE = """\
schema = 2
[case.bert]
factory = "net:make"
[[case.bert.run]]
lane = "executorch"
precision = "fp16"
socs = ["SM8650"]
"""
COMMIT = "0123456789abcdef0123456789abcdef01234567"


def publish(home: Path, seed: int) -> None:
    """A small model in the layout of the Hub's cache: snapshots are links to blobs named by their content."""
    import torch
    from transformers import BertConfig, BertModel

    torch.manual_seed(seed)
    config = BertConfig(
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=64,
        vocab_size=50,
        max_position_embeddings=32,
    )
    model = home / "hub" / "models--acme--tiny-bert"
    snapshot = model / "snapshots" / COMMIT
    for folder in (snapshot, model / "refs", model / "blobs"):
        folder.mkdir(parents=True, exist_ok=True)
    (model / "refs" / "main").write_text(COMMIT)
    saved = home / "saved"
    BertModel(config).save_pretrained(saved)
    for file in saved.iterdir():
        blob = model / "blobs" / hashlib.sha256(file.read_bytes()).hexdigest()
        file.replace(blob)
        link = snapshot / file.name
        link.unlink(missing_ok=True)
        link.symlink_to(os.path.relpath(blob, snapshot))


def test_it_is_cached_wherever_the_hubs_cache_is_until_the_model_changes(tmp_path: Path) -> None:
    models, here, there = (tmp_path / name for name in ("models", "here", "there"))
    models.mkdir()
    (models / "net.py").write_text(NET)
    (models / "suite.toml").write_text(SUITE)

    def done(home: Path) -> Done:
        environ = environment(HF_HOME=str(home), HF_HUB_OFFLINE="1")
        return run("test_lowering", tmp_path, "--suite", models / "suite.toml", environ=environ)

    publish(here, 0)
    first = done(here)
    assert first.code == 0, first.out + first.err
    shutil.copytree(here, there, symlinks=True)
    assert done(there).cached() == {"bert"}
    publish(here, 1)
    assert done(here).cached() == set()
