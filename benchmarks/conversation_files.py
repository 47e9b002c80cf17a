"""Run conversation files through `prepare` and compare every masked text with the assistant's own.

    python benchmarks/conversation_files.py --target DIR FILE... [--max-length N]

Prints one line a file; exit 1 if a mask is wrong. Rows that the limit cut must give the start of their text.
"""

import argparse
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from dflash_core.config import parse_config
from dflash_core.data.buckets import padding_stats
from dflash_core.data.conversations import Conversation, read_conversations
from dflash_core.data.dataset import Dataset
from dflash_core.data.prepare import prepare
from dflash_core.data.template import load_tokenizer
from dflash_core.errors import DflashError


@dataclass(frozen=True)
class Outcome:
    """What became of one file's rows."""

    rows: int
    exact: int
    cut: int
    wrong: tuple[str, ...]
    dropped: dict[str, int]
    waste: float


def check_file(path: Path, target: str, max_length: int) -> Outcome:
    """Prepare one file into a temporary directory and compare its masks."""
    data = {"conversations": [str(path)], "heldout_fraction": 0.0, "max_length": max_length}
    config = parse_config({"target": {"path": target}, "data": data}, "arguments")
    with tempfile.TemporaryDirectory() as directory:
        manifest = prepare(config, Path(directory) / "prepared")
        dataset = Dataset.open(Path(directory) / "prepared", "train")
    tokenizer = load_tokenizer(target)
    conversations = {c.sample_id: c for c in read_conversations(path)}
    exact, cut, wrong = 0, 0, []
    for row in range(len(dataset)):
        sample = dataset.sample(row)
        found = tokenizer.decode(sample.input_ids[sample.loss_mask], clean_up_tokenization_spaces=False)
        expected = _expected(conversations[sample.sample_id], tokenizer.eos_token)
        if found == expected:
            exact += 1
        elif len(sample.input_ids) == max_length and expected.startswith(found.rstrip("\ufffd")):
            cut += 1  # the limit fell inside the answer, perhaps inside a character
        else:
            wrong.append(sample.sample_id)
    waste = padding_stats(dataset.lengths, config.bucket.multiple).waste
    return Outcome(len(conversations), exact, cut, tuple(wrong), manifest.dropped, waste)


def _expected(conversation: Conversation, end: str) -> str:
    answers = [turn.content for turn in conversation.turns if turn.role == "assistant"]
    return end.join(answers) + (end if conversation.finished else "")


def main() -> int:
    """Check every file named on the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--target", required=True, help="directory of the target; its tokenizer and template are used")
    parser.add_argument("--max-length", type=int, default=3072)
    arguments = parser.parse_args()
    failed = False
    print(f"{'file':40} {'rows':>6} {'exact':>6} {'cut':>5} {'wrong':>6} {'waste':>7}  dropped")
    for path in arguments.files:
        try:
            outcome = check_file(path, arguments.target, arguments.max_length)
        except DflashError as error:
            print(f"{path.name:40} {error}")
            failed = True
            continue
        counts = f"{outcome.rows:6} {outcome.exact:6} {outcome.cut:5} {len(outcome.wrong):6} {outcome.waste:7.1%}"
        print(f"{path.name:40} {counts}  {outcome.dropped or '-'} {' '.join(outcome.wrong[:5])}")
        failed |= bool(outcome.wrong)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
