"""What a person types to run the flow: profiles, overrides, and a workspace that is taken."""

import errno
import logging
import multiprocessing
import shutil
import socket
import ssl
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from dflash_core.errors import ConfigError, GateError
from flows import promote_drafter, train_drafter, validate_checkpoint
from tasks import quiet_errors, workspace
from tasks.workspace import in_use, make_workspace

PARAMS = "target: {path: target}\ndata: {conversations: [a.jsonl]}\n"


def test_help_has_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        train_drafter.main(["--help"])
    assert ended.value.code == 0
    assert "python -m flows.train_drafter --profile" in " ".join(capsys.readouterr().out.split()).split("Example:")[1]


@pytest.mark.parametrize("text", ["training.epochs", "training.epochs=[1", "run=a: b: c", "run=@x"])
def test_an_override_that_cannot_be_read_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="--set"):
        train_drafter._override(text)


@pytest.mark.parametrize("flow", [train_drafter, validate_checkpoint], ids=lambda flow: flow.__name__)
@pytest.mark.parametrize(
    ("raised", "code", "said"),
    [
        (RuntimeError("Failed to reach API at http://127.0.0.1:9/api/"), 2, "unset PREFECT_API_URL"),
        (KeyboardInterrupt(), 4, "Stopped."),
        (GateError("It says no."), 3, "Error: It says no."),
        (OSError(28, "No space left on device"), 2, "Error: No space left on device. Free space"),
        (FileNotFoundError(2, "No such file or directory", "x.yaml"), 2, "Error: x.yaml: No such file or directory."),
    ],
)
def test_what_ends_a_flow_is_one_sentence(
    flow: ModuleType, raised: BaseException, code: int, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(flow, flow.__name__.removeprefix("flows."), _raising(raised))
    monkeypatch.setattr("tasks.embedded_server.install", lambda: None)
    assert flow.main([]) == code
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line


@pytest.mark.parametrize(
    ("error", "kept"),
    [
        (GateError("It says no."), False),
        (OSError(errno.ENOSPC, "No space left on device"), False),
        (PermissionError(errno.EACCES, "Permission denied"), False),
        (OSError(errno.ENETUNREACH, "Network is unreachable"), True),
        (OSError(errno.EHOSTUNREACH, "No route to host"), True),
        (socket.gaierror(socket.EAI_NONAME, "Name or service not known"), True),
        (ssl.SSLError(1, "certificate verify failed"), True),  # 1 is also EPERM
        (ProcessLookupError(errno.ESRCH, "No such process"), True),
        (ChildProcessError(errno.ECHILD, "No child processes"), True),
        (FileNotFoundError(errno.ENOENT, "No such file or directory"), True),
        (FileExistsError(errno.EEXIST, "File exists"), True),
    ],
    ids=lambda value: type(value).__name__ + str(getattr(value, "errno", "")),
)
def test_a_flows_log_keeps_the_traceback_of_what_may_be_our_fault(error: Exception, kept: bool) -> None:
    record = logging.LogRecord("prefect.flow_runs", logging.ERROR, __file__, 1, "Encountered an exception", (), (type(error), error, None))
    assert quiet_errors.WithoutTraceback().filter(record) and (record.exc_info is not None) == kept


def test_what_is_a_networks_has_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tasks.embedded_server.install", lambda: None)
    for error in (OSError(errno.ENETUNREACH, "Network is unreachable"), ssl.SSLError(1, "certificate verify failed")):
        monkeypatch.setattr(train_drafter, "train_drafter", _raising(error))
        with pytest.raises(type(error)):
            train_drafter.main([])


def _raising(error: BaseException) -> Callable[..., None]:
    def ended(*arguments: object) -> None:
        raise error

    return ended


@pytest.mark.parametrize(("option", "value"), [("--margin", "-1"), ("--model", "a/b"), ("--workspace", "../x")])
def test_an_option_out_of_bounds_is_one_sentence(option: str, value: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("tasks.embedded_server.install", lambda: None)
    assert promote_drafter.main([option, value]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert option[2:] in line and "pydantic.dev" not in line


def test_a_rollback_of_no_name_promotes_nothing(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("tasks.embedded_server.install", lambda: None)
    monkeypatch.setattr(promote_drafter, "promote_drafter", lambda *arguments: pytest.fail("it promotes"))
    assert promote_drafter.main(["--rollback", ""]) == 2
    assert "model" in capsys.readouterr().err


def test_a_profile_beside_params_yaml_has_a_workspace_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copy(workspace.PROJECT / "dvc.yaml", tmp_path)
    monkeypatch.setattr(workspace, "PROJECT", tmp_path)
    places = {"directory": tmp_path / "workspaces", "cache": tmp_path / "cache"}
    for name in ("params.yaml", "mine.yaml"):
        (tmp_path / name).write_text(PARAMS)
    assert make_workspace(str(tmp_path / "mine.yaml"), **places).root.name == "mine"
    assert make_workspace("demo", **places).root.name == make_workspace(str(tmp_path / "params.yaml"), **places).root.name == "demo"
    assert make_workspace(str(tmp_path / "mine.yaml"), "other", **places).root.name == "other"


def _hold(root: Path, held: object, release: object) -> None:
    with in_use(root):
        held.set()
        release.wait(30)


def test_one_flow_at_a_time_runs_in_a_workspace(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(PARAMS)
    place = {"directory": tmp_path / "workspaces", "cache": tmp_path / "cache"}
    root = make_workspace(str(tmp_path / "mine.yaml"), **place).root
    before = (root / "params.yaml").read_bytes()
    context = multiprocessing.get_context("spawn")
    held, release = context.Event(), context.Event()
    process = context.Process(target=_hold, args=(root, held, release))
    process.start()
    assert held.wait(60)
    with pytest.raises(ConfigError, match="in use by another flow"):
        make_workspace(str(tmp_path / "mine.yaml"), overrides={"training.epochs": 9}, **place)
    assert (root / "params.yaml").read_bytes() == before
    process.kill()
    process.join()
    make_workspace(str(tmp_path / "mine.yaml"), **place)
