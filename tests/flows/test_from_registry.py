"""MODEL@champion in a configuration becomes files whose names follow from their content."""

import os
from pathlib import Path

import pytest
from promotable import EQUAL, STRONG, export_drafter, make_promotable

from dflash_core.config import Config, parse_config
from dflash_core.errors import ConfigError
from tasks import alias_moves, from_registry, lineage
from tasks.from_registry import with_files
from tasks.registration import register
from tasks.registry import Registry
from tasks.workspace import configuration_of

TREE = {
    "run": "mine", "target": {"path": "t"}, "data": {"conversations": ["a"]},
    "drafter": {"init_from": "toy@champion"}, "data_gate": {"reference": "toy@champion", "max_drift": 0.2},
}  # fmt: skip


@pytest.fixture
def config() -> Config:
    return parse_config(TREE, "test")


def champion(tmp_path: Path, uri: str, tokens: int, seed: int, rows: int) -> Path:
    place = make_promotable(tmp_path / f"workspace{seed}", export_drafter(tmp_path / f"export{seed}", seed), tokens, seed)
    (place.root / "build/data_gate/profile.json").write_text(f'{{"num_rows": {rows}, "scripts": {{}}, "categories": {{}}}}')
    registry = Registry(uri, "toy")
    alias_moves.promote(registry, register(place, registry), registry.alias("champion"))
    return place.root


def test_the_champions_files_stay_the_same_until_their_content_changes(tmp_path: Path, uri: str, config: Config) -> None:
    first = champion(tmp_path, uri, EQUAL, 1, rows=7)
    found = with_files(config, tmp_path / "all", uri=uri)
    reference, drafter = Path(found.data_gate.reference), Path(found.drafter.init_from)
    assert reference.read_bytes() == (first / "build/data_gate/profile.json").read_bytes() and found.data_gate.max_drift == 0.2
    assert lineage.file_digests(drafter) == lineage.file_digests(first / "build/drafter")
    champion(tmp_path, uri, STRONG, 2, rows=7)
    again = with_files(config, tmp_path / "all", uri=uri)
    assert again.data_gate == found.data_gate, "the same data behind another champion are no other reference"
    assert again.drafter.init_from != found.drafter.init_from


def test_a_retry_goes_on_with_what_its_first_attempt_found(tmp_path: Path, config: Config) -> None:
    earlier = config.model_copy(update={"data_gate": config.data_gate.model_copy(update={"reference": "/r.json"})})
    earlier = earlier.model_copy(update={"drafter": config.drafter.model_copy(update={"init_from": "/d"})})
    import yaml

    (tmp_path / "params.yaml").write_text(yaml.safe_dump(earlier.model_dump(mode="json")))
    assert with_files(config, tmp_path, tmp_path / "params.yaml", uri="http://127.0.0.1:9") == earlier


def test_without_a_champion_nothing_is_compared(tmp_path: Path, uri: str, config: Config) -> None:
    found = with_files(config, tmp_path / "all", uri=uri)
    assert found.data_gate.reference is None and found.drafter.init_from is None
    parse_config(found.model_dump(mode="json"), "what the stage reads")  # idle limits would be refused


def test_while_mlflow_is_down_what_it_said_last_counts(tmp_path: Path, config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    from mlflow.exceptions import MlflowException

    def down(*arguments: object) -> None:
        raise MlflowException("refused")

    monkeypatch.setattr(from_registry, "_version", down)
    with pytest.raises(ConfigError, match="can't be asked for toy@champion"):
        with_files(config, tmp_path / "all", uri="none")
    (tmp_path / "all/.registry/abc.json").touch()
    os.mkdir(tmp_path / "all/.registry/abc")
    (tmp_path / "all/.registry/toy@champion.json").symlink_to(tmp_path / "all/.registry/abc.json")
    (tmp_path / "all/.registry/toy@champion.drafter").symlink_to(tmp_path / "all/.registry/abc")
    found = with_files(config, tmp_path / "all", uri="none")
    assert found.data_gate.reference == str(tmp_path / "all/.registry/abc.json")


def test_names_of_the_registry_are_no_paths(tmp_path: Path) -> None:
    import yaml

    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(TREE))
    _, config = configuration_of(str(tmp_path / "mine.yaml"))
    assert config.data_gate.reference == config.drafter.init_from == "toy@champion"
