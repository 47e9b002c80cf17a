"""A few of the damages of benchmarks/corruptions.py: each is found at load and walked back from."""

from pathlib import Path

from corruptions import DAMAGES, campaign


def test_every_damage_is_found_and_walked_back_from(tmp_path: Path) -> None:
    result = campaign(tmp_path, 5 * len(DAMAGES), seed=1)
    assert result["holds"], result["missed"]
    assert set(result["found_by_damage"]) == {damage.__name__ for damage in DAMAGES}
