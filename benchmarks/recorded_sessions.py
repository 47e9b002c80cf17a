"""Writes sessions of a run, right or wrong, step by step: log, checkpoints, resumes. For proofs to judge."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path

import torch
from resume_faults import Bench, ResumeFault, Session

from dflash_core.checkpoint.contents import Contents
from dflash_core.checkpoint.resume import RunDirectory
from dflash_core.checkpoint.snapshot import restore, take_share
from dflash_core.checkpoint.store import Committed, Writing
from dflash_core.proof.replay import Setting
from dflash_core.training.loop import Timing, step_record
from dflash_core.training.optimizer import make_optimizer
from dflash_core.training.records import CheckpointRecord, LogWriter, ResumeRecord, StartRecord
from dflash_core.training.step import train_step

_TIMING = Timing(0.001, 0.01, 0.0, 0.01, 0.0)


def begin_run(setting: Setting, run_dir: Path, num_steps: int, every: int) -> None:
    """A right run from its first step, with a checkpoint every `every` steps."""
    directory = RunDirectory(run_dir)
    run_dir.mkdir(parents=True)
    drafter = setting.trainee.drafter
    drafter.load_state_dict(dict(setting.initial))
    with LogWriter(directory.log_path) as log:
        world = {"conditions": dict(setting.conditions)}
        config = setting.config.model_dump(mode="json")
        log.append(
            StartRecord(
                **log.stamp(0), total_steps=setting.total_steps, samples_per_epoch=len(setting.dataset), config=config,
                identity=dict(setting.identity), versions={}, world=world,
            )
        )  # fmt: skip
        optimizer = make_optimizer(drafter, setting.config.training)
        first = take_share(drafter, optimizer, step=0, next_sample=0, run_id=log.run_id, identity=setting.identity)
        bench = Bench(setting, Contents(0, dict(setting.initial), {}, first.state), {})
        _write_steps(log, bench, Session(), num_steps, (directory, every))


def go_on(bench: Bench, session: Session, run_dir: Path, num_steps: int) -> None:
    """Another session that resumes from the checkpoint at hand."""
    directory = RunDirectory(run_dir)
    with LogWriter(directory.log_path) as log:
        log.adopt(bench.contents.state["run_id"])
        log.append(
            ResumeRecord(
                **log.stamp(bench.contents.step), total_steps=bench.setting.total_steps, next_sample=bench.contents.state["next_sample"],
                checkpoint=directory.store.names()[-1], digest=None, skipped=(), config=bench.setting.config.model_dump(mode="json"),
                versions={}, world={"conditions": dict(bench.setting.conditions)},
            )
        )  # fmt: skip
        _write_steps(log, bench, session, num_steps, None)


def _write_steps(log: LogWriter, bench: Bench, session: Session, num_steps: int, saves: tuple[RunDirectory, int] | None) -> None:
    setting, training = bench.setting, bench.setting.config.training
    drafter = setting.trainee.drafter
    optimizer = make_optimizer(drafter, training)
    restore(session.contents(bench), drafter, optimizer)
    drafter.train()
    drafter.zero_grad(set_to_none=True)
    ranks = session.ranks(drafter, bench)
    offset, hooks = 0, []
    for action, register in ((session.before_update, optimizer.register_step_pre_hook), (session.after_update, optimizer.register_step_post_hook)):
        if action is not None:
            hooks.append(register(torch.no_grad()(lambda *_, action=action: action(offset, drafter, bench))))
    for offset, batch in zip(range(1, num_steps + 1), session.stream(bench), strict=False):
        step = batch.outline.step
        result = train_step(setting.trainee, optimizer, batch, session.rate(bench, step), training, ranks)
        record = session.record(offset, step_record(log, batch, result, _TIMING, (0, 0)), bench)
        if session.logged_rate is not None:
            record = _with(record, lr=session.logged_rate(bench, step))
        log.append(record)
        if saves and step % saves[1] == 0:
            share = take_share(drafter, optimizer, step=step, next_sample=batch.outline.next_sample, run_id=log.run_id, identity=setting.identity)
            committed = saves[0].store.write(share, Writing({}, "0" * 8))
            log.append(_checkpoint_record(log, committed, batch.outline.next_sample))
    for hook in hooks:
        hook.remove()


def _with(record: object, **fields: object) -> object:
    return type(record)(**{**vars(record), **fields})


def _checkpoint_record(log: LogWriter, saved: Committed, next_sample: int) -> CheckpointRecord:
    return CheckpointRecord(
        **log.stamp(saved.step), name=saved.name, digest=saved.digest, weights_digest=saved.weights_digest, next_sample=next_sample,
        num_bytes=saved.num_bytes, seconds=0.0,
    )  # fmt: skip


def put_fault(source: Path, target: Path, bench: Bench, fault: ResumeFault, num_steps: int) -> str:
    """Copy a run with its checkpoints up to the one at hand, the next one included, and put a fault behind it; gives its name."""
    step, store = bench.contents.step, RunDirectory(source).store
    name = f"step-{step:08d}"
    near = store.names()[max(0, store.names().index(name) - 1) : store.names().index(name) + 2]
    for kept in near if fault.kind == "file" else near[:2]:
        shutil.copytree(store.root / kept, RunDirectory(target).store.root / kept)
    copied = RunDirectory(target)
    if fault.kind == "session":
        _copy_log(source, target, until=name)
        go_on(bench, fault.session, target, num_steps)
        return name
    shutil.rmtree(copied.store.root / name)
    committed = copied.store.save(fault.file(bench))
    _copy_log(source, target, digests={name: committed.digest})
    return name


def _copy_log(source: Path, target: Path, until: str | None = None, digests: Mapping[str, str] | None = None) -> None:
    """The log, up to the record of a checkpoint, or with other digests: the code that saved wrongly also logged."""
    lines = []
    for line in RunDirectory(source).log_path.read_text(encoding="utf-8").splitlines():
        tree = json.loads(line)
        if until and tree["step"] > int(until.removeprefix("step-")):
            continue
        if tree["kind"] == "checkpoint" and tree["name"] in (digests or {}):
            tree["digest"] = digests[tree["name"]]
        lines.append(json.dumps(tree))
    RunDirectory(target).log_path.write_text("\n".join(lines) + "\n", encoding="utf-8")
