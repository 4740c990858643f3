"""The table of an agent's tools is what its page promises."""

from __future__ import annotations

import re
import shlex

from ci.__main__ import VERBS as OF_CI
from ci.agents.tools import TOOLS
from provisioning.__main__ import VERBS as OF_PROVISIONING
from provisioning.base.settings import ROOT


def test_the_page_names_every_tool_and_no_other() -> None:
    page = (ROOT / "docs/model.md").read_text(encoding="utf-8")
    sentence = re.search(r"Its tools are ([^;]+);", page)
    assert sentence and re.findall("`([^`]+)`", sentence[1]) == [tool.name for tool in TOOLS]


def test_every_tool_is_a_verb_and_its_example_types_it() -> None:
    for tool in TOOLS:
        assert tool.verb in {*OF_CI, *OF_PROVISIONING}
        assert shlex.split(tool.example)[:2] == ["qnn-ci", tool.verb]
