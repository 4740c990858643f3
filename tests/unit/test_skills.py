"""What skills/ tells an agent to type is what our commands take."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import yaml

from ci.__main__ import VERBS as OF_CI
from provisioning.__main__ import VERBS as OF_PROVISIONING
from provisioning.base.command_line import module_of
from provisioning.base.settings import ROOT
from tests.support.typed import parsed

SKILLS = sorted((ROOT / "skills").glob("*/SKILL.md"))
VERBS = {**OF_CI, **OF_PROVISIONING}


COMMAND = re.compile(r"^\$ (?P<shown>qnn-ci .+)$|`(?P<inline>qnn-ci [^`]+)`", re.M)


def commands(skill: Path) -> list[str]:
    found = COMMAND.finditer(skill.read_text(encoding="utf-8"))
    return [match["shown"] or match["inline"] for match in found]


@pytest.mark.parametrize("skill", SKILLS, ids=lambda skill: skill.parent.name)
def test_each_command_of_a_skill_is_taken(skill: Path) -> None:
    assert len(commands(skill)) > 5
    for command in commands(skill):
        _, verb, *arguments = shlex.split(command)
        assert parsed(module_of(VERBS[verb]), *(word for word in arguments if word != "--json")), command


@pytest.mark.parametrize("skill", SKILLS, ids=lambda skill: skill.parent.name)
def test_a_skill_says_its_name_and_when_to_use_it(skill: Path) -> None:
    _, head, _ = skill.read_text(encoding="utf-8").split("---\n", 2)
    about = yaml.safe_load(head)
    assert about["name"] == skill.parent.name and "Use" in about["description"]
