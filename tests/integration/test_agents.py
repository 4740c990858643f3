"""What an agent gets: answers that lead to a program, and the same as tools of `qnn-ci mcp`."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from ci.agents.tools import BY_NAME
from provisioning.python_environments import PythonEnvironments, environments_folder
from tests.support.journeys import Stage, journeys
from tests.support.planted import FAULTS, Planted, followed, is_green, place
from tests.support.runner import runner_reports
from tests.support.typed import typed

__all__ = ["runner_reports"]
pytestmark = [pytest.mark.heavy, pytest.mark.timeout(1800)]

CLIENT = """\
import asyncio, json, os, sys
from mcp.client import Client
from mcp.client.stdio import StdioServerParameters, stdio_client

async def main():
    server = StdioServerParameters(command="qnn-ci", args=["mcp"], env=dict(os.environ))
    async with Client(stdio_client(server)) as client:
        tools = await client.list_tools()
        results = {}
        for key, (name, arguments) in json.loads(sys.argv[1]).items():
            done = await client.call_tool(name, arguments)
            results[key] = {"bad": done.is_error, "answer": done.structured_content}
        schemas = {each.name: each.input_schema for each in tools.tools}
        print(json.dumps({"tools": schemas, "results": results}))

asyncio.run(main())
"""
"""By the SDK's own client."""


@pytest.fixture(scope="module")
def variables(runner_reports: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    stage = Stage(tmp_path_factory, journeys())
    assert typed("provision", "--reports", stage.base, package="provisioning").returncode == 0
    return stage.variables


# The first answer to a wrong word is in each run: docs/model.md's row of tests/journeys.toml.
@pytest.mark.whole
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name.replace(" ", "-"))
def test_following_the_answers_leads_from_a_fault_to_a_program(
    fault: Planted, variables: dict[str, str], tmp_path: Path
) -> None:
    place(fault, tmp_path / "work")
    answers = followed(fault, tmp_path / "work", variables)
    first, last = answers[0], answers[-1]
    assert not is_green(first)
    told = [(answer["command"], answer["findings"], answer["next"]) for answer in answers]
    assert is_green(last), told
    assert Path(last["programs"][0]["files"][0]).is_file()


def test_tools_give_findings_with_evidence_and_what_is_next(
    variables: dict[str, str], tmp_path: Path
) -> None:
    calls = {
        "code": ("diagnose", {"inputs": ["14001"]}),
        "operator": ("operators", {"operators": ["log@16a4w"]}),
        "phone": ("chips", {"name": "Galaxy S25"}),
        "chip": ("compile", {"model": "net.py:make", "output": "out", "soc": "SM875O"}),
        "flag": ("compile", {"model": "--store=/", "output": "out"}),
        "lacking": ("compile", {"model": "net.py:make"}),
        "unknown": ("none", {}),
    }
    place(FAULTS[0], tmp_path / "work")
    python = PythonEnvironments(environments_folder(), print).interpreter("mcp")
    done = subprocess.run(
        [python, "-c", CLIENT, json.dumps(calls)],
        cwd=tmp_path / "work",
        env=variables,
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    answers = {key: result["answer"] for key, result in said["results"].items()}
    assert {*said["tools"]} == {*BY_NAME}
    assert "SM8" in answers["chip"]["next"] and answers["chip"]["outcome"] == "usage"
    assert answers["code"]["inputs"][0]["explanations"][0]["fix"]
    assert answers["phone"]["chips"]["SM8750"]["names"]["Galaxy S25"] == ["SM8750"]
    assert "log at 16a4w" in answers["operator"]["inputs"][0]["operators"][0]
    assert {key for key, result in said["results"].items() if result["bad"]} == {
        "chip",
        "flag",
        "lacking",
        "unknown",
    }
    assert "--store" in answers["flag"]["findings"][0]["message"], "a value is no flag"
