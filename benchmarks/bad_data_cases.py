"""The kinds of bad data of benchmarks/bad_data.py."""

import json
import random
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bad_data_damage import (
    BatchesTooLarge,
    BatchOfNoBucket,
    BatchTooShort,
    LostRow,
    RepeatedRow,
    appended,
    dealt_by,
    edit_json,
    flip_byte,
    prepared_rows,
    retokenized,
)

CYRILLIC = "река камень хлеб зима письмо сад окно серебро гора кухня свеча лес"
PLAN_MANIFEST = Path("build/plan/manifest.json")
MASK_ID = 505  # a spare row of the tiny target's embedding


@dataclass
class Trial:
    """The data set of one trial: rows that a case may change, settings, files that replace the one of rows."""

    rows: list[dict[str, Any]]
    settings: dict[str, dict[str, Any]] = field(default_factory=dict)
    texts: dict[str, bytes] = field(default_factory=dict)
    planted: list[str] = field(default_factory=list)

    @property
    def files(self) -> list[str]:
        """Conversation files, relative to the trial's directory."""
        return list(self.texts) or ["rows.jsonl"]

    def write(self) -> None:
        """The files."""
        for name, data in (self.texts or {"rows.jsonl": lines(self.rows)}).items():
            Path(name).write_bytes(data)

    def in_split(self, split: str, count: int) -> list[dict[str, Any]]:
        """Some rows of a split, the same ones each time."""
        return [row for row in self.rows if row["split"] == split][:count]


Plant = Callable[[Trial], list[str] | None]  # gives the ids of the rows that must be named


@dataclass(frozen=True)
class Case:
    """One kind. `also` are other expectations that the same fault breaks; `after` damages a stage's output, `patch` its code."""

    name: str
    expectation: str | None = None
    plant: Plant | None = None
    also: tuple[str, ...] = ()
    after: Mapping[str, Callable[[Trial], None]] = field(default_factory=dict)
    patch: Callable[[], AbstractContextManager[object]] | None = None


def lines(rows: list[Any]) -> bytes:
    """JSONL."""
    return "".join((row if isinstance(row, str) else json.dumps(row, ensure_ascii=False)) + "\n" for row in rows).encode()


def answer(row: dict[str, Any]) -> dict[str, Any]:
    """A row's last message."""
    return row["messages"][-1]


def ids(rows: list[dict[str, Any]]) -> list[str]:
    """Of these rows."""
    return [row["id"] for row in rows]


def changed(split: str, count: int, change: Callable[[dict[str, Any]], object]) -> Plant:
    """Plants by changing some rows of a split."""

    def plant(trial: Trial) -> list[str]:
        rows = trial.in_split(split, count)
        for row in rows:
            change(row)
        return ids(rows)

    return plant


def with_reference(plant: Callable[[Trial], list[str]], **settings: Any) -> Plant:
    """The data as they were become the reference."""

    def planted(trial: Trial) -> list[str]:
        categories: dict[str, int] = {}
        for row in trial.rows:
            categories[row["category"]] = categories.get(row["category"], 0) + 1
        profile = {"num_rows": len(trial.rows), "scripts": {"latin": len(trial.rows)}, "categories": categories}
        Path("reference.json").write_text(json.dumps(profile))
        trial.settings["data_gate"] = {"min_rows": 40, "reference": "reference.json"} | settings
        return plant(trial)

    return planted


def _broken_line(trial: Trial) -> list[str]:
    trial.texts["rows.jsonl"] = lines([*trial.rows, '{"id": "cut", "prompt": "a'])
    return [f"rows.jsonl line {len(trial.rows) + 1}"]


def _repeated_id(trial: Trial) -> list[str]:
    trial.rows[9]["id"] = trial.rows[5]["id"]
    return [trial.rows[5]["id"]]


def _copies(count: int, suffix: str) -> Plant:
    """New rows that nearly copy others of their split, with an id of their own and another question's first letter."""

    def plant(trial: Trial) -> list[str]:
        copies = []
        for number, row in enumerate(trial.in_split("train", count)):
            question, reply = (message["content"] for message in row["messages"])
            messages = [{"role": "user", "content": question}, {"role": "assistant", "content": f"{reply}{suffix}"}]
            copies.append(row | {"id": f"copy-{number}", "messages": messages})
        trial.rows += copies
        return ids(copies)

    return plant


def _asked_before(trial: Trial) -> list[str]:
    (training,), (heldout,) = trial.in_split("train", 1), trial.in_split("heldout", 1)
    heldout["messages"][0]["content"] = training["messages"][0]["content"].upper().replace(" ", "  ")
    return [heldout["id"]]


def _copied_to_heldout(trial: Trial) -> list[str]:
    (training,), (heldout,) = trial.in_split("train", 1), trial.in_split("heldout", 1)
    question, reply = (message["content"] for message in training["messages"])
    heldout["messages"] = [{"role": "user", "content": f"{question} Now!"}, {"role": "assistant", "content": reply}]
    return [heldout["id"]]


def _other_categories(trial: Trial) -> list[str]:
    for number, row in enumerate(row for row in trial.rows if row["category"] == "list"):
        row["category"] = ("story", "code")[number % 2]
    return ids([row for row in trial.rows if row["category"] in ("story", "code")])


def _few(trial: Trial) -> list[str]:
    del trial.rows[40:]
    return []


def _fewer_than_before(trial: Trial) -> list[str]:
    del trial.rows[56:]  # every category loses as much
    return []


def _cyrillic(row: dict[str, Any]) -> None:
    words = CYRILLIC.split()
    row["messages"][0]["content"] = f"{row['id']} {' '.join(reversed(words[:6]))}"
    answer(row)["content"] = " ".join(random.Random(row["id"]).choices(words, k=12))


def _long(row: dict[str, Any]) -> None:
    answer(row)["content"] += f" {row['id']} and so on" * 60


def _thin_rows(trial: Trial) -> list[str]:
    trial.settings["data_gate"] = {"min_coverage": 0.05}
    rows = trial.in_split("train", 12)
    for row in rows:
        row["messages"][0]["content"] += " ".join(f"{row['id']}-{n}" for n in range(20))
        answer(row)["content"] = "Yes."
    return ids(rows)


def _stand_in_files(trial: Trial) -> None:
    Path("rows.jsonl").write_bytes(lines(trial.rows[:-1]))


def _mask_id_set(trial: Trial) -> None:
    trial.settings["drafter"] = {"mask_token_id": MASK_ID}


ROUND_TRIP = ("round-trip",)


def tampered(name: str, expectation: str, change: Callable[[list[dict[str, Any]]], list[str]], *also: str, plant: Plant | None = None) -> Case:
    """A case whose prepared training rows are changed, under a manifest that agrees."""

    def damage(trial: Trial) -> None:
        trial.planted = prepared_rows(change)

    return Case(name, expectation, plant, also, {"prepare": damage})


REFUSED_BY_PREPARE = (
    Case("unknown role", "known-shape", changed("train", 1, lambda r: answer(r).update(role="wizard"))),
    Case("content that is no text", "known-shape", changed("train", 1, lambda r: answer(r).update(content=7))),
    Case("no answer key", "known-shape", changed("train", 2, lambda r: r.update(messages=None, prompt="only this"))),
    Case("broken JSON", "known-shape", _broken_line),
    Case("two user turns in a row", "turns-in-order", changed("train", 1, lambda r: r["messages"].insert(0, r["messages"][0]))),
    Case("user has the last word", "turns-in-order", changed("train", 2, lambda r: r["messages"].append(r["messages"][0]))),
    Case("repeated id", "unique-ids", _repeated_id),
)
CONVERSATIONS = (
    Case("empty question", "turns-hold-text", changed("train", 1, lambda r: r["messages"][0].update(content=""))),
    Case("blank system turn", "turns-hold-text", changed("heldout", 1, lambda r: r["messages"].insert(0, {"role": "system", "content": " \n"}))),
    Case("replacement characters", "readable-text", changed("train", 3, lambda r: answer(r).update(content=answer(r)["content"] + " caf\ufffd."))),
    Case("terminal control codes", "readable-text", changed("train", 2, lambda r: answer(r).update(content="\x1b[31m" + answer(r)["content"]))),
    Case("the same conversations again", "few-near-copies", _copies(8, "")),
    Case("near-copies", "few-near-copies", _copies(8, " Indeed.")),
    Case("held-out question asked in training", "no-leakage", _asked_before),
    Case("held-out near-copy of a training row", "no-leakage", _copied_to_heldout),
    Case("too few rows", "enough-rows", _few),
    Case("many control tokens", "few-dropped", changed("train", 6, lambda r: answer(r).update(content="x <|im_end|> y"))),
    Case(
        "many prompts that are too long",
        "few-dropped",
        changed("train", 6, lambda r: r["messages"][0].update(content=" ".join(f"{r['id']}.{n}" for n in range(99)))),
    ),
    Case("many cut answers", "few-truncated", changed("train", 30, _long)),
    Case("many thin rows", "mask-coverage", _thin_rows),
    Case("another script", "same-scripts", with_reference(changed("train", 15, _cyrillic))),
    Case("a new category", "same-categories", with_reference(changed("train", 15, lambda r: r.update(category="poem")))),
    Case("a lost category", "same-categories", with_reference(_other_categories)),
    Case("fewer rows than before", "enough-rows", with_reference(_fewer_than_before)),
    Case("another file than was prepared", "tokens-measured", None, ("plan-measured",), {"bucket": _stand_in_files}),
)
TOKENS = (
    tampered("token id past the vocabulary", "token-ids-in-range", retokenized(1, lambda r: r["input_ids"].__setitem__(5, 512)), *ROUND_TRIP),
    tampered("negative token id", "token-ids-from-0", retokenized(1, lambda r: r["input_ids"].__setitem__(5, -1)), *ROUND_TRIP),
    tampered("mask token in a row", "no-mask-token", retokenized(2, lambda r: r["input_ids"].__setitem__(5, MASK_ID)), *ROUND_TRIP, plant=_mask_id_set),
    tampered(
        "nothing supervised",
        "supervised-tokens",
        retokenized(1, lambda r: r.update(loss_mask=[False] * len(r["loss_mask"]))),
        "anchor-possible",
        *ROUND_TRIP,
    ),
    tampered(
        "all supervised", "prompt-not-supervised", retokenized(1, lambda r: r.update(loss_mask=[True] * len(r["loss_mask"]))), *ROUND_TRIP
    ),
    tampered("mask one token late", "round-trip", retokenized(3, lambda r: r.update(loss_mask=[False, *r["loss_mask"][:-1]]))),
    tampered("mask shorter than the row", "mask-length", retokenized(1, lambda r: r["loss_mask"].pop()), *ROUND_TRIP),
    tampered("tokens in another order", "round-trip", retokenized(1, lambda r: r["input_ids"].reverse())),
    tampered(
        "row past max_length",
        "row-length",
        retokenized(1, lambda r: r.update(input_ids=r["input_ids"] * 9, loss_mask=r["loss_mask"] * 9)),
        *ROUND_TRIP,
    ),
    tampered("row prepared twice", "prepared-once", appended(), "once-per-epoch"),
    tampered("row that is in no file", "prepared-from-these-files", appended(sample_id="stranger")),
    tampered(
        "no two supervised tokens in a row",
        "anchor-possible",
        retokenized(1, lambda r: r.update(loss_mask=[m and n % 2 == 0 for n, m in enumerate(r["loss_mask"])])),
        *ROUND_TRIP,
    ),
    Case("damaged file", "tokens-measured", None, ("plan-measured",), {"bucket": lambda trial: flip_byte(Path("build/prepared/train.parquet"))}),
)
PLAN = (
    Case("row lost by the plan", "none-left-out", lambda trial: ["row-003"], patch=dealt_by(LostRow)),
    Case("row dealt twice", "once-per-epoch", lambda trial: ["row-003"], ("none-left-out", "plan-size"), patch=dealt_by(RepeatedRow)),
    Case("batches past the limit", "batch-within-limit", lambda trial: ids(trial.in_split("train", 80)), patch=dealt_by(BatchesTooLarge)),
    Case("batch too short for its row", "row-fits-its-bucket", lambda trial: ["row-003"], ("batch-of-a-bucket",), patch=dealt_by(BatchTooShort)),
    Case("batch of no bucket", "batch-of-a-bucket", lambda trial: ["row-003"], patch=dealt_by(BatchOfNoBucket)),
    Case("plan of another seed", "plan-measured", after={"bucket": lambda trial: edit_json(PLAN_MANIFEST, seed=7)}),
    Case("plan with other statistics", "plan-measured", after={"bucket": lambda trial: edit_json(PLAN_MANIFEST, steps_per_epoch=9)}),
)
BAD = (*CONVERSATIONS, *TOKENS, *PLAN, *REFUSED_BY_PREPARE)
