"""Snippets of README and docs are run, in order, each page in one namespace."""

from __future__ import annotations

import gc
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
FENCE = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\((?!https?://|#)([^)#]+)(?:#[^)]*)?\)")


def _name(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", [page for page in PAGES if FENCE.search(page.read_text())], ids=_name)
def test_snippets_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    namespace: dict[str, object] = {"__name__": "__docs__"}
    text = page.read_text()
    for match in FENCE.finditer(text):
        line = text[: match.start(1)].count("\n")
        code = compile("\n" * line + match[1], _name(page), "exec", dont_inherit=True)
        exec(code, namespace)
    from task_tracker import TaskTracker, reset_task_tracker
    from task_tracker.duty import Duty

    reset_task_tracker()
    # A page that shows how to build one does not have to show how to close it; its threads must not outlive the test.
    for found in gc.get_objects():
        if type(found) is TaskTracker:
            found.close()
        elif issubclass(type(found), Duty):  # of a tracker that the page let go of
            found.stop()


@pytest.mark.parametrize(
    ("chosen", "at_least"),
    [
        ("purge or history or delete", 30),
        pytest.param("test", 200, marks=pytest.mark.slow),
    ],
)
def test_the_suite_can_be_adopted_as_its_page_says(tmp_path: Path, chosen: str, at_least: int) -> None:
    """In a project of its own, which has nothing but what the page shows."""
    text = (ROOT / "docs" / "writing-a-backend.md").read_text()
    (adopted,) = [match[1] for match in FENCE.finditer(text) if "class TestMyStore" in match[1]]
    (settings,) = re.findall(r"^```toml\n(\[tool\.pytest.*?)^```$", text, re.MULTILINE | re.DOTALL)
    (tmp_path / "test_my_store.py").write_text(adopted)
    (tmp_path / "pyproject.toml").write_text(settings)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-x", "-m", "not slow", "-k", chosen, "--strict-markers"],
        cwd=tmp_path,
        env={**environment, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=600,  # a guard: with everything else beside it, it has taken two minutes
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    passed = re.search(r"(\d+) passed", ran.stdout)
    assert passed
    assert int(passed[1]) >= at_least, ran.stdout


@pytest.mark.parametrize("page", PAGES, ids=_name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in LINK.findall(page.read_text()):
        assert (page.parent / target).exists(), f"{_name(page)} links to {target}"
