"""Handlers are imported when they are needed, once, and holding up nobody else."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from task_tracker import HandlerRegistry, SettingsError, TaskTracker, references
from task_tracker.handlers import Handler
from tests.core.support import in_threads


@pytest.fixture
def registry() -> HandlerRegistry:
    return HandlerRegistry()


def write_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, text: str) -> str:
    (tmp_path / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, name, raising=False)
    return name


def test_nothing_is_imported_before_it_is_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, registry: HandlerRegistry
) -> None:
    name = write_module(tmp_path, monkeypatch, "lazy_handlers", "def run(ctx, payload):\n    return 'ran'\n")
    row = registry.register("ingest", handler=f"{name}:run", on_failure=f"{name}:run")
    with TaskTracker(handlers=registry) as tracker:
        tracker.submit("ingest", {"n": 1}, account_id="acme", user_id="alice")
    assert name not in sys.modules
    assert row.load()(None, None) == "ran"
    assert name in sys.modules
    assert row.load_on_failure() is row.load()


def test_threads_that_need_it_at_once_get_the_same_function(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, registry: HandlerRegistry
) -> None:
    """Two modules that import each other are imported by two threads, and neither sees half of one."""
    for one, other in (("crossed_a", "crossed_b"), ("crossed_b", "crossed_a")):
        write_module(
            tmp_path, monkeypatch, one, f"import {other}\n\ndef run(ctx, payload):\n    return {other}.run\n"
        )
        registry.register(one, handler=f"{one}:run")
    rows = registry.handlers() * 4
    functions = in_threads(*[row.load for row in rows])
    assert [getattr(function, "__module__", function) for function in functions] == [
        row.task_type for row in rows
    ]
    assert len(set(functions)) == 2


def test_an_import_that_meets_others_again_and_again_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each time another thread has begun meanwhile, and Python shows half of a module rather than a deadlock."""
    failures = [RuntimeError("deadlock detected")] * 3

    def import_module(name: str) -> object:
        if name == "json" and failures:
            references._imports.load("string")  # beside it
            raise failures.pop()
        return importlib.import_module(name)

    monkeypatch.setattr(references, "import_module", import_module)
    assert references.load_reference("json:dumps", ("obj",)) is json.dumps
    assert not failures


def test_an_import_that_takes_long_holds_up_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, registry: HandlerRegistry
) -> None:
    """[D160]"""
    entered, opened = threading.Event(), threading.Event()
    monkeypatch.setattr(sys, "test_gate", (entered, opened), raising=False)
    text = "import sys\nentered, opened = sys.test_gate\nentered.set()\nassert opened.wait(30)\n"
    slow = write_module(tmp_path, monkeypatch, "slow_handlers", f"{text}def run(ctx, payload): ...\n")
    quick = write_module(tmp_path, monkeypatch, "quick_handlers", "def run(ctx, payload): ...\n")
    rows = [
        registry.register(name, handler=f"{name}:run", on_failure=f"{name}:run") for name in (slow, quick)
    ]
    loading = threading.Thread(target=rows[0].load)
    loading.start()
    try:
        assert entered.wait(30)
        assert rows[1].load() is rows[1].load_on_failure()
        assert [row.is_loaded for row in rows] == [False, True]
    finally:
        opened.set()
        loading.join()
    assert rows[0].is_loaded


def test_what_fails_since_two_threads_imported_at_once_is_imported_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, registry: HandlerRegistry
) -> None:
    """Of two modules that import each other one may see half of the other, and none does when it is alone."""
    tries: list[str] = []
    entered, opened = threading.Event(), threading.Event()
    monkeypatch.setattr(sys, "test_gate", (tries, entered, opened), raising=False)
    slow = write_module(
        tmp_path,
        monkeypatch,
        "slow_half",
        "import sys\n_, entered, opened = sys.test_gate\nentered.set()\nassert opened.wait(30)\n"
        "def run(ctx, payload): ...\n",
    )
    half = write_module(
        tmp_path,
        monkeypatch,
        "other_half",
        "import sys\ntries = sys.test_gate[0]\ntries.append('')\n"
        "if len(tries) % 2: raise ImportError('partially initialized module')\n"
        "def run(ctx, payload): ...\n",
    )
    slow_row, half_row = (registry.register(name, handler=f"{name}:run") for name in (slow, half))
    loading = threading.Thread(target=slow_row.load)
    loading.start()
    assert entered.wait(30)
    try:
        half_row.load()
        assert len(tries) == 2
    finally:
        opened.set()
        loading.join()
    monkeypatch.delitem(sys.modules, half)
    with pytest.raises(SettingsError, match="partially initialized"):
        registry_of(f"{half}:run").load()
    assert len(tries) == 3, "alone it is wrong at once"


def registry_of(reference: str) -> Handler:
    return HandlerRegistry().register("t", handler=reference)


@pytest.mark.parametrize(
    "text",
    [
        "raise SystemExit('usage')",
        "import asyncio\nraise asyncio.CancelledError",
        "class Bad(Exception):\n    def __str__(self): raise SystemExit\nraise Bad",
        "def __getattr__(name):\n    import not_installed",
        "def __getattr__(name):\n    raise SystemExit",
        "class Run:\n    __signature__ = property(lambda self: 1 / 0)\n    def __call__(self): ...\nrun = Run()",
        "class Run:\n    def __repr__(self): raise SystemExit\nrun = Run()",
    ],
)
def test_whatever_a_module_does_when_it_is_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    """A script that calls sys.exit(), a module that finds its names by code of its own."""
    row = registry_of(f"{write_module(tmp_path, monkeypatch, 'odd_handlers', text)}:run")
    with pytest.raises(SettingsError, match="odd_handlers"):
        row.load()
    (problem,) = row.problems()
    assert "odd_handlers" in problem


def test_somebodys_ctrl_c_ends_a_check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no signal comes, in other threads, it is the module's own doing."""
    row = registry_of(f"{write_module(tmp_path, monkeypatch, 'asked', 'raise KeyboardInterrupt')}:run")
    with pytest.raises(KeyboardInterrupt):
        row.load()
    (error,) = in_threads(row.load)
    assert isinstance(error, SettingsError)


def test_importing_the_library_with_handlers_brings_no_pydantic() -> None:
    program = (
        "import sys\nfrom task_tracker import HandlerRegistry\n"
        "HandlerRegistry().register('t', handler='a.b:c', payload=dict)\n"
        "print([name for name in ('pydantic', 'asyncio') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.strip() == "[]", done.stderr
