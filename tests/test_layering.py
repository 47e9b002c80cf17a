"""Imports go one way, and each tool has its importers: read from the syntax trees, nothing is run."""

import ast
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parent.parent
PARTS = ("dflash_core", "tasks", "flows")
# What each part of the core may import of the core; "" is the package's own top-level files.
BASE = {"config", "config_base", "config_data", "errors"}
INPUTS = BASE | {"data", "target", "drafter"}
ALLOWED = {
    "config": {"config_base", "config_data", "errors"},
    "config_base": set(),
    "config_data": {"config_base"},
    "errors": set(),
    "data": INPUTS,
    "target": INPUTS,
    "drafter": INPUTS,
    "data_gate": BASE | {"data", "data_gate"},
    "distributed": INPUTS | {"distributed"},
    "training": INPUTS | {"distributed", "training"},
    "checkpoint": INPUTS | {"distributed", "training", "checkpoint"},
    "proof": INPUTS | {"distributed", "training", "checkpoint", "proof"},
    "evaluation": INPUTS | {"training", "checkpoint", "evaluation"},
    "report": INPUTS | {"training", "checkpoint", "proof", "evaluation", "report", "stages.layout"},
    "diagnosis": {"errors", "diagnosis"},
    "stages": INPUTS | {"data_gate", "distributed", "training", "checkpoint", "proof", "evaluation", "report", "launcher", "diagnosis", "stages"},
    "launcher": BASE | {"launcher"},
    "doctor": BASE,
    "plan_estimate": INPUTS | {"distributed", "training", "checkpoint", "evaluation", "stages.layout"},
    "cli": BASE | {"stages", "doctor", "plan_estimate", "cli_checkpoint", "cli_options", "exit_code"},
    "exit_code": {"errors"},
    "cli_checkpoint": BASE | {"stages"},
    "cli_options": set(),
    "__main__": {"cli"},
    "__init__": set(),
}
# Tools outside the core set, and the one file or part that may import each.
IMPORTERS = {
    "mlflow": ("tasks/mlflow_store.py",),
    "dvc": ("tasks/dvc_stages.py",),
    "great_expectations": ("dflash_core/data_gate/suites.py", "dflash_core/data_gate/validate.py"),
    "pandas": ("dflash_core/data_gate/",),
    "prefect": ("tasks/", "flows/"),
    "matplotlib": ("dflash_core/report/figures.py",),
    # The last reads chat templates, which are jinja2.
    "jinja2": (
        "dflash_core/report/page.py", "dflash_core/diagnosis/page.py", "dflash_core/data_gate/page.py", "dflash_core/data/template.py",
    ),
}
HEAVY = {"torch", "transformers", "great_expectations", "mlflow", "pyarrow", "pandas"}


def source_files() -> list[Path]:
    return sorted(path for part in PARTS for path in (PROJECT / part).rglob("*.py"))


def imported(path: Path, *, at_module_level: bool = False) -> set[str]:
    """Dotted names that a file imports; `from a import b` counts as a.b, since b may be a module."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    nodes = _module_level(tree) if at_module_level else ast.walk(tree)
    names: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} has a relative import"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def _module_level(tree: ast.Module) -> list[ast.AST]:
    """Statements that run on import: not those in functions, nor those for the type checker only."""
    found: list[ast.AST] = []
    todo: list[ast.AST] = list(tree.body)
    while todo:
        node = todo.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or (isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)):
            continue
        found.append(node)
        todo += list(ast.iter_child_nodes(node))
    return found


@pytest.mark.parametrize("path", source_files(), ids=lambda p: str(p.relative_to(PROJECT)))
def test_imports_go_one_way(path: Path) -> None:
    part, *inner = path.relative_to(PROJECT).with_suffix("").parts
    names = {name for name in imported(path) if name.split(".")[0] in PARTS}
    above = {"dflash_core": {"tasks", "flows"}, "tasks": {"flows"}, "flows": set()}[part]
    assert not {n for n in names if n.split(".")[0] in above}
    if part != "dflash_core":
        return
    allowed = ALLOWED[inner[0]] | ({inner[0]} if len(inner) > 1 else set())
    wrong = {n for n in names if not any(n.startswith(f"dflash_core.{a}.") or n == f"dflash_core.{a}" for a in allowed)}
    assert not wrong, f"{inner[0]} may import {sorted(allowed)} of the core, and imports {sorted(wrong)}"


@pytest.mark.parametrize("path", source_files(), ids=lambda p: str(p.relative_to(PROJECT)))
def test_each_tool_has_its_importers(path: Path) -> None:
    here = str(path.relative_to(PROJECT))
    for name in imported(path):
        places = IMPORTERS.get(name.split(".")[0])
        assert places is None or here.startswith(places), f"{name} belongs into {places}"


@pytest.mark.parametrize("path", sorted((PROJECT / "flows").glob("*.py")) + sorted((PROJECT / "tasks").glob("*.py")), ids=lambda p: p.name)
def test_flows_and_tasks_load_nothing_heavy(path: Path) -> None:
    assert not {n for n in imported(path, at_module_level=True) if n.split(".")[0] in HEAVY}
    assert "__future__.annotations" not in imported(path), "a served flow is pickled, and string annotations lose their globals"


def test_data_loads_no_torch_on_import() -> None:
    for path in (PROJECT / "dflash_core/data").glob("*.py"):
        if path.name != "loader.py":
            assert not {n for n in imported(path, at_module_level=True) if n.split(".")[0] in ("torch", "transformers")}, path.name


def test_diagnosis_loads_neither_torch_nor_a_tracker() -> None:
    for path in (PROJECT / "dflash_core/diagnosis").rglob("*.py"):
        assert not {n.split(".")[0] for n in imported(path)} & {"torch", "transformers", "mlflow", "pandas", "scipy"}, path.name


@pytest.mark.parametrize("path", source_files(), ids=lambda p: str(p.relative_to(PROJECT)))
def test_a_file_says_its_responsibility_first(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    if path.name == "__init__.py" and not text:
        return  # nothing in it, nothing to say
    assert ast.get_docstring(ast.parse(text)), "the first line of a file says its one responsibility"
    assert text.startswith('"""')
