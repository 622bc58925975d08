"""House rules that no linter knows."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
MODULES = sorted(path for package in ("task_tracker", "stores") for path in (ROOT / package).rglob("*.py"))

MOST_LINES = 400
REASON_FOR_MORE = re.compile(r"^# long: \S.*", re.MULTILINE)
REASON_WITHIN_LINES = 50

VAGUE_NAMES = {"base", "common", "helper", "helpers", "manager", "misc", "util", "utils"}
LEFT_FOR_LATER = re.compile(r"\b(?:TODO|FIXME|XXX)\b")

# Optional or slow to import: loaded by what needs them, not by `import task_tracker`.
NOT_AT_IMPORT = ("arq", "fastapi", "filelock", "fsspec", "psycopg", "redis", "starlette")

each_module = pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))


def test_modules_are_found() -> None:
    assert ROOT / "task_tracker" / "__init__.py" in MODULES
    assert ROOT / "stores" / "__init__.py" in MODULES


@each_module
def test_module_is_short_or_says_why_not(path: Path) -> None:
    lines = path.read_text(encoding="utf-8").splitlines()
    if len(lines) > MOST_LINES:
        top = "\n".join(lines[:REASON_WITHIN_LINES])
        assert REASON_FOR_MORE.search(top), (
            f"{len(lines)} lines, more than {MOST_LINES}: split it, or give the reason as "
            f"`# long: <reason>` in the first {REASON_WITHIN_LINES} lines"
        )


@each_module
def test_module_says_what_it_is(path: Path) -> None:
    assert ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))), "no module docstring"


@each_module
def test_module_name_says_something(path: Path) -> None:
    names = {part.removesuffix(".py").strip("_") for part in path.relative_to(ROOT).parts}
    assert names.isdisjoint(VAGUE_NAMES)


@each_module
def test_nothing_is_left_for_later(path: Path) -> None:
    lines = path.read_text(encoding="utf-8").splitlines()
    assert [line for line in lines if LEFT_FOR_LATER.search(line)] == []


def test_import_of_the_library_loads_nothing_optional() -> None:
    program = f"import sys, task_tracker; print(*(name for name in {NOT_AT_IMPORT} if name in sys.modules))"
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == []
