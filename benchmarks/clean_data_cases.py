"""The clean variations of benchmarks/bad_data.py: unusual data that nothing is wrong with."""

import gzip
import json
from typing import Any

import pyarrow
import pyarrow.parquet
from bad_data_cases import MASK_ID, Case, Trial, answer, changed, lines, with_reference


def _set(section: str, **values: Any) -> Case:
    """A setting at another value."""
    text = ", ".join(f"{section}.{key} {value}" for key, value in values.items())
    return Case(text, plant=lambda trial: trial.settings.__setitem__(section, values))


def _for_all(name: str, change: Any) -> Case:
    return Case(name, plant=lambda trial: [None for row in trial.rows if change(row)])


def _share_gpt(trial: Trial) -> None:
    names = {"user": "human", "assistant": "gpt"}
    for row in trial.rows:
        row["conversations"] = [{"from": names[m["role"]], "value": m["content"]} for m in row.pop("messages")]


def _alpaca(trial: Trial) -> None:
    for row in trial.rows:
        question, reply = (message["content"] for message in row.pop("messages"))
        row |= {"instruction": question, "input": "", "output": reply}


def _parquet(trial: Trial) -> None:
    sink = pyarrow.BufferOutputStream()
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(trial.rows), sink)
    trial.texts["rows.parquet"] = sink.getvalue().to_pybytes()


def _several_turns(trial: Trial) -> None:
    for one, two in zip(trial.rows[:10], trial.rows[20:30], strict=True):
        one["messages"] = [{"role": "system", "content": "Be brief."}, *one["messages"], *two["messages"]]
    trial.settings["data"] = {"max_length": 640}


def _second_file(trial: Trial) -> None:
    trial.texts = {"a.jsonl": lines(trial.rows[:40]), "b.jsonl": lines(trial.rows[40:])}


def _later_version(trial: Trial) -> list[str]:
    trial.rows.reverse()
    for row in trial.rows[:4]:
        row["category"] = "poem"
    del trial.rows[-4:]
    return []


def _two_copies(trial: Trial) -> None:
    for number, row in enumerate(trial.rows[:2]):
        trial.rows.append(row | {"id": f"copy-{number}"})


CLEAN = (
    Case("as they are"),
    Case("reversed", plant=lambda trial: trial.rows.reverse()),
    Case("a JSON array", plant=lambda trial: trial.texts.update({"rows.json": json.dumps(trial.rows).encode()})),
    Case("gzipped", plant=lambda trial: trial.texts.update({"rows.jsonl.gz": gzip.compress(lines(trial.rows))})),
    Case("Parquet", plant=_parquet),
    Case("BOM, CRLF and blank lines", plant=lambda trial: trial.texts.update({"r.jsonl": b"\xef\xbb\xbf" + lines(trial.rows).replace(b"\n", b"\r\n\r\n")})),
    Case("two files", plant=_second_file),
    Case("ShareGPT spelling", plant=_share_gpt),
    Case("Alpaca spelling", plant=_alpaca),
    Case("several turns, a system turn", plant=_several_turns),
    _for_all("no ids", lambda row: row.pop("id") and False),
    _for_all("no categories", lambda row: row.pop("category") and False),
    _for_all("splits left to prepare", lambda row: row.pop("split") and False),
    _for_all("emoji and other scripts within", lambda row: answer(row).update(content=answer(row)["content"] + " 🙂 Straße, 你好, naïve.")),
    _for_all("code with tabs and blank lines", lambda row: answer(row).update(content="\tdef f():\n\n    return 1\n" + answer(row)["content"] + "\n\n")),
    _for_all("answers cut by a generation limit", lambda row: row.update(finished=False)),
    Case("half a character at a cut", plant=lambda trial: changed("train", 5, lambda r: r.update(finished=False) or answer(r).update(content=answer(r)["content"] + "\ufffd"))(trial) and None),
    Case("a few control tokens", plant=lambda trial: changed("train", 2, lambda r: answer(r).update(content="x <|im_end|> y"))(trial) and None),
    Case("two copies in eighty", plant=_two_copies),
    Case("short answers", plant=lambda trial: changed("train", 20, lambda r: answer(r).update(content=f"Yes, {r['id']}."))(trial) and None),
    Case("a later version that moved a little", plant=with_reference(_later_version)),
    _set("bucket", multiple=8, tokens_per_step=512, tokens_per_microbatch=64),
    _set("drafter", mask_token_id=MASK_ID),
    _set("training", seed=11, epochs=1),
    _set("data_gate", num_round_trips=3, min_rows=80),
)

