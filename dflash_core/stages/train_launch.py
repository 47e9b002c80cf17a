"""Commands `train` and `resume`: trains in this process, or starts the ranks that do; loads what the choice needs, no more."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dflash_core.config import Config
from dflash_core.errors import ConfigError
from dflash_core.launcher.options import GRACE_S, LaunchOptions
from dflash_core.launcher.rank_side import is_rank, obey_launcher


@dataclass(frozen=True, kw_only=True)
class Request:
    """What the command line says of a launch; see launcher/options.py. None takes the default."""

    nproc: int | None = None
    nnodes: int = 1
    node_rank: int = 0
    rdzv_endpoint: str | None = None
    rdzv_id: str | None = None
    grace_s: float = GRACE_S

    def num_ranks(self, config: Config) -> int | None:
        """Processes of the run, for an estimate; None where no number is given."""
        nproc = self.nproc or config.distributed.nproc
        return nproc and nproc * self.nnodes

    def options(self, config: Config) -> LaunchOptions | None:
        """The launch; None to train in this process, as a rank always does: the configuration is the launcher's, too."""
        if is_rank():
            if self.nproc is not None:
                raise ConfigError(f"--nproc {self.nproc} was given to a rank of a launch, which starts none; leave it out.")
            return None
        nproc = self.nproc if self.nproc is not None else config.distributed.nproc
        if nproc is None:
            if self.nnodes > 1:
                raise ConfigError(f"--nnodes {self.nnodes} without a number of processes; add --nproc, or set distributed.nproc.")
            return None
        return LaunchOptions(
            nproc=nproc,
            nnodes=self.nnodes,
            node_rank=self.node_rank,
            rdzv_endpoint=self.rdzv_endpoint,
            rdzv_id=self.rdzv_id or config.run,
            grace_s=self.grace_s,
        )


def run(config: Config, request: Request, params: Path, *, resume: bool, debug: bool, forced: Sequence[str] = ()) -> str:
    """Train; gives the line that a person sees. Errors as `stages.train.train`, and as `launcher.launch.launch`.

    `forced` are fields of the run's identity that may differ at a resume.
    """
    options = request.options(config)
    if options is None:
        return _train_here(config, resume, forced)
    from dflash_core.launcher.launch import launch

    worker = ["-m", "dflash_core", "resume" if resume else "train", "--params", str(params)]
    worker += [word for name in forced for word in ("--force-changed", name)]
    log_dir = config.run_dir / "ranks"
    launch([*worker, "--debug"] if debug else worker, options, log_dir)
    return f"{options.nproc} processes have ended well; the output of each is in {log_dir}"


def _train_here(config: Config, resume: bool, forced: Sequence[str]) -> str:
    if is_rank():
        obey_launcher()
    from dflash_core.stages import train_run

    return train_run.run(config, resume=resume or "auto", forced=forced)
