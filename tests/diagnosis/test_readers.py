"""Every form of log gives the same series, and what can't be used is counted, not fatal."""

import itertools
import json
import struct
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from dflash_core.diagnosis.columns import role_of
from dflash_core.diagnosis.log import Log, log_from
from dflash_core.diagnosis.readers import json_lines
from dflash_core.diagnosis.readers.detect import read_any
from dflash_core.errors import DataError
from dflash_core.training.records import StepRecord, to_line

LOSS = [3.5, 3.25, float("nan"), 2.75]
LR = [1e-4, 2e-4, 3e-4, 4e-4]


def read(path: Path, text: str | bytes, pattern: str | None = None) -> Log:
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return log_from(read_any(path, pattern))


def rows(loss_name: str = "loss", step_name: str = "step", lr_name: str = "lr") -> list[dict[str, float]]:
    return [{step_name: 10 * (i + 1), loss_name: v, lr_name: r} for i, (v, r) in enumerate(zip(LOSS, LR, strict=True))]


def parquet_bytes() -> bytes:
    sink = pa.BufferOutputStream()
    parquet.write_table(pa.Table.from_pylist(rows()), sink)
    return sink.getvalue().to_pybytes()


def event_file_bytes() -> bytes:
    """TensorBoard's framing, written by hand: tag as bytes, value as float32, checksums left zero."""

    def field(number: int, kind: int, payload: bytes) -> bytes:
        return bytes([number << 3 | kind]) + payload

    def text(number: int, payload: bytes) -> bytes:
        return field(number, 2, bytes([len(payload)]) + payload)

    out = b""
    events = [text(3, b"brain.Event:2")]
    for i, (loss, lr) in enumerate(zip(LOSS, LR, strict=True)):
        values = b"".join(
            text(1, text(1, tag) + field(2, 5, struct.pack("<f", v))) for tag, v in ((b"train/loss", loss), (b"train/learning_rate", lr))
        )
        events.append(field(2, 0, bytes([10 * (i + 1)])) + text(5, values))
    for event in events:
        out += struct.pack("<Q", len(event)) + b"\0\0\0\0" + event + b"\0\0\0\0"
    return out


def hand_table(names: str) -> str:
    return names + "\n" + "".join(f"{10 * (i + 1)},{v},{r}\n" for i, (v, r) in enumerate(zip(LOSS, LR, strict=True)))


FORMS: dict[str, str | bytes] = {
    "json lines with bare NaN": "".join(json.dumps(r) + "\n" for r in rows()),
    "other names": "".join(json.dumps(r) + "\n" for r in rows("train/loss", "trainer/global_step", "train/learning_rate")),
    "nested": "".join(json.dumps({"step": r["step"], "train": {"loss": r["loss"], "lr": r["lr"]}}) + "\n" for r in rows()),
    "trainer state": json.dumps({"max_steps": 40, "log_history": [*rows(lr_name="learning_rate"), {"step": 40, "eval_loss": 2.9}]}),
    "JSON columns": json.dumps({"step": [10, 20, 30, 40], "loss": LOSS, "lr": LR}),
    "csv": hand_table("step,loss,lr"),
    "csv of a tracker": hand_table('"Step","run a - train/loss","run a - train/lr"'),
    "semicolons": hand_table("iteration,train_loss,learning_rate").replace(",", ";"),
    "parquet": parquet_bytes(),
    "event file": event_file_bytes(),
    "megatron": "".join(
        f" iteration {r['step']:8d}/ 500 | consumed samples: 2 | elapsed time per iteration (ms): 650.0 | learning rate: {r['lr']:.3E} | "
        f"lm loss: {r['loss']:.6E} | loss scale: 1.0 | grad norm: 1.2 |\n"
        for r in rows()
    ),
    "modded-nanogpt": "".join(f"step:{r['step']}/99 train_loss:{r['loss']:.4f} lr:{r['lr']} train_time:315ms step_avg:nanms\n" for r in rows()),
    "nanogpt": "number of parameters: 10M\n" + "".join(f"iter {r['step']}: loss {r['loss']:.4f}, lr {r['lr']}, time 96.65ms, mfu 3.00%\n" for r in rows()),
    "dict lines": "".join(f"{{'loss': {r['loss']}, 'lr': {r['lr']}, 'step': {r['step']}}}\n  10%|#   | 1/9 [00:10<01:00, 1.2it/s]\n" for r in rows()),
    "wrapped by a console": "".join(
        f"[10:22:01] INFO     step {r['step']} loss {r['loss']} grad_norm    trainer.py:120\n                    1.25 lr {r['lr']}\n" for r in rows()
    ),
    "torn last line": "".join(json.dumps(r) + "\n" for r in rows()) + '{"step": 50, "lo',
    "bytes that are no text": "".join(json.dumps(r) + "\n" for r in rows()).encode() + b"\xff\xfe\x00garbage\n",
}


@pytest.mark.parametrize("form", FORMS)
def test_each_form_gives_the_same_series(form: str, tmp_path: Path) -> None:
    log = read(tmp_path / "log", FORMS[form])
    assert log.steps.tolist() == [10, 20, 30, 40]
    np.testing.assert_allclose(log.loss, LOSS, rtol=1e-4)
    np.testing.assert_allclose(log.aligned["lr"], LR, rtol=1e-4)


def test_a_pattern_reads_what_no_reader_knows(tmp_path: Path) -> None:
    text = "".join(f"<{r['step']}> L~{r['loss']} ~ {r['lr']}\n" for r in rows())
    log = read(tmp_path / "log", text, pattern=r"<(?P<step>\d+)> L~(?P<loss>\S+) ~ (?P<lr>\S+)")
    np.testing.assert_allclose(log.loss, LOSS)
    with pytest.raises(DataError, match="no regular expression"):
        read(tmp_path / "log", text, pattern="(?P<loss>")


def test_training_and_held_out_loss_are_told_apart(tmp_path: Path) -> None:
    text = "".join(json.dumps({"step": i, "loss": 3.0 - i / 10} | ({"eval_loss": 3.5} if i % 2 else {})) + "\n" for i in range(8))
    log = read(tmp_path / "log", text)
    assert log.names["loss"] == "loss"
    assert log.held_out["eval_loss"].steps.tolist() == [1, 3, 5, 7]


def test_the_longest_of_several_runs_is_read(tmp_path: Path) -> None:
    text = "".join(json.dumps({"run_name": "ab"[i % 3 == 0], "step": i, "loss": 2.0}) + "\n" for i in range(30))
    log = read(tmp_path / "log", text)
    assert len(log) == 20 and "2 runs" in log.notes[0]


def test_fast_and_plain_reading_agree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "train_log.jsonl"
    path.write_bytes(b"".join(to_line(step_record(i)) for i in range(300)) + b'{"kind": "step", "torn')
    plain = read_any(path)
    monkeypatch.setattr(json_lines, "SMALL_BYTES", 0)
    monkeypatch.setattr(json_lines, "BLOCK_BYTES", 40_000)
    fast = read_any(path)
    assert fast.unread == plain.unread
    np.testing.assert_array_equal(fast.lines, plain.lines)
    for name in fast.columns:
        np.testing.assert_allclose(fast.columns[name].values, plain.columns[name].values, err_msg=name)
        np.testing.assert_array_equal(fast.columns[name].present, plain.columns[name].present, err_msg=name)


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(lines=st.lists(st.integers(0, 40), max_size=12), torn=st.integers(0, 40), block_bytes=st.integers(1, 50))
def test_blocks_are_whole_lines_and_a_torn_last_line_is_one_of_its_own(tmp_path: Path, lines: list[int], torn: int, block_bytes: int) -> None:
    content = b"".join(b"x" * length + b"\n" for length in lines) + b"x" * torn
    (tmp_path / "log").write_bytes(content)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_lines, "BLOCK_BYTES", block_bytes)
        cuts = json_lines._cuts(tmp_path / "log")
    blocks = [content[begin:end] for begin, end in itertools.pairwise(cuts)]
    assert b"".join(blocks) == content and all(blocks)
    assert all(block.endswith(b"\n") for block in (blocks[:-1] if torn else blocks))
    assert not torn or blocks[-1] == b"x" * torn


def step_record(i: int) -> StepRecord:
    """A record whose loss isn't finite at step 7, and whose accuracies lack some slots."""
    return StepRecord(
        run_id="r", session_id="s", step=i, wall_time=1.7e9 + i, epoch=0, loss=float("nan") if i == 7 else 2.0 + i / 100, loss_sum=1.0, denominator=1.0,
        per_position_accuracy=(0.5, None, 0.25) if i % 2 else (None, None, None), per_position_count=(4, 0, 4), streak=None if i % 3 else 1.5,
        num_blocks=4, grad_norm=1.0, lr=1e-4, noise_std=0.0, tokens=100, padded_tokens=128, buckets=(128,), first_sample=0, last_sample=1,
        hs_queue_depth=1, prefetch_queue_depth=2, tok_per_s=10.0, data_wait_s=0.0, target_s=0.1, drafter_s=0.1, checkpoint_s=0.0,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("name", "role"),
    [
        ("train/loss", "loss"),
        ("lm loss", "loss"),
        ("val_loss", "eval_loss"),
        ("eval/loss", "eval_loss"),
        ("loss/val", "eval_loss"),
        ("run - train/loss", "loss"),
        ("tok/s", "throughput"),
        ("prefetch_queue_depth", "queue"),
    ],
)
def test_names(name: str, role: str) -> None:
    assert role_of(name) is not None and role_of(name)[0] == role


@pytest.mark.parametrize("name", ["run - train/loss__MIN", "configuration", "val_lr", "closs"])
def test_names_without_a_role(name: str) -> None:
    assert role_of(name) is None


@pytest.mark.parametrize("text", ["", "nothing here\n", "a,b\n1,2\n", '{"x": 1}\n', b"\x1f\x8b\x08rest"])
def test_what_holds_no_log_is_refused_in_one_sentence(text: str | bytes, tmp_path: Path) -> None:
    with pytest.raises(DataError):
        read(tmp_path / "log", text)


@pytest.mark.parametrize("left", [4, len(parquet_bytes()) // 2])
def test_a_parquet_file_that_is_cut_short_is_called_so(left: int, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"begins as a Parquet file and can't be read: .*[^.]\. Give a whole one\.$"):
        read(tmp_path / "log", parquet_bytes()[:left])
