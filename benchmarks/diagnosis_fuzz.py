"""Diagnoses malformed and random files: each must end with exit 0, 2 or 3, never with a fault of ours.

    python benchmarks/diagnosis_fuzz.py --n 10000 --processes 100 --seed 0

Files are random bytes, random tables, and sound logs of each form that were cut, flipped, shuffled, doubled, or had numbers
replaced by hostile ones. Most run in this process through the stage, with the report drawn; some as processes of their own.
"""

import argparse
import json
import random
import subprocess
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from dflash_core.errors import DflashError
from dflash_core.stages.diagnose import run

HOSTILE = (
    *("NaN", "-Infinity", "1e400", "-1e308", "1e308", "1e-320", "0", "-0.0", "null", '""', "[]", "{}", "true", "9" * 400, '"12,3"', "1_000"),
    *('"nan"', "0x10", "--1", "\x00", '{"a": {"b": {"c": {"d": {"e": 1}}}}}', "[1, [2]]", '"\\ud800"', "18446744073709551616"),
)
NAMES = ("step", "loss", "lr", "grad_norm", "epoch", "val_loss", "acc", "queue_depth", "tok_per_s", "tokens", "kind", "run_id", "x", "")


def sound(random: random.Random) -> str:
    """A log in one of the forms, of a few to some hundred rows."""
    n = random.choice([1, 2, 5, 12, 40, 150])
    rows = [
        {"step": i * 10, "loss": round(3 - i / n + random.gauss(0, 0.05), 4), "lr": 1e-4, "grad_norm": abs(random.gauss(1, 0.2)), "acc": i / n, "val_loss": 3.1}
        for i in range(n)
    ]
    form = random.randrange(6)
    if form == 0:
        return "".join(json.dumps(r) + "\n" for r in rows)
    if form == 1:
        return json.dumps({"log_history": rows, "max_steps": n * 10, "save_steps": random.choice([0, 10, -1, 50])}, indent=random.choice([None, 1]))
    if form == 2:
        return ",".join(rows[0]) + "\n" + "".join(",".join(map(str, r.values())) + "\n" for r in rows)
    if form == 3:
        return "".join(f"iter {r['step']}: loss {r['loss']}, lr {r['lr']}, time 9.1ms\n" for r in rows)
    if form == 4:
        return "".join(f" iteration {r['step']}/ 500 | lm loss: {r['loss']:.5E} | grad norm: {r['grad_norm']} |\n" for r in rows)
    return json.dumps({name: [r[name] for r in rows] for name in rows[0]})


def wild(random: random.Random) -> bytes:
    """Bytes, or rows of random names and hostile values."""
    if random.random() < 0.3:
        return random.randbytes(random.choice([0, 1, 7, 100, 5000]))
    rows = random.choice([1, 3, 30, 100])
    if random.random() < 0.5:
        lines = ["{" + ", ".join(f'"{random.choice(NAMES)}": {_value(random)}' for _ in range(random.randint(0, 6))) + "}" for _ in range(rows)]
    else:
        width = random.randint(1, 6)
        lines = [",".join(random.choice(NAMES) for _ in range(width))]
        lines += [",".join(_value(random) for _ in range(width + (random.random() < 0.1))) for _ in range(rows)]
    return "\n".join(lines).encode("utf-8", "surrogatepass")


def _value(random: random.Random) -> str:
    return random.choice(HOSTILE) if random.random() < 0.4 else str(random.choice([random.randint(-5, 10**6), random.gauss(0, 10)]))


def mangled(random: random.Random) -> bytes:
    """A sound log with one to four injuries."""
    data = sound(random).encode()
    for _ in range(random.randint(1, 4)):
        data = random.choice(INJURIES)(data, random)
    return data


def _cut(data: bytes, random: random.Random) -> bytes:
    return data[: random.randint(0, len(data))]


def _flip(data: bytes, random: random.Random) -> bytes:
    out = bytearray(data)
    for _ in range(random.randint(1, 20)):
        if out:
            out[random.randrange(len(out))] = random.randrange(256)
    return bytes(out)


def _shuffle(data: bytes, random: random.Random) -> bytes:
    lines = data.split(b"\n")
    random.shuffle(lines)
    return b"\n".join(lines)


def _double(data: bytes, random: random.Random) -> bytes:
    lines = data.split(b"\n")
    place = random.randrange(len(lines))
    return b"\n".join(lines[: place + 1] + lines[random.randrange(len(lines)) :] + lines[place:])


def _number(data: bytes, random: random.Random) -> bytes:
    words = data.split(b" ")
    for _ in range(random.randint(1, 8)):
        words[random.randrange(len(words))] = random.choice(HOSTILE).encode("utf-8", "replace")
    return b" ".join(words)


def _digits(data: bytes, random: random.Random) -> bytes:
    lines = data.split(b"\n")
    for _ in range(random.randint(1, 6)):
        i = random.randrange(len(lines))
        lines[i] = lines[i].replace(random.choice(b"0123456789").to_bytes(), random.choice([b"", b"99999999", b"e", b"-", b"NaN"]))
    return b"\n".join(lines)


INJURIES: tuple[Callable[[bytes, random.Random], bytes], ...] = (_cut, _flip, _shuffle, _double, _number, _digits)


def one(path: Path, html: Path) -> int:
    """Exit code of the stage on a file; 1 for any error that isn't ours to raise."""
    try:
        return run(path, [], html.with_suffix(".json"), html, None)[1]
    except DflashError as error:
        return error.exit_code
    except Exception:  # noqa: BLE001 - any other error is what is looked for
        traceback.print_exc()
        return 1


def campaign(n: int, seed: int, keep: Path | None = None, processes: int = 0) -> Counter[int]:
    """Exit codes of n files; those that ended with 1 are kept."""
    codes: Counter[int] = Counter()
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "log"
        for i in range(n + processes):
            generator = random.Random(f"{seed} {i}")
            data = mangled(generator) if generator.random() < 0.7 else wild(generator)
            path.write_bytes(data)
            if i < n:
                code = one(path, Path(directory) / "page.html")
            else:
                command = [sys.executable, "-m", "dflash_core", "diagnose", str(path)]
                done = subprocess.run(command, capture_output=True, text=True, check=False)
                code = 1 if "Traceback" in done.stderr else done.returncode
            codes[code] += 1
            if code not in (0, 2, 3) and keep is not None:
                (keep / f"fuzz-{seed}-{i}").write_bytes(data)
    return codes


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--n", type=int, default=10_000)
    parser.add_argument("--processes", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", type=Path, help="directory for files that end with a fault")
    arguments = parser.parse_args()
    codes = campaign(arguments.n, arguments.seed, arguments.keep, arguments.processes)
    print(json.dumps({str(code): count for code, count in sorted(codes.items())}))
    return int(any(code not in (0, 2, 3) for code in codes))


if __name__ == "__main__":
    sys.exit(main())
