"""Races a training thread with saves: a writer that saves by reference is torn, ours is not, and the digests tell them apart.

    python benchmarks/torn_copy.py --n 10 --json torn.json

A trainer sets every weight to the number of its step, as fast as it can. One writer is given the live tensors at a boundary, as a
thread around `torch.save(model.state_dict())` would be; ours copies them there. A checkpoint is torn if it holds more than one
number. Where a tensor changed between the write of a chunk and its crc32, the load refuses it; else it verifies, and its digest is
not the one that a replay comes to at that step. Ours always verifies and has exactly that digest. Exit status 0 means that
this holds.
"""

import argparse
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from results import leave

from dflash_core.checkpoint.contents import Piece, Share
from dflash_core.checkpoint.digests import tensors_digest
from dflash_core.checkpoint.manifest import read_manifest
from dflash_core.checkpoint.share_files import read_contents
from dflash_core.checkpoint.staging import HostBuffers
from dflash_core.checkpoint.store import CheckpointStore, Writing
from dflash_core.checkpoint.writer import BackgroundWriter
from dflash_core.errors import CheckpointError

TENSORS, NUMBERS = 12, 1 << 20  # 50 MB
WRITING = Writing({}, "0123abcd")


class Trainer:
    """Weights that an update sets to its step's number, one tensor after the other."""

    def __init__(self) -> None:
        self.live = {f"w{n}": torch.zeros(NUMBERS) for n in range(TENSORS)}
        self.step = 0

    def update(self) -> None:
        self.step += 1
        for tensor in self.live.values():
            tensor.fill_(self.step)

    def share(self) -> Share:
        return Share(self.step, {name: Piece.whole(tensor) for name, tensor in self.live.items()}, {}, {"step": self.step})

    def digest_at(self, step: int) -> str:
        """What a replay comes to."""
        return tensors_digest({name: torch.full_like(tensor, step) for name, tensor in self.live.items()})


def main(arguments: list[str] | None = None) -> int:
    """Run the races; see the module's text."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--n", type=int, default=10, help="saves of each writer")
    parser.add_argument("--seed", type=int, default=0, help="not used: the race has no seed")
    parser.add_argument("--json", type=Path, help="file to write; default: print it")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="torn-copy-") as directory:
        naive = race(Path(directory) / "naive", options.n, staged=False)
        ours = race(Path(directory) / "ours", options.n, staged=True)
    result = {"n": options.n, "by_reference": naive, "ours": ours}
    caught = naive["refused_at_load"] + naive["verifies_with_a_wrong_digest"]
    result["holds"] = 0 < naive["torn"] <= caught and ours["torn"] == 0 and ours["digest_of_the_step"] == options.n
    return leave(result, options.json, result["holds"])


def race(root: Path, n: int, staged: bool) -> dict[str, Any]:
    """Save `n` times while updates go on."""
    store, trainer, buffers, writer = CheckpointStore(root), Trainer(), HostBuffers(), BackgroundWriter()
    figures = dict.fromkeys(("torn", "refused_at_load", "verifies_with_a_wrong_digest", "digest_of_the_step", "updates_beside_the_writes"), 0)
    for _ in range(n):
        trainer.update()
        share = trainer.share()
        share = buffers.stage(share) if staged else share
        writer.start(lambda share=share: store.write(share, WRITING))
        while writer.busy:
            trainer.update()
            time.sleep(0)
        committed = writer.result()
        figures["updates_beside_the_writes"] += trainer.step - share.step
        weights = read_contents(committed.path, read_manifest(committed.path)).weights
        figures["torn"] += len({float(value) for tensor in weights.values() for value in tensor.unique()}) > 1
        right = committed.weights_digest == trainer.digest_at(share.step)
        try:
            store.load(committed.name)
            figures["digest_of_the_step" if right else "verifies_with_a_wrong_digest"] += 1
        except CheckpointError:
            figures["refused_at_load"] += 1
    return figures


if __name__ == "__main__":
    sys.exit(main())
