"""Prompt files for the tests of the inbox, and a target that answers them at once."""

import gzip
import json
from pathlib import Path


def write(path: Path, *ids: str, text: str = "Say {}.") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps({"id": i, "prompt": text.format(i)}) + "\n" for i in ids))
    return path


class Target:
    """Answers, and notes which ids it was asked for; what it says to `garbled` ids can't be read, and is left out."""

    def __init__(self, *garbled: str) -> None:
        self.asked: list[list[str]] = []
        self.garbled = garbled

    def __call__(self, prompts: Path, out: Path) -> None:
        rows = [json.loads(line) for line in prompts.read_text().splitlines()]
        self.asked.append([row["id"] for row in rows])
        told = [row for row in rows if row["id"] not in self.garbled]
        answered = [row | {"messages": [*row["messages"], {"role": "assistant", "content": "Yes."}]} for row in told]
        out.write_bytes(gzip.compress("".join(json.dumps(row) + "\n" for row in answered).encode()))
        out.with_name(f"{out.name}.manifest.json").write_text("{}")
