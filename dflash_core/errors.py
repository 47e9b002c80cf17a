"""The errors of dflash_core and the exit code that each one means."""


class DflashError(Exception):
    """A fault that a user, a file or a network can cause: one sentence of fact, one of action.

    The command line prints the message without a traceback and exits with `exit_code`.
    """

    exit_code = 2

    def __str__(self) -> str:
        """A file's name in it that isn't UTF-8 is written with escapes: neither Prefect nor a terminal would take it."""
        return super().__str__().encode(errors="backslashreplace").decode()


class ConfigError(DflashError):
    """The configuration is not valid, or contradicts itself."""


class DataError(DflashError):
    """An input file is missing, broken, or not what it should hold."""


class IdentityError(DflashError):
    """Two artefacts that must belong together don't: target, tokenizer, dataset, plan, features."""


class CheckpointError(DflashError):
    """A checkpoint is missing, damaged, or of another run."""


class NonFiniteError(DflashError):
    """A loss or a gradient is NaN or infinite; raised before the optimizer step that would spread it."""

    exit_code = 3


class PipelineError(DflashError):
    """A part of the pipeline is stuck, or handed on something else than what was due; the message names the part."""

    exit_code = 1


class GateError(DflashError):
    """A check ran and said no."""

    exit_code = 3


class Stopped(DflashError):
    """The run was asked to stop; it saved its state and can be resumed."""

    exit_code = 4
