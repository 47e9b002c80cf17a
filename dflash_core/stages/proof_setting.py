"""Opens what a replay of a recorded run needs, as that run had it."""

import torch

from dflash_core.errors import DflashError, GateError
from dflash_core.proof.conduct import give_way, is_being_written
from dflash_core.proof.recorded import RecordedRun
from dflash_core.proof.replay import Setting
from dflash_core.stages.train_inputs import open_inputs
from dflash_core.training.determinism import conditions, make_repeatable
from dflash_core.training.records import ResumeRecord, StartRecord


def open_setting(run: RecordedRun) -> Setting:
    """Inputs, plan and drafter of a run, from its log and the workspace that its directory lies in.

    While the run goes on, this process keeps to one thread and a low priority; afterwards it takes the run's number of threads.

    Raises:
        GateError: the inputs are gone or were made anew, so that no proof can be carried out.
    """
    config, workdir = run.config, run.directory.path.resolve().parents[1]
    make_repeatable(config.training.deterministic, config.training.seed)
    _choose_threads(run)
    try:
        inputs = open_inputs(config, workdir)
    except DflashError as error:
        raise GateError(f"No proof of {run.directory.path} can be carried out, which counts as a failed one: {error}") from None
    drafter = inputs.trainee.drafter
    return Setting(
        config=config,
        plan=inputs.plan,
        dataset=inputs.dataset,
        source=inputs.source,
        trainee=inputs.trainee,
        initial={name: tensor.detach().cpu().clone() for name, tensor in drafter.state_dict().items()},
        identity=inputs.identity,
        conditions=conditions(inputs.target.device),
    )


def _choose_threads(run: RecordedRun) -> None:
    if is_being_written(run.directory.log_path):
        give_way()
        torch.set_num_threads(1)
        return
    sessions = [r for r in run.records if isinstance(r, StartRecord | ResumeRecord)]
    threads = sessions[-1].world.get("conditions", {}).get("threads")
    if threads:
        torch.set_num_threads(threads)
