"""Regeneration: greedy like a plain loop, batches from the prompts alone, the same bytes however often it was killed."""

import gzip
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import fields
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from dflash_core.config import parse_config
from dflash_core.data.identity import file_digest
from dflash_core.data.prepare import prepare
from dflash_core.errors import ConfigError, DataError
from dflash_core.stages import regenerate as stage
from dflash_core.target import part_files
from dflash_core.target.batches import GenerationSettings
from dflash_core.target.greedy import greedy_batch, rows_to_keep
from dflash_core.target.regenerate import regenerate

OPTIONS = {"batch_size": 4, "max_new_tokens": 12, "dtype": "float32", "workers": 1}

WITHOUT_THOUGHTS = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content.split('</think>')[-1] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    path = tmp_path / "prompts.jsonl"
    rows = [{"id": f"p{n}", "category": "list", "split": "train", "prompt": f"Tell me {'more ' * (n % 5)}about {n}"} for n in range(11)]
    rows.append({"id": "m", "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Why?"}]})
    path.write_text("\n".join(map(json.dumps, rows)) + "\n")
    return path


def read(path: Path) -> list[dict]:
    return [json.loads(line) for line in gzip.decompress(path.read_bytes()).decode().splitlines()]


def test_answers_equal_a_plain_greedy_loop(prompts: Path, tiny_dir: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl.gz"
    manifest = regenerate(prompts, tiny_dir, out, **OPTIONS)
    model = AutoModelForCausalLM.from_pretrained(tiny_dir, dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(tiny_dir)
    rows = read(out)
    assert [row["id"] for row in rows] == [*(f"p{n}" for n in range(11)), "m"]
    for row in rows:
        text = tokenizer.apply_chat_template(row["messages"][:-1], add_generation_prompt=True, tokenize=False)
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        start = len(ids)
        while len(ids) < start + 12 and not (len(ids) > start and ids[-1] in tokenizer.all_special_ids):
            ids.append(model(input_ids=torch.tensor([ids])).logits[0, -1].argmax().item())
        ended = ids[-1] in tokenizer.all_special_ids
        assert row["messages"][-1] == {"role": "assistant", "content": tokenizer.decode(ids[start : len(ids) - ended])}
        assert row["finished"] == (ids[-1] == tokenizer.eos_token_id)
    assert manifest["rows"] == 12 and manifest["settings"]["batch_size"] == 4
    assert not out.with_name("out.jsonl.gz.parts").exists()


def test_rows_that_stop_leave_the_batch_and_change_nothing(tiny_dir: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(tiny_dir, dtype=torch.float32).eval()
    prompts = [[5 + n, 40, 7 * n + 3] for n in range(32)]
    whole = greedy_batch(model, prompts, 8, 20, stop_ids=())
    stops = {answer[n % 6 + 1] for n, answer in enumerate(whole)}
    stopped = greedy_batch(model, prompts, 8, 20, stop_ids=stops)
    for answer, cut in zip(whole, stopped, strict=True):
        end = next((n + 1 for n, token in enumerate(answer) if token in stops), len(answer))
        assert cut == answer[:end]


@pytest.mark.parametrize(
    ("running", "expected"),
    [([True] * 32, None), ([True] * 17 + [False] * 15, None), ([False] * 16 + [True] * 16, list(range(16, 32))), ([False] * 32, list(range(8)))],
)
def test_batch_shrinks_by_halves(running: list[bool], expected: list[int] | None) -> None:
    assert rows_to_keep(running) == expected


def test_workers_and_interruption_give_the_same_bytes(
    prompts: Path, tiny_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = tmp_path / "first.jsonl.gz", tmp_path / "second.jsonl.gz"
    regenerate(prompts, tiny_dir, first, **OPTIONS)
    real, calls = part_files.greedy_batch, []

    def fail_at_third(*args):
        calls.append(args)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return real(*args)

    monkeypatch.setattr(part_files, "greedy_batch", fail_at_third)
    with pytest.raises(KeyboardInterrupt):
        regenerate(prompts, tiny_dir, second, **OPTIONS)
    assert not second.exists() and len(list(second.with_name("second.jsonl.gz.parts").iterdir())) == 2
    regenerate(prompts, tiny_dir, second, **OPTIONS)
    assert len(calls) == 4, "finished batches must not be computed again"
    assert second.read_bytes() == first.read_bytes()
    regenerate(prompts, tiny_dir, second, **OPTIONS)
    assert len(calls) == 4, "a finished file must be kept"


@pytest.mark.parametrize(("answer", "reason"), [("a\0b", "null byte at character 1"), ("a</think>b", "template rewrites an answer")])
def test_what_prepare_would_refuse_is_left_out(
    answer: str, reason: str, prompts: Path, tiny_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, out = shutil.copytree(tiny_dir, tmp_path / "target"), tmp_path / "out.jsonl.gz"
    (target / "chat_template.jinja").write_text(WITHOUT_THOUGHTS)
    tokenizer = AutoTokenizer.from_pretrained(target)
    texts = iter([answer, *["A fine answer."] * 10, answer])
    monkeypatch.setattr(part_files, "greedy_batch", lambda _, prompt_ids, *__: [tokenizer(next(texts))["input_ids"] for _ in prompt_ids])
    left_out = regenerate(prompts, target, out, **OPTIONS)["left_out"]
    said = stage.run(prompts, target, out, batch_size=4, max_new_tokens=12, dtype="float32")
    assert len(left_out) == 2 and all(reason in text for text in left_out.values())
    assert len(read(out)) == 10 and left_out.keys().isdisjoint(row["id"] for row in read(out))
    assert "10 answers" in said and "2 left out" in said and reason in said
    tree = {"target": {"path": str(target)}, "data": {"conversations": [str(out)], "heldout_fraction": 0.0}}
    assert prepare(parse_config(tree, "test"), tmp_path / "prepared").splits["train"].rows == 10


def test_a_row_that_its_closing_tokens_carry_past_the_context_is_left_out(
    prompts: Path, tiny_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, out = shutil.copytree(tiny_dir, tmp_path / "target"), tmp_path / "out.jsonl.gz"
    tokenizer = AutoTokenizer.from_pretrained(target)
    answer = [*tokenizer("A fine answer.")["input_ids"], tokenizer.eos_token_id]
    lengths = []

    def answers(_, prompt_ids, *__):
        lengths.extend(map(len, prompt_ids))
        return [answer for _ in prompt_ids]

    monkeypatch.setattr(part_files, "greedy_batch", answers)
    options = OPTIONS | {"max_new_tokens": len(answer)}
    assert regenerate(prompts, target, out, **options)["left_out"] == {}
    context = max(lengths) + len(answer)  # the template puts a newline behind the end token
    tree = json.loads((target / "config.json").read_text())
    (target / "config.json").write_text(json.dumps(tree | {"max_position_embeddings": context}))
    out.unlink()
    left_out = regenerate(prompts, target, out, **options)["left_out"]
    assert len(left_out) == lengths[:12].count(max(lengths)) and all("of the target's context" in reason for reason in left_out.values())
    settings = {"target": {"path": str(target)}, "data": {"conversations": [str(out)], "heldout_fraction": 0.0, "max_length": 2048}}
    assert prepare(parse_config(settings, "test"), tmp_path / "prepared").splits["train"].rows == 12 - len(left_out)


def test_who_is_killed_before_the_manifest_answers_nothing_again(
    prompts: Path, tiny_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, asked = tmp_path / "out.jsonl.gz", []
    monkeypatch.setattr(part_files, "greedy_batch", lambda _, prompt_ids, *__: (asked.extend(prompt_ids), [[40]] * len(prompt_ids))[1])

    def killed(path: Path, content: bytes) -> None:
        if path.name.endswith("manifest.json"):
            raise KeyboardInterrupt
        part_files.write_atomically(path, content)

    with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr("dflash_core.target.regenerate.write_atomically", killed)
        regenerate(prompts, tiny_dir, out, **OPTIONS)
    assert out.exists() and not out.with_name("out.jsonl.gz.manifest.json").exists()
    regenerate(prompts, tiny_dir, out, **OPTIONS)
    assert len(asked) == 12 and not out.with_name("out.jsonl.gz.parts").exists()


def test_a_prompt_that_the_template_refuses_is_named(prompts: Path, tiny_dir: Path, tmp_path: Path) -> None:
    target = shutil.copytree(tiny_dir, tmp_path / "target")
    refusal = "{% if messages[0].role == 'system' %}{{ raise_exception('No system turn.') }}{% endif %}"
    (target / "chat_template.jinja").write_text(refusal + WITHOUT_THOUGHTS)
    with pytest.raises(DataError, match="prompt 'm': The chat template refuses .*No system turn"):
        regenerate(prompts, target, tmp_path / "out.jsonl.gz", **OPTIONS)


def test_another_chat_template_makes_other_answers(prompts: Path, tiny_dir: Path, tmp_path: Path) -> None:
    target, out = shutil.copytree(tiny_dir, tmp_path / "target"), tmp_path / "out.jsonl.gz"
    first = regenerate(prompts, target, out, **OPTIONS)
    template = target / "chat_template.jinja"
    template.write_text(template.read_text().replace("<|im_start|>assistant", "<|im_start|>robot"))
    second = regenerate(prompts, target, out, **OPTIONS)
    assert second["settings"]["tokenizer_identity"] != first["settings"]["tokenizer_identity"]


def test_the_shipped_answers_are_told_from_stale_ones() -> None:
    """A manifest that lacks a setting, or is of other files, would have `regenerate` answer all 3,520 prompts again."""
    data = Path(part_files.__file__).parents[2] / "data"
    manifest = json.loads((data / "conversations.jsonl.gz.manifest.json").read_text())
    assert set(manifest["settings"]) == {field.name for field in fields(GenerationSettings)}
    assert manifest["output_sha256"] == file_digest(data / "conversations.jsonl.gz")
    assert manifest["prompts_sha256"] == file_digest(data / "prompts.jsonl")


def test_killed_run_ends_with_the_same_bytes(prompts: Path, tiny_dir: Path, tmp_path: Path) -> None:
    out, reference = tmp_path / "killed.jsonl.gz", tmp_path / "reference.jsonl.gz"
    code = (
        "import sys; from pathlib import Path; from dflash_core.target.regenerate import regenerate\n"
        "if __name__ == '__main__': p, t, o = map(Path, sys.argv[1:]); "
        "regenerate(p, t, o, batch_size=4, max_new_tokens=12, dtype='float32', workers=2)"
    )
    script = tmp_path / "run.py"
    script.write_text(code)
    root = str(Path(part_files.__file__).parents[2])
    process = subprocess.Popen(
        [sys.executable, script, prompts, tiny_dir, out], env=os.environ | {"PYTHONPATH": root}, stderr=subprocess.DEVNULL
    )
    parts = out.with_name("killed.jsonl.gz.parts")
    deadline = time.monotonic() + 120
    while not any(parts.glob("[!.]*.jsonl")) and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    regenerate(prompts, tiny_dir, out, **OPTIONS)
    regenerate(prompts, tiny_dir, reference, **OPTIONS)
    assert out.read_bytes() == reference.read_bytes()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "holds no prompts"),
        ('{"id": 1, "prompt": "a"}\n{broken', "line 2 is broken JSON"),
        ('{"prompt": "a"}', "line 1 is .*expected an object with id"),
        ('{"id": 1, "prompt": "  "}', "line 1 is .*expected an object"),
        ('{"id": 1, "messages": [{"role": "assistant", "content": "a"}]}', "messages that end with the user"),
        ("[1]", "line 1 is .*expected an object"),
        ('{"id": ' + "1" * 5000 + ', "prompt": "a"}', "line 1 is broken JSON .*4300 digits"),
        ('{"id": 1, "prompt": "a", "more": ' + "[" * 100_000, "line 1 is nested too deeply"),
        *((f'{{"id": {name}, "prompt": "a"}}', "line 1 has the id .*expected text or a whole number") for name in ("[1]", "true", '{"a": 1}', "1.5")),
        ('{"id": 1, "prompt": "a"}\n{"id": "1", "prompt": "b"}', "line 2 repeats the id '1'"),
        ('{"id": 1, "prompt": "' + "long " * 900 + '"}', "expected at most the target's 2048"),
    ],
)
def test_bad_prompts_are_refused(text: str, message: str, tiny_dir: Path, tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text(text)
    with pytest.raises(DataError, match=message):
        regenerate(path, tiny_dir, tmp_path / "out.jsonl.gz", **OPTIONS)
    assert not (tmp_path / "out.jsonl.gz").exists()


def test_missing_and_wrong_files_are_refused(prompts: Path, tiny_dir: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="does not exist"):
        regenerate(tmp_path / "none.jsonl", tiny_dir, tmp_path / "out", **OPTIONS)
    with pytest.raises(ConfigError, match="is not a directory"):
        regenerate(prompts, tmp_path / "none", tmp_path / "out", **OPTIONS)
    with pytest.raises(ConfigError, match="is the prompt file itself"):
        regenerate(prompts, tiny_dir, prompts.parent / "." / prompts.name, **OPTIONS)
    with pytest.raises(DataError, match="batch_size 0"):
        regenerate(prompts, tiny_dir, tmp_path / "out", **OPTIONS | {"batch_size": 0})
