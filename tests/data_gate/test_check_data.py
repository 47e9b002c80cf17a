"""Stage check-data: what it leaves, and that it fails closed."""

import builtins
import json
import re
from pathlib import Path

import pytest

from dflash_core import cli
from dflash_core.config import Config
from dflash_core.config_data import DataGateConfig
from dflash_core.data_gate import conversation_table, validate, written
from dflash_core.data_gate.inputs import Inputs
from dflash_core.data_gate.profile import Profile
from dflash_core.data_gate.suites import conversation_suite, plan_suite, split_suite, token_suite
from dflash_core.data_gate.verdict import Outcome, Verdict
from dflash_core.errors import GateError
from dflash_core.stages import check_data, layout


def left() -> set[str]:
    return {path.name for path in layout.DATA_GATE.iterdir()} if layout.DATA_GATE.exists() else set()


def test_good_data_leave_a_verdict_a_profile_and_a_page(planned: Config) -> None:
    assert "passed: all" in check_data.run(planned)
    assert left() == {"verdict.json", "bad_rows.jsonl", "profile.json", "page.html", "passed.json"}
    verdict = json.loads((layout.DATA_GATE / "verdict.json").read_text())
    assert verdict["passed"] is True and verdict["failed"] == [] and all(e["passed"] for e in verdict["expectations"])
    assert (layout.DATA_GATE / "bad_rows.jsonl").read_text() == ""
    assert json.loads((layout.DATA_GATE / "passed.json").read_text()) == {"passed": True, "dataset": verdict["dataset"]}
    assert json.loads((layout.DATA_GATE / "profile.json").read_text())["scripts"] == {"latin": 80}
    suites = [*conversation_suite(planned.data_gate, None), *split_suite(planned.data_gate), *token_suite(planned, 512), *plan_suite(70, 2, [32])]
    named = [e["name"] for e in verdict["expectations"]]
    assert named == [expectation.meta["name"] for expectation in suites] and len(set(named)) == len(named)


def test_what_training_depends_on_follows_the_data_alone(planned: Config) -> None:
    outcome = Outcome(table="plan", name="a", says="A.", passed=True)
    inputs = Inputs(planned, layout.PREPARED, layout.PLAN)
    said = []
    for outcomes in ((outcome,), (outcome, outcome)):  # as after an update that expects more
        written.write_verdict(layout.DATA_GATE, Verdict(outcomes=outcomes, dataset="0123"), inputs)
        said.append((layout.DATA_GATE / "passed.json").read_bytes())
    assert said[0] == said[1]
    written.write_verdict(layout.DATA_GATE, Verdict(outcomes=(), dataset="0123"), inputs)
    assert "passed.json" not in left(), "nothing was looked at"


def test_a_no_is_exit_code_3_with_the_ids_in_a_line(planned: Config, capsys: pytest.CaptureFixture[str]) -> None:
    tree = planned.model_dump(mode="json")
    tree["data"]["min_response_tokens"] = 150
    Path("params.yaml").write_text(json.dumps(tree))  # JSON is YAML
    assert cli.main(["check-data"]) == 3
    told = capsys.readouterr().err
    assert re.search(r"supervised-tokens \(\d+ of 80\) in row-\d{3}, row-\d{3}", told) and told.count("\n") == 1
    assert left() == {"verdict.json", "bad_rows.jsonl", "profile.json", "page.html"}


def test_without_great_expectations_the_gate_says_no(planned: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *args: object, **kwargs: object) -> object:
        if name.startswith("dflash_core.data_gate.suites"):
            raise ModuleNotFoundError("No module named 'great_expectations'")
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(GateError, match="could not be measured .ModuleNotFoundError: No module named 'great_expectations'"):
        check_data.run(planned)
    assert "passed.json" not in left()
    assert json.loads((layout.DATA_GATE / "verdict.json").read_text())["failed"] == ["conversations-measured", "tokens-measured", "plan-measured"]


@pytest.mark.parametrize(("place", "name", "told"), [(validate, "_definition", True), (written, "profile_of", False), (check_data, "judge", False)])
def test_whatever_raises_is_a_no_and_an_earlier_yes_is_gone(
    place: object, name: str, told: bool, planned: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    layout.DATA_GATE.mkdir()
    (layout.DATA_GATE / "passed.json").write_text("{}")

    def fail(*args: object, **kwargs: object) -> None:
        raise RuntimeError("a fault of ours")

    if place is written:
        monkeypatch.setattr(check_data, "judge", lambda inputs: Verdict(outcomes=(Outcome("plan", "a", "A.", passed=True),)))
    monkeypatch.setattr(place, name, fail)
    with pytest.raises(GateError, match="a fault of ours"):
        check_data.run(planned)
    assert ("verdict.json" in left()) is told and "passed.json" not in left()


def test_an_expectation_that_can_not_be_measured_is_a_no(planned: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conversation_table, "FACTS", tuple(name for name in conversation_table.FACTS if name != "garbled"))
    with pytest.raises(GateError, match="readable-text could not be measured"):
        check_data.run(planned)


def test_a_broken_reference_is_a_no(planned: Config) -> None:
    Path("reference.json").write_text("[]")
    gate = planned.data_gate.model_copy(update={"reference": "reference.json"})
    with pytest.raises(GateError, match="reference.json is no profile of data"):
        check_data.run(planned.model_copy(update={"data_gate": gate}))


def test_the_page_loads_nothing_and_escapes_what_it_shows(planned: Config) -> None:
    rows = Path("rows.jsonl").read_text().splitlines()
    rows[0] = json.dumps(json.loads(rows[0]) | {"id": "<script>alert(1)</script>", "messages": []})
    Path("rows.jsonl").write_text("\n".join(rows) + "\n")
    with pytest.raises(GateError, match="known-shape"):
        check_data.run(planned)
    page = (layout.DATA_GATE / "page.html").read_text()
    assert "&lt;script&gt;alert(1)" in page and "<script" not in page
    assert not re.search(r"https?:|//|src=|<link|@import|url\(", page)


def test_a_no_names_the_key_of_its_limit(planned: Config) -> None:
    tight = planned.data_gate.model_copy(update={"min_rows": 81})
    with pytest.raises(GateError, match=r"enough-rows \(80, limit data_gate.min_rows\)"):
        check_data.run(planned.model_copy(update={"data_gate": tight}))
    assert "<code>data_gate.min_rows</code>" in (layout.DATA_GATE / "page.html").read_text()
    gate = DataGateConfig(reference="profile.json")
    suites = [*conversation_suite(gate, Profile(1000, {}, {})), *split_suite(gate), *token_suite(planned, 512)]
    named = {expectation.meta["limit"] for expectation in suites} - {""}
    assert named == {f"data_gate.{key}" for key in DataGateConfig.model_fields if key.startswith("max_")}
