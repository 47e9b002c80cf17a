"""The flow of a promotion, with a person's no and yes by the form that the UI sends, and the way back."""

import threading
import time
from pathlib import Path
from typing import Any

import pytest
from prefect.client.orchestration import get_client
from prefect.client.schemas.responses import SetStateStatus
from prefect.settings import PREFECT_CLIENT_MAX_RETRIES
from promotable import EQUAL, STRONG, export_drafter, make_promotable

import flows.promote_drafter as module
from dflash_core.errors import GateError
from tasks import approval, promotion_events
from tasks.promotion_settings import PromotionSettings
from tasks.registry import CHAMPION, Registry


def answering(form: dict[str, Any]) -> threading.Thread:
    """A person who fills in the form of the first flow that waits for one."""

    def answer() -> None:
        def resumed(flow_run_id: Any) -> bool:  # the form is made after the pause
            return client.resume_flow_run(flow_run_id, run_input=form).status == SetStateStatus.ACCEPT

        with get_client(sync_client=True) as client:
            while not any(resumed(run.id) for run in client.read_flow_runs() if run.state.is_paused()):
                time.sleep(0.1)

    thread = threading.Thread(target=answer, daemon=True)
    thread.start()
    return thread


def test_a_person_has_the_last_word(prefect_server: None, tmp_path: Path, uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for tokens, seed in ((EQUAL, 1), (STRONG, 2)):
        make_promotable(tmp_path / str(seed), export_drafter(tmp_path / f"export{seed}", seed), tokens, seed)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    monkeypatch.setattr(approval, "POLL_SECONDS", 0.2)
    monkeypatch.setattr(module, "open_workspace", lambda name: make_place(tmp_path / name))
    registry, told = Registry(uri, "toy"), []
    monkeypatch.setattr(promotion_events, "tell", lambda event, about, **payload: told.append((event, about, payload)))
    assert module.promote_drafter("1", PromotionSettings(model="toy"))["champion"] == "1"
    asked = PromotionSettings(model="toy", approval=True)
    retries, pause = [], approval.pause_flow_run
    monkeypatch.setattr(approval, "pause_flow_run", lambda **how: retries.append(PREFECT_CLIENT_MAX_RETRIES.value()) or pause(**how))

    person = answering({"approve": False, "reason": "not on a Friday"})
    with pytest.raises(GateError, match="not on a Friday"):
        module.promote_drafter("2", asked)
    person.join()
    assert registry.alias(CHAMPION).number == "1" and registry.version("2").tags["dflash.approval"] == "no: not on a Friday"
    assert sum(2**n for n in range(1, retries[0] + 1)) > 600, "seconds that a server may be away while a person is waited for"

    with pytest.raises(GateError, match="nobody answered within 0.0001 hours"):
        module.promote_drafter("2", asked.model_copy(update={"approval_hours": 1e-4}))
    assert registry.alias(CHAMPION).number == "1"

    answering({"approve": True, "reason": ""})
    assert module.promote_drafter("2", asked) == {"model": "toy", "champion": "2", "promoted": True}
    assert module.promote_drafter("2", asked) == {"model": "toy", "champion": "2", "promoted": False}, "nothing to do, nobody is asked"
    assert module.main(["--rollback", "toy"]) == 0 and registry.alias(CHAMPION).number == "1"
    assert module.main(["--rollback", "toy"]) == 2
    model = {"model": "toy"}
    assert told == [
        ("drafter.promoted", "drafter.toy", model | {"champion": "1", "before": None}),
        ("drafter.refused", "drafter.toy", model | {"version": "2", "reason": "not on a Friday"}),
        ("drafter.refused", "drafter.toy", model | {"version": "2", "reason": "nobody answered within 0.0001 hours"}),
        ("drafter.promoted", "drafter.toy", model | {"champion": "2", "before": "1"}),
        ("drafter.rolled_back", "drafter.toy", model | {"champion": "1", "before": "2"}),
    ], "each once, and nothing for a run that had nothing to do"


def make_place(root: Path) -> Any:
    from dflash_core.config import parse_config
    from tasks.workspace import Workspace

    return Workspace(root=root, config=parse_config({"run": "mine", "target": {"path": "models/toy"}, "data": {"conversations": ["a.jsonl"]}}, "test"))
