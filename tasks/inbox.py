"""New prompt files of an inbox become conversations that stay: each prompt is asked once, and each state is versioned.

COLLECTED/PROFILE/conversations holds one file for each batch of new prompts, and conversations.dvc, the pointer that brings
them all back from DVC's cache. A batch is answered in `answering`, beside it, and brought in when it is whole. A file that was
taken in moves to INBOX/taken, last of all, so that a kill at any moment loses nothing and nothing is answered twice.
"""

import contextlib
import fcntl
import gzip
import hashlib
import os
import shutil
import sys
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from prefect import get_run_logger, task
from prefect.cache_policies import NO_CACHE

from dflash_core.errors import ConfigError, DataError
from dflash_core.target.new_prompts import batch_name, unanswered, write_prompts
from dflash_core.target.prompts import Prompt, read_prompts
from tasks import dvc_stages
from tasks.launch import Supervised, stage_environment
from tasks.publication import Publication
from tasks.pull import from_cache
from tasks.workspace import PROJECT, configuration_of

COLLECTED = PROJECT / "collected"
CONVERSATIONS, ANSWERING, STORED = "conversations", "answering", "stored.txt"
MANIFEST_ENDING = ".gz.manifest.json"
NAME_BYTES = 255  # of a file, on Linux
Answer = Callable[[Path, Path], None]


@task(cache_policy=NO_CACHE, task_run_name="take in")
def take_in(profile: str, inbox: str, max_new_tokens: int, overrides: Mapping[str, Any] | None = None) -> list[str]:
    """Answer the inbox's new prompts by the target of the profile with its overrides; gives all conversation files, the profile's own first."""
    if other := sorted(key for key in overrides or {} if key.partition(".")[0] == "target"):
        raise ConfigError(f"overrides have {other}, but collected/ holds the answers of the profile's own target. Make a profile of another name.")
    name, config = configuration_of(profile, overrides)

    def answer(prompts: Path, out: Path) -> None:
        command = [sys.executable, "-m", "dflash_core", "regenerate", str(prompts), "--target", config.target.path, "--out", str(out)]
        Supervised(
            "regenerate",
            [*command, "--dtype", config.target.dtype, "--max-new-tokens", str(max_new_tokens)],
            log_file=out.parent.parent / "regenerate.log",
            cwd=PROJECT,
            logger=get_run_logger(),
            environment=stage_environment(PROJECT),
        ).run()

    own = [Path(path) for path in config.data.conversations]
    return [str(path) for path in collect(PROJECT / inbox, COLLECTED / name, own, answer)]


@contextlib.contextmanager
def one_at_a_time(profile: str) -> Iterator[None]:
    """Wait for another nightly run of the profile, on another node: both would answer, and train on, the same prompts. Ends with the process."""
    place = COLLECTED / configuration_of(profile)[0]
    place.mkdir(parents=True, exist_ok=True)
    with (place / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def collect(inbox: Path, place: Path, own: Sequence[Path], answer: Answer, cache: Path = PROJECT / ".dvc/cache") -> list[Path]:
    """Answer what is new in `inbox` into `place` and version it; gives `own` and all collected files.

    Raises:
        ConfigError: the inbox is a file.
        DataError: a line of the inbox can't be read, gives another text to a known id, or has a text in two splits; nothing is then
            taken in.
    """
    conversations = _conversations(place, cache)
    _bring_in(place)
    waiting = {path: _md5(path) for path in _prompt_files(inbox)}
    new = unanswered(waiting, [*own, *_collected(conversations)], _asked(place))
    for prompts in _batches(place / ANSWERING, new):
        answer(prompts, prompts.with_name(f"{prompts.name}.gz"))
        _bring_in(place)
    shutil.rmtree(place / ANSWERING, ignore_errors=True)
    _version(place)
    for path, digest in waiting.items():
        (inbox / "taken").mkdir(exist_ok=True)
        if path.is_file() and _md5(path) == digest:  # else it has come while the target answered, and waits for the next run
            os.replace(path, inbox / "taken" / _taken_name(path, digest))
    return [*own, *_collected(conversations)]


def _conversations(place: Path, cache: Path) -> Path:
    """The directory; where it is gone, as its version names it, since to take a batch back is to remove files and not all.

    Raises:
        DataError: neither DVC's cache nor its remote has the whole of it, or a lost node has left the pointer in part.
    """
    conversations, pointer, partial = place / CONVERSATIONS, place / f"{CONVERSATIONS}.dvc", place / f".{CONVERSATIONS}"
    place.mkdir(parents=True, exist_ok=True)
    dvc_stages.init_repository(place, cache)
    if pointer.exists() and not conversations.exists():
        shutil.rmtree(partial, ignore_errors=True)
        if (version := _version_in(pointer)) is None:
            raise DataError(
                f"{pointer} is cut short, at {pointer.stat().st_size} bytes, and {conversations} is gone. Bring that directory back from a copy, "
                f"or remove the pointer to begin anew, and move {place}/*.jsonl into the inbox to have all answered again."
            )
        os.replace(from_cache(version, cache, partial), conversations)
    conversations.mkdir(exist_ok=True)
    return conversations


def _version_in(pointer: Path) -> str | None:
    """None where DVC was killed, or its node lost, while it wrote the pointer: the path is its last line."""
    with contextlib.suppress(yaml.YAMLError, ValueError, LookupError, TypeError):
        (output,) = yaml.safe_load(pointer.read_bytes())["outs"]
        return output["md5"] if output["path"] == CONVERSATIONS else None
    return None


def _batches(answering: Path, new: Sequence[Prompt]) -> list[Path]:
    """Prompt files to be answered: those that a killed run had begun, if all their prompts are wanted still, and one of the others."""
    left = {prompt.id: prompt for prompt in new}
    batches = []
    for path in sorted(answering.glob("*.jsonl")):
        begun = _read(path)
        if begun and all(left.get(prompt.id) == prompt for prompt in begun):
            batches.append(path)
            for prompt in begun:
                del left[prompt.id]
    if left:
        answering.mkdir(exist_ok=True)
        batches.append(answering / f"{batch_name([*left.values()])}.jsonl")
        write_prompts(batches[-1], [*left.values()])
    return batches


def _read(path: Path) -> list[Prompt]:
    """Its prompts; none where a lost node has left the file empty or in part."""
    with contextlib.suppress(DataError):
        prompts = list(read_prompts(path))
        return prompts if batch_name(prompts) == path.stem else []
    return []


def _bring_in(place: Path) -> None:
    """Move the whole batches: the target writes the manifest last. It also moves last, so what a kill cuts short goes on here."""
    for manifest in sorted((place / ANSWERING).glob(f"*{MANIFEST_ENDING}")):
        prompts = manifest.name.removesuffix(MANIFEST_ENDING)
        for name, to in ((prompts, place), (f"{prompts}.gz", place / CONVERSATIONS), (manifest.name, place / CONVERSATIONS)):
            if (file := manifest.with_name(name)).exists():
                os.replace(file, to / name)


def _version(place: Path) -> None:
    """Version the conversations as they are, also where a batch was taken back. Without a change DVC takes a tenth of a second for it.

    A note says what has been stored in which remote, which isn't asked each night: it may be slow, or away.
    """
    note, pointer = place / STORED, place / f"{CONVERSATIONS}.dvc"
    if not any((place / CONVERSATIONS).iterdir()) and not pointer.exists():
        return
    if pointer.exists() and _version_in(pointer) is None:
        pointer.unlink()  # DVC refuses it
    stored = f"{dvc_stages.add_output(place, CONVERSATIONS)} {dvc_stages.remote_url(PROJECT)}"
    if (not note.exists() or note.read_text(encoding="utf-8") != stored) and dvc_stages.push(place, PROJECT) is not None:
        note.write_text(stored, encoding="utf-8")


def _prompt_files(inbox: Path) -> list[Path]:
    """What is whole by its name: a copy that goes on is .a.jsonl.x7Qd to rsync, a.jsonl.part to a browser.

    Raises:
        ConfigError: the inbox is a file. One that isn't there is as good as empty: nobody has put anything in yet.
    """
    if inbox.exists() and not inbox.is_dir():
        raise ConfigError(f"{inbox} is a file, expected a directory of prompt files. Correct the inbox.")
    found = [*inbox.glob("*.jsonl"), *inbox.glob("*.jsonl.gz")]
    return sorted(path for path in found if path.is_file() and not path.name.startswith("."))


def _taken_name(path: Path, digest: str) -> str:
    """Unlike that of another file of the name; the end of the name where there is no room for all, without what isn't UTF-8."""
    before = f"{digest[:8]}-"
    return before + os.fsencode(path.name)[len(before) - NAME_BYTES :].decode(errors="ignore")


def is_new_data(directory: Path, line: str, files: Sequence[str]) -> bool:
    """Whether the last completed run of the line was made from other conversations than these: one is new, changed or gone."""
    publication = Publication.read(directory, line)
    return publication is None or publication.conversations() != {file: _md5(Path(file)) for file in files}


def _asked(place: Path) -> list[Path]:
    """Prompts of the batches that are there and done, which their manifest says: the answers hold fewer where some could not be read."""
    answers = {path.name for path in (place / CONVERSATIONS).iterdir()}
    return [batch for batch in sorted(place.glob("*.jsonl")) if {f"{batch.name}.gz", f"{batch.name}.gz.manifest.json"} <= answers]


def _collected(conversations: Path) -> list[Path]:
    """All but batches of which no answer could be read: a conversation file has at least one row."""
    return [path for path in sorted(conversations.glob("*.jsonl.gz")) if _has_content(path)]


def _has_content(path: Path) -> bool:
    try:
        with gzip.open(path) as file:
            return bool(file.read(1))
    except (OSError, EOFError, zlib.error):
        return True  # a damaged file: its reader says what is wrong with it


def _md5(path: Path) -> str:
    """DVC's own hash of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "md5").hexdigest()
