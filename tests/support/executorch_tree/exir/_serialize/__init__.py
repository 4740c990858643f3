from pathlib import Path


def schema() -> str:
    return Path(__file__).with_name("program.fbs").read_text(encoding="utf-8")
