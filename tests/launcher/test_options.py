"""Options that can't be are refused, and the command by hand says the same."""

import socket
import sys
from pathlib import Path

import pytest
from torch.distributed.run import config_from_args, parse_args

from dflash_core.errors import ConfigError
from dflash_core.launcher.launch import launch
from dflash_core.launcher.options import LaunchOptions


def test_a_log_directory_that_is_none_is_refused(script, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="can't be written: File exists"):
        launch(script(""), LaunchOptions(nproc=1), tmp_path / "file")


def test_a_port_in_use_is_refused(script, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        endpoint = f"127.0.0.1:{listener.getsockname()[1]}"
        with pytest.raises(ConfigError, match=f"can't listen at {endpoint}"):
            launch(script(""), LaunchOptions(nproc=1, nnodes=2, rdzv_endpoint=endpoint), tmp_path)


@pytest.mark.parametrize(
    "options, complaint",
    [
        ({"nproc": 0}, "at least one"),
        ({"nproc": 1, "nnodes": 2}, "needs the address of node 0"),
        ({"nproc": 1, "nnodes": 2, "node_rank": 2, "rdzv_endpoint": "a:1"}, r"not in 0\.\.1"),
        ({"nproc": 1, "nnodes": 2, "rdzv_endpoint": "host"}, "not HOST:PORT"),
        ({"nproc": 1, "nnodes": 2, "rdzv_endpoint": "host:0"}, "not HOST:PORT"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_wrong_options_are_refused(options: dict, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        LaunchOptions(**options)


def test_the_command_by_hand_says_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    options = LaunchOptions(nproc=4, nnodes=2, node_rank=1, rdzv_endpoint="node-a:29400", rdzv_id="r", grace_s=45)
    threads, torchrun, *arguments = options.torchrun_command(["-m", "dflash_core", "train"]).split()
    assert (threads, torchrun) == ("OMP_NUM_THREADS=1", "torchrun")
    config, command, rest = config_from_args(parse_args(arguments))
    assert (config.min_nodes, config.max_nodes, config.nproc_per_node, config.max_restarts) == (2, 2, 4, 0)
    assert (config.rdzv_backend, config.rdzv_endpoint, config.run_id, config.rdzv_configs["rank"]) == (
        "static",
        "node-a:29400",
        "r",
        1,
    )
    assert config.shutdown_timeout == 45
    assert (command, rest) == (sys.executable, ["-u", "-m", "dflash_core", "train"])
