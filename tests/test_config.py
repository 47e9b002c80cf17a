"""What a configuration refuses before anything is loaded."""

import pytest

from dflash_core.config import parse_config
from dflash_core.errors import ConfigError

TREE = {"target": {"path": "target"}, "data": {"conversations": ["c.jsonl"]}}


@pytest.mark.parametrize(
    ("section", "key", "value"),
    [
        ("training", "max_grad_norm", float("inf")),  # meant as "no clipping"; the first checkpoint couldn't be written
        ("objective", "gamma", float("inf")),
        ("training", "learning_rate", float("nan")),
        ("training", "seed", 2**64),  # torch's generators take 64 bits
        ("training", "seed", -1),
        ("training", "epoch", 1),
    ],
)
def test_a_value_that_would_fail_later_is_refused_now(section: str, key: str, value: object) -> None:
    with pytest.raises(ConfigError, match=f"{section}.{key}"):
        parse_config(TREE | {section: {key: value}}, "test")
