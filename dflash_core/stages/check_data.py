"""Stage `check-data`: nothing is trained on data that the gate hasn't passed."""

import shutil

from dflash_core.config import Config
from dflash_core.data_gate.inputs import Inputs
from dflash_core.data_gate.judge import judge
from dflash_core.data_gate.written import BAD_ROWS, PAGE, write_verdict
from dflash_core.errors import GateError
from dflash_core.stages import layout


def run(config: Config) -> str:
    """Write build/data_gate; gives the line that a person sees.

    Raises:
        GateError: an expectation doesn't hold, or the gate itself could not do its work.
    """
    shutil.rmtree(layout.DATA_GATE, ignore_errors=True)  # an earlier verdict must not outlive a gate that fails
    try:
        inputs = Inputs(config, layout.PREPARED, layout.PLAN)
        verdict = judge(inputs)
        write_verdict(layout.DATA_GATE, verdict, inputs)
    except Exception as error:
        raise GateError(f"The data gate itself failed ({type(error).__name__}: {error}), which counts as a no. Correct that and run it again.") from error
    if not verdict.passed:
        raise GateError(
            f"The data gate says no: {verdict.sentence()}. All bad rows are in {layout.DATA_GATE / BAD_ROWS}, {layout.DATA_GATE / PAGE} "
            "shows them. Correct the data, or the limits in data_gate."
        )
    return f"the data gate passed: all {len(verdict.outcomes)} expectations hold; see {layout.DATA_GATE / PAGE}"
