"""Runs a flow from a shell, and turns what it raises into an exit code and one line."""

import sys
from collections.abc import Callable

from dflash_core.errors import ConfigError, DflashError, Stopped
from dflash_core.exit_code import is_of_command, sentence_of


def exit_code_of(run: Callable[[], object]) -> int:
    """Call `run`, with the embedded server where no other is set; gives the exit code of the stage that failed, or 0."""
    from prefect.exceptions import ParameterTypeError

    from tasks import embedded_server  # takes 2 s to import, which a worker and --help don't need

    try:
        embedded_server.install()
        run()
    except DflashError as error:
        print(f"Error: {error}", file=sys.stderr)
        return error.exit_code
    except ParameterTypeError as error:
        print(f"Error: {' '.join(str(error).split())}. Correct the option.", file=sys.stderr)
        return ConfigError.exit_code
    except OSError as error:
        if not is_of_command(error):
            raise
        print(f"Error: {sentence_of(error)}", file=sys.stderr)
        return ConfigError.exit_code
    except RuntimeError as error:
        if "Failed to reach API" not in str(error):
            raise
        print(f"Error: {error}. Start that Prefect server, or unset PREFECT_API_URL to use the embedded one.", file=sys.stderr)
        return ConfigError.exit_code
    except KeyboardInterrupt:
        print("Stopped. Run the same command again to go on.", file=sys.stderr)
        return Stopped.exit_code
    return 0
