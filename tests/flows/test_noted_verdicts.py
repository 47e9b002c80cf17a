"""What the flow of proofs reads beside the checkpoints, of a run that goes on writing and deleting them."""

import json
from pathlib import Path

from tasks.proof import noted_verdicts


def test_verdicts_of_what_is_there_whole(tmp_path: Path) -> None:
    verdicts = {step: {"name": f"step-{step:08d}", "outcome": "proven"} for step in (1000, 200)}
    for directory, text in {
        "step-00001000": json.dumps({"verdict": verdicts[1000]}),
        "step-00000200": json.dumps({"verdict": verdicts[200]}),
        "step-00000100.del-ab": json.dumps({"verdict": {"name": "step-00000100"}}),  # on its way out
        "step-00000300": "{",  # damaged, which the proof itself calls rejected
        "step-00000400": json.dumps({"verdict": {}}),
    }.items():
        (tmp_path / directory).mkdir()
        (tmp_path / directory / "status.json").write_text(text)
    (tmp_path / "step-00000500").mkdir()
    assert noted_verdicts(tmp_path) == [verdicts[200], verdicts[1000]]
    assert noted_verdicts(tmp_path, "step-00000200") == noted_verdicts(tmp_path, "200") == [verdicts[200]]
    assert noted_verdicts(tmp_path, "step-00000600") == []
