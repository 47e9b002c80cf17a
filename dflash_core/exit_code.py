"""Runs a command, and turns what it raises into an exit code and one line."""

import errno
import signal
from types import FrameType

import typer

from dflash_core.errors import DflashError

BAD_INPUT = 2
INTERRUPTED = 4
FAULT_OF_OURS = 1
TYPERS_INTERRUPTED = 130
# What a person puts right as sentence_of says. A broken disk and too many open files aren't among them: that advice would not help.
TO_PUT_RIGHT = (
    *(errno.ENOSPC, errno.EDQUOT, errno.EFBIG),
    *(errno.EACCES, errno.EPERM, errno.EROFS, errno.EISDIR, errno.ENOTDIR, errno.ENAMETOOLONG),
)


def _interrupt(signum: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def is_of_machine(error: object) -> bool:
    """A full disk, a directory in a file's place, no permission: none of these is a fault of ours. A network's is another matter."""
    # The errno of an SSLError, which is an OSError as well, is a number of OpenSSL's and may be that of EPERM.
    return isinstance(error, OSError) and type(error).__module__ == "builtins" and error.errno in TO_PUT_RIGHT


def is_of_command(error: object) -> bool:
    """These, and a path that isn't there, or is: a person mistyped it. Inside of a flow it may well be a fault of ours."""
    return is_of_machine(error) or isinstance(error, FileNotFoundError | FileExistsError)


def sentence_of(error: OSError) -> str:
    """What a person reads of a fault of the machine."""
    where = f"{error.filename}: " if error.filename else ""
    return f"{where}{error.strerror or error}. Free space, or correct the path or its permissions."


def run(app: typer.Typer, arguments: list[str]) -> int:
    """Run one command and give its exit code: 0, or what the error means (errors.py); no traceback without --debug."""
    debug = "--debug" in arguments
    # A stage that can save its state, as training does, puts its own handler over this one.
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        # context.obj: a launch passes --debug on to its ranks.
        outcome = app([a for a in arguments if a != "--debug"], prog_name="dflash-core", standalone_mode=False, obj=debug)
        if outcome == TYPERS_INTERRUPTED:
            raise KeyboardInterrupt
        return outcome if isinstance(outcome, int) else 0
    except typer.TyperException as error:
        fault = error.format_message()  # empty where the help itself was the answer
        if fault:
            typer.echo(f"Error: {fault} See --help.", err=True)
        return error.exit_code
    except (KeyboardInterrupt, typer.Abort):
        typer.echo("Stopped. Run the same command again to go on.", err=True)
        return INTERRUPTED
    except DflashError as error:
        if debug:
            raise
        typer.echo(f"Error: {error}", err=True)
        return error.exit_code
    except Exception as error:
        if debug:
            raise
        if is_of_command(error):
            typer.echo(f"Error: {sentence_of(error)}", err=True)
            return BAD_INPUT
        typer.echo(f"Fault: {type(error).__name__}: {error}. Run again with --debug for the traceback, and report it.", err=True)
        return FAULT_OF_OURS
