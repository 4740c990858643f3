"""manifests/flags.json: each flag with its value, its help, its field in a suite, and the verbs that take it.

A verb that meets a flag of another one names that verb."""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

from ci.__main__ import VERBS as CI
from ci.model_commands.typed_model import kinds_of
from ci.suite.lane_head import COMPILE
from lab.generate.commands_page import TASKS
from provisioning.__main__ import VERBS as PROVISIONING
from provisioning.base.command_line import module_of
from provisioning.base.commands import OF_CLONE
from provisioning.base.flags_of_verbs import OF_ALL
from provisioning.base.option_fields import declared_options
from provisioning.base.parser import Parser


def text() -> str:
    """Return the table, a flag a line; verbs are in the order of the page of all commands."""
    fields = {
        option.flag: option.suite
        for kind in kinds_of(COMPILE).values()
        for option in declared_options(kind).values()
    }
    verbs_by_help: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    values: dict[str, str] = {}
    for parser in _parsers():
        for action in parser._actions:
            for flag in action.option_strings:
                if flag not in OF_ALL:
                    verbs_by_help[flag][_help_of(parser, action)].append(parser.prog)
                    values.setdefault(flag, _value_of(action))
    rows: dict[str, dict[str, Any]] = {
        flag: {"value": values[flag], "field": fields.get(flag, ""), "verbs_by_help": verbs}
        for flag, verbs in verbs_by_help.items()
    }
    lines = [f"{json.dumps(flag)}: {json.dumps(row, ensure_ascii=False)}" for flag, row in rows.items()]
    return "{\n" + ",\n".join(lines) + "\n}\n"


def _parsers() -> Iterator[argparse.ArgumentParser]:
    verbs = {**CI, **PROVISIONING}
    for name in (name for names in TASKS.values() for name in names if name not in OF_CLONE):
        parser = Parser(prog=name)
        module_of(verbs[name]).configure(parser)
        yield parser
        for action in parser._actions:
            if isinstance(action, argparse._SubParsersAction):
                yield from action.choices.values()


def _help_of(parser: argparse.ArgumentParser, action: argparse.Action) -> str:
    return parser._get_formatter()._expand_help(action) if action.help else ""


def _value_of(action: argparse.Action) -> str:
    if action.nargs == 0:
        return ""
    return str(action.metavar or "|".join(map(str, action.choices or ())) or action.dest.upper())
