"""The campaign of lost batches, with few steps: nothing is lost, stops don't hang, errors surface as they are."""

import lost_batches
import pytest


@pytest.mark.parametrize("layout", ["1", "1+2", "2+1"])
def test_every_batch_arrives_once_and_every_error_with_its_traceback(layout: str) -> None:
    result = lost_batches.campaign([layout], steps=40, seed=0, num_saves=2, num_errors=1)
    assert result["holds"], result
    assert len(result[layout]["errors"]) == (2 if layout == "1" else 3)
