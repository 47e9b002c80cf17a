"""The command line: its help, what it loads, and its exit codes."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from dflash_core import cli
from dflash_core.errors import DataError, DflashError, GateError, Stopped

PROJECT = Path(__file__).resolve().parent.parent
HEAVY = ("torch", "transformers", "yaml", "numpy", "pyarrow", "prefect", "mlflow", "dvc", "matplotlib", "pandas", "great_expectations")
COMMANDS = ("prepare", "bucket", "check-data", "features", "train", "resume", "prove", "evaluate", "compare", "export", "report", "regenerate", "convert", "doctor")
VALID = "target: {path: nowhere}\ndata: {conversations: [nothing.jsonl]}\n"


def run(*arguments: str, cwd: Path = PROJECT) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "dflash_core", *arguments],
        cwd=cwd, capture_output=True, text=True, check=False, env={"PYTHONPATH": str(PROJECT), "PATH": ""},
    )  # fmt: skip


def test_help_loads_nothing_heavy() -> None:
    code = (
        "import sys; from dflash_core import cli; cli.main(['train', '--help']);"
        f"print('loaded:', sorted(set({HEAVY!r}) & set(sys.modules)), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=PROJECT, capture_output=True, text=True, check=True)
    assert "loaded: []" in done.stderr


@pytest.mark.parametrize("command", COMMANDS)
def test_help_has_an_example(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([command, "--help"]) == 0
    assert f"dflash-core {command}" in re.sub(r"\s+", " ", capsys.readouterr().out).split("Example:")[1]


def test_help_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--help"]) == 0
    assert set(COMMANDS) <= set(re.findall(r"[\w-]+", capsys.readouterr().out))


@pytest.mark.parametrize("arguments", [["nope"], ["train", "--nope"], ["export"], []], ids=["command", "option", "missing", "none"])
def test_bad_usage_is_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(arguments) == 2
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.parametrize(
    "error, code, text",
    [
        (DataError("x.jsonl line 3 is broken; correct it."), 2, "x.jsonl line 3"),
        (GateError("the gate said no; look."), 3, "the gate"),
        (Stopped("stopped at step 5; resume."), 4, "step 5"),
        (KeyboardInterrupt(), 4, "Stopped"),
        (OSError(28, "No space left on device", "build/report/report.tmp"), 2, "build/report/report.tmp: No space left on device"),
        (FileNotFoundError(2, "No such file or directory", "a.jsonl"), 2, "a.jsonl: No such file or directory"),
        (OSError(101, "Network is unreachable"), 1, "report it"),
        (ProcessLookupError(3, "No such process"), 1, "report it"),
        (RuntimeError("a bug"), 1, "a bug"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_an_error_has_its_exit_code_and_one_line(
    error: BaseException, code: int, text: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(params: Path) -> None:
        raise error

    monkeypatch.setattr(cli, "_config", fail)
    assert cli.main(["prepare"]) == code
    shown = capsys.readouterr().err
    assert text in shown and shown.count("\n") == 1 and "Traceback" not in shown


@pytest.mark.parametrize("arguments", [["--debug", "prepare"], ["prepare", "--debug"]], ids=["before", "after"])
def test_debug_raises(arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(params: Path) -> None:
        raise DflashError("x")

    monkeypatch.setattr(cli, "_config", fail)
    with pytest.raises(DflashError):
        cli.main(arguments)


def test_module_form_refuses_a_missing_configuration(tmp_path: Path) -> None:
    done = run("prepare", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("Error: params.yaml does not exist")


def test_convert_wants_one_source(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("dflash_core.target.convert")
    assert cli.main(["convert", "--out", str(tmp_path / "t"), "--tiny", "--package", "x"]) == 2
    for package in ("no_such_package", "no_such.package", ""):
        assert cli.main(["convert", "--out", str(tmp_path / "t"), "--package", package]) == 2, package
    assert "not installed" in capsys.readouterr().err


def test_doctor_names_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "params.yaml").write_text(VALID)
    assert cli.main(["doctor"]) == 2
    assert "Missing: target, conversations." in capsys.readouterr().out


def test_plan_refuses_a_target_that_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "params.yaml").write_text(VALID)
    assert cli.main(["train", "--plan"]) == 2
    assert "nowhere is not a directory" in capsys.readouterr().err
