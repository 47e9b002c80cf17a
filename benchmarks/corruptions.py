"""Damages committed checkpoints at random and loads them: every damage must be found, told, and walked back from.

    python benchmarks/corruptions.py --n 200 --seed 0 --json corruptions.json

A run of four checkpoints, saved whole by one process or in shards by three ranks. Each trial damages the newest one or two: a
bit flipped in any file, a file cut short, missing, exchanged with another of the same checkpoint, or replaced by that of
another step, or the manifest of another step put in. Half of the trials load with the digests that a log repeats. What is
loaded must be the newest sound checkpoint, equal to what was saved, with a reason for each that was passed over. Exit
status 0 means that this holds for all.
"""

import argparse
import random
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from results import leave

from dflash_core.checkpoint.contents import Contents, Share, cut
from dflash_core.checkpoint.manifest import MANIFEST
from dflash_core.checkpoint.store import CheckpointStore, Committed, Writing

STEPS = (10, 20, 30, 40)
RANKS = 3

Damage = Callable[[random.Random, Path, Path], str]  # of a checkpoint, with another step's beside it; gives what it did


def flip(draw: random.Random, path: Path, other: Path) -> str:
    """One bit of one file."""
    file = draw.choice(sorted(path.iterdir()))
    raw = bytearray(file.read_bytes())
    place, bit = draw.randrange(len(raw)), draw.randrange(8)
    raw[place] ^= 1 << bit
    file.write_bytes(raw)
    return f"bit {bit} of byte {place} of {file.name}"


def truncate(draw: random.Random, path: Path, other: Path) -> str:
    """The rest of a file is lost."""
    file = draw.choice(sorted(path.iterdir()))
    kept = draw.randrange(file.stat().st_size)
    file.write_bytes(file.read_bytes()[:kept])
    return f"{file.name} cut to {kept} bytes"


def remove(draw: random.Random, path: Path, other: Path) -> str:
    """A file is gone."""
    file = draw.choice(sorted(path.iterdir()))
    file.unlink()
    return f"{file.name} removed"


def exchange(draw: random.Random, path: Path, other: Path) -> str:
    """Two files have each other's names."""
    one, two = draw.sample(sorted(path.iterdir()), 2)
    first, second = one.read_bytes(), two.read_bytes()
    one.write_bytes(second)
    two.write_bytes(first)
    return f"{one.name} and {two.name} exchanged"


def stale_manifest(draw: random.Random, path: Path, other: Path) -> str:
    """The manifest of another step."""
    shutil.copy(other / MANIFEST, path / MANIFEST)
    return f"manifest of {other.name}"


def other_step(draw: random.Random, path: Path, other: Path) -> str:
    """One file, or all of them, of another step."""
    names = sorted(file.name for file in path.iterdir() if file.name != MANIFEST)
    chosen = [draw.choice(names)] if draw.random() < 0.7 else sorted(file.name for file in path.iterdir())
    for name in chosen:
        shutil.copy(other / name, path / name)
    return f"{', '.join(chosen)} of {other.name}"


DAMAGES: tuple[Damage, ...] = (flip, truncate, remove, exchange, stale_manifest, other_step)


def main(arguments: list[str] | None = None) -> int:
    """Run the campaign; see the module's text."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--n", type=int, default=200, help="trials")
    parser.add_argument("--seed", type=int, default=0, help="of the damages")
    parser.add_argument("--json", type=Path, help="file to write; default: print it")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="corruptions-") as directory:
        result = campaign(Path(directory), options.n, options.seed)
    return leave(result, options.json, result["holds"])


def campaign(directory: Path, n: int, seed: int) -> dict[str, Any]:
    """All trials."""
    draw = random.Random(seed)
    sound = {way: save_run(directory / way, way) for way in ("whole", "sharded")}
    found: Counter[str] = Counter()
    missed, reasons = [], {}
    for number in range(n):
        damage, way = DAMAGES[number % len(DAMAGES)], draw.choice(list(sound))
        done, told, right = trial(directory, directory / way, sound[way], damage, draw)
        found[damage.__name__] += right
        reasons.setdefault(damage.__name__, told)
        if not right:
            missed.append({"way": way, "damage": done, "told": told})
    return {
        "trials": n,
        "seed": seed,
        "found_by_damage": dict(found),
        "first_reason_by_damage": reasons,
        "missed": missed,
        "holds": not missed,
    }


def trial(directory: Path, base: Path, saved: dict[str, Committed], damage: Damage, draw: random.Random) -> tuple[list[str], list[str], bool]:
    """Damage a copy and load it; gives what was done, what was told, and whether it is as it should be."""
    place = directory / "trial"
    shutil.copytree(base, place)
    store = CheckpointStore(place)
    names = store.names()
    done = []
    for name in names[-draw.choice((1, 1, 2)) :]:
        unlike = name
        while unlike == name:
            unlike = draw.choice(names)
        done.append(f"{name}: {damage(draw, place / name, base / unlike)}")
    logged = {name: committed.digest for name, committed in saved.items()} if draw.random() < 0.5 else None
    loaded = store.load_newest(logged)
    expected = names[-1 - len(done)]
    right = loaded.committed.name == expected and len(loaded.skipped) == len(done) and equal(loaded.contents, contents(loaded.committed.step))
    shutil.rmtree(place)
    return done, list(loaded.skipped), right


def save_run(root: Path, way: str) -> dict[str, Committed]:
    """The checkpoints of a run by name."""
    store = CheckpointStore(root)
    saved = [store.save(contents(step)) if way == "whole" else save_shards(store, contents(step)) for step in STEPS]
    return {committed.name: committed for committed in saved}


def contents(step: int) -> Contents:
    """A small state that only this step has; its shapes are those of all."""
    generator = torch.Generator().manual_seed(step)
    weights = {f"layers.{n}.weight": torch.randn(12, 7, generator=generator) for n in range(4)}
    moments = {f"{name}.{key}": torch.randn(12, 7, generator=generator) for name in weights for key in ("exp_avg", "exp_avg_sq")}
    return Contents(step, weights, moments, {"step": step, "next_sample": 3 * step, "generators": {"python": [step]}})


def save_shards(store: CheckpointStore, whole: Contents) -> Committed:
    """As ranks with a third of the rows each."""
    starts = tuple(range(0, 12, 12 // RANKS))
    cuts = [{name: list(cut(tensor, starts)) for name, tensor in part.items()} for part in (whole.weights, whole.moments)]
    writing = Writing({}, "0123abcd")
    for index in reversed(range(RANKS)):
        weights, moments = ({name: pieces[index] for name, pieces in part.items()} for part in cuts)
        committed = store.write(Share(whole.step, weights, moments, whole.state, index, RANKS), writing)
    return committed


def equal(a: Contents, b: Contents) -> bool:
    """Bit for bit."""
    parts = ((a.weights, b.weights), (a.moments, b.moments))
    return dict(a.state) == dict(b.state) and all(x.keys() == y.keys() and all(torch.equal(x[k], y[k]) for k in x) for x, y in parts)


if __name__ == "__main__":
    sys.exit(main())
