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
        ("drafter", "target_layer_ids", []),  # would have been taken for null
        ("evaluation", "max_new_tokens", 1),  # no round, so no acceptance length
        ("evaluation", "bootstrap_samples", 1),
    ],
)
def test_a_value_that_would_fail_later_is_refused_now(section: str, key: str, value: object) -> None:
    with pytest.raises(ConfigError, match=f"{section}.{key}"):
        parse_config(TREE | {section: {key: value}}, "test")


@pytest.mark.parametrize(
    ("section", "idle", "effective"),
    [
        ("objective", {"kind": "dpace", "gamma": 4.0}, {"kind": "decayed_ce", "gamma": 4.0}),
        ("objective", {"kind": "decayed_ce", "alpha": 0.1}, {"kind": "dpace", "alpha": 0.1}),
        ("training", {"schedule": "cosine", "decay_ratio": 0.5}, {"schedule": "wsd", "decay_ratio": 0.5}),
        ("training", {"schedule": "constant", "min_lr_ratio": 0.1}, {"schedule": "cosine", "min_lr_ratio": 0.1}),
        ("data_gate", {"max_drift": 0.5}, {"max_drift": 0.5, "reference": "profile.json"}),
        ("evaluation", {"rule": "match"}, {"rule": "match", "temperature": 0.5}),
        ("evaluation", {"seed": 3, "template": "raw"}, {"template": "raw"}),  # for prompt sets of the command line
        ("training", {"feature_noise": {"warmup_steps": 5}}, {"feature_noise": {"warmup_steps": 5, "std": 0.1}}),
    ],
)
def test_a_setting_without_effect_is_refused(section: str, idle: dict[str, object], effective: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match=f"{section}.*has no effect"):
        parse_config(TREE | {section: idle}, "test")
    whole = parse_config(TREE | {section: effective}, "test")
    assert parse_config(whole.model_dump(mode="json"), "test") == whole  # as a workspace writes it, every key at its default


@pytest.mark.parametrize("run", ["", "../demo", "a/b", "/tmp", ".hidden", "a b"])
def test_the_name_of_a_run_stays_below_runs(run: str) -> None:
    with pytest.raises(ConfigError, match="run: "):
        parse_config(TREE | {"run": run}, "test")


def test_split_ranks_need_a_target_to_run() -> None:
    split = {"distributed": {"placement": "split"}}
    with pytest.raises(ConfigError, match="feature_source cached needs none"):
        parse_config(TREE | split | {"training": {"feature_source": "cached"}}, "test")
    assert parse_config(TREE | split, "test").training.feature_source == "online"


def test_an_unknown_key_is_told_what_it_looks_like() -> None:
    with pytest.raises(ConfigError, match=r"drafter\.num_layer: unknown key, did you mean num_layers\? \(found 1\)"):
        parse_config({"target": {"path": "t"}, "data": {"conversations": ["c"]}, "drafter": {"num_layer": 1}}, "x")
    with pytest.raises(ConfigError, match=r"zzz: unknown key \(found 1\)"):
        parse_config({"target": {"path": "t"}, "data": {"conversations": ["c"]}, "zzz": 1}, "x")
