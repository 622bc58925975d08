"""Backend names to stores, third parties' ones too."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from pathlib import Path
from types import ModuleType

import pytest

from stores import InMemoryTaskStore
from task_tracker import SettingsError, StorageConfig
from task_tracker.registry import ENTRY_POINT_GROUP, backend_names, open_store
from task_tracker.store import StoreOptions
from tests.core.support import OWNER

ROOT = Path(__file__).parents[2]
MODULE = """
from stores import InMemoryTaskStore
from task_tracker import SettingsError

seen = []
number = 5

def factory(options):
    seen.append(options)
    unknown = set(options.options) - {"colour"}
    if unknown:
        raise SettingsError(f"dummy has no option {sorted(unknown)[0]!r}; it knows colour")
    return InMemoryTaskStore()

def no_store(options):
    return dict()

def needs_driver(options):
    import a_driver_that_is_not_there
"""
ENTRY_POINTS = f"""
[{ENTRY_POINT_GROUP}]
dummy = dummy_backend_of_tests:factory
nostore = dummy_backend_of_tests:no_store
lazy = dummy_backend_of_tests:needs_driver
value = dummy_backend_of_tests:number
attribute = dummy_backend_of_tests:missing
module = a_module_that_is_not_there:factory
broken = dummy_broken_backend_of_tests:factory
memory = dummy_backend_of_tests:no_store

[somebody.elses]
other = dummy_backend_of_tests:factory
"""


@pytest.fixture
def dummy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An installed distribution that adds backends."""
    info = tmp_path / "dummy_backend-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: dummy-backend\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(ENTRY_POINTS)
    (tmp_path / "dummy_backend_of_tests.py").write_text(MODULE)
    (tmp_path / "dummy_broken_backend_of_tests.py").write_text("raise RuntimeError('two\\nlines')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in ("dummy_backend_of_tests", "dummy_broken_backend_of_tests"):
        monkeypatch.delitem(sys.modules, name, raising=False)


def refusal(backend: str, options: StoreOptions | None = None) -> str:
    with pytest.raises(SettingsError) as refused:
        open_store(backend, options)
    assert "\n" not in str(refused.value)
    return str(refused.value)


def test_memory_is_built_in() -> None:
    assert isinstance(open_store("memory"), InMemoryTaskStore)
    assert backend_names()[:3] == ["memory", "persistent", "lease"]


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"max_recods": 5}, "the memory backend has no option 'max_recods'; it knows max_records"),
        ({"max_records": 0}, "max_records is 0; give a whole number of at least 1"),
        ({"max_records": "5"}, "max_records is '5'; give a whole number of at least 1"),
    ],
)
def test_memory_refuses_what_it_does_not_know(options: dict[str, object], complaint: str) -> None:
    assert refusal("memory", StoreOptions(options=options)) == complaint
    assert isinstance(open_store("memory", StoreOptions(options={"max_records": 1})), InMemoryTaskStore)


def test_an_unknown_name_lists_the_known_ones_and_guesses() -> None:
    assert refusal("persistant") == (
        "unknown backend 'persistant', known are memory, persistent, lease, postgres; did you mean 'persistent'?"
    )
    assert refusal("zzz") == "unknown backend 'zzz', known are memory, persistent, lease, postgres"


# ---- third parties ---------------------------------------------------------------------------------


@pytest.mark.usefixtures("dummy")
def test_a_distribution_adds_backends_by_entry_points() -> None:
    names = backend_names()
    assert names[:3] == ["memory", "persistent", "lease"]
    assert set(names[3:]) >= {"dummy", "nostore"}
    assert names.count("memory") == 1
    assert "other" not in names
    options = StoreOptions(root="/r", options={"colour": "red"})
    assert isinstance(open_store("dummy", options), InMemoryTaskStore)
    assert sys.modules["dummy_backend_of_tests"].seen == [options]


@pytest.mark.usefixtures("dummy")
def test_configuration_reaches_the_backend_of_a_third_party() -> None:
    config = StorageConfig(
        task_tracker={
            "backend": "dummy",
            "root": "/somewhere",
            "prefix": "",
            "durability": "full",
            "lock_timeout_seconds": 3,
            "options": {"colour": "red"},
        }
    )
    client = object()
    with config.build_task_tracker(client, cleanup=False) as tracker:
        assert tracker.create("t", **OWNER).status == "pending"
    assert sys.modules["dummy_backend_of_tests"].seen == [
        StoreOptions("/somewhere", client, "", "full", 3.0, options={"colour": "red"})
    ]
    with pytest.raises(SettingsError, match="dummy has no option 'color'; it knows colour"):
        StorageConfig(task_tracker={"backend": "dummy", "options": {"color": 1}}).build_task_store()


@pytest.mark.usefixtures("dummy")
def test_a_built_in_name_cannot_be_taken_by_others() -> None:
    assert isinstance(open_store("memory"), InMemoryTaskStore)


@pytest.mark.usefixtures("dummy")
@pytest.mark.parametrize(
    ("backend", "complaint"),
    [
        ("nostore", "backend 'nostore' gave a dict, not a TaskStore; its factory must return one"),
        ("lazy", "backend 'lazy' needs the package 'a_driver_that_is_not_there'; install it"),
        (
            "value",
            (
                "backend 'value' is a int at 'dummy_backend_of_tests:number'; its entry point must name a function "
                "of StoreOptions"
            ),
        ),
        (
            "module",
            (
                "backend 'module' cannot be loaded from 'a_module_that_is_not_there:factory': No module named "
                "'a_module_that_is_not_there'; install what it needs or remove it"
            ),
        ),
        (
            "attribute",
            (
                "backend 'attribute' cannot be loaded from 'dummy_backend_of_tests:missing': module "
                "'dummy_backend_of_tests' has no attribute 'missing'; install what it needs or remove it"
            ),
        ),
        (
            "broken",
            (
                "backend 'broken' cannot be loaded from 'dummy_broken_backend_of_tests:factory': two lines; install "
                "what it needs or remove it"
            ),
        ),
    ],
)
def test_what_is_wrong_with_a_backend_is_one_line(backend: str, complaint: str) -> None:
    assert refusal(backend) == complaint


# ---- the package `stores` --------------------------------------------------------------------------


@pytest.mark.parametrize("missing", ["filelock_of_tests", None])
def test_a_built_in_backend_that_lacks_a_package_says_which(
    missing: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(name: str) -> object:
        if name == "stores":
            return __import__("stores")
        raise ImportError("the driver is too old", name=missing)

    monkeypatch.setattr("task_tracker.registry.import_module", refuse)
    assert refusal("memory") == (
        f"backend 'memory' needs the package {missing or 'the driver is too old'!r}; install it"
    )


def somebody_elses(**attributes: object) -> ModuleType:
    module = ModuleType("stores")
    for name, value in attributes.items():
        setattr(module, name, value)
    return module


@pytest.mark.parametrize(
    ("found", "complaint"),
    [
        (
            somebody_elses(__file__="/shop/stores.py"),
            "is not that of durable-task-tracker but /shop/stores.py; rename",
        ),
        (
            somebody_elses(__path__=["/shop/stores"]),
            "is not that of durable-task-tracker but /shop/stores; rename",
        ),
        (somebody_elses(), "is not that of durable-task-tracker but "),
        (ModuleNotFoundError("gone", name="stores"), "of durable-task-tracker is missing; install"),
        (
            ModuleNotFoundError("gone", name="django"),
            "cannot be imported (ModuleNotFoundError: gone); if it is not",
        ),
        (SyntaxError("two\nlines"), "cannot be imported (SyntaxError: two lines); if it is not"),
    ],
)
def test_whatever_python_finds_as_stores_is_one_line(
    found: ModuleType | Exception, complaint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same in real processes: below."""

    def find(name: str) -> ModuleType:
        assert name == "stores"
        if isinstance(found, Exception):
            raise found
        return found

    monkeypatch.setattr("task_tracker.registry.import_module", find)
    assert complaint in refusal("memory")


def run_with(path: Path, *, root: bool = True) -> str:
    """Run a process that finds ``path`` first, and return what a new tracker complains about."""
    program = (
        "import task_tracker\n"
        "try:\n    task_tracker.TaskTracker()\n"
        "except task_tracker.SettingsError as error:\n    print(error)\n"
    )
    # Without `site`: an editable installation would put this project on the path of every process.
    packages = sysconfig.get_paths()["purelib"]
    found = [str(path), *([str(ROOT)] if root else []), packages]
    done = subprocess.run(
        [sys.executable, "-S", "-c", program],
        cwd=path,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(found)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == 1
    return lines[0]


@pytest.mark.parametrize("kind", ["package", "module", "namespace"])
def test_somebody_elses_stores_found_first_is_named(tmp_path: Path, kind: str) -> None:
    place = tmp_path / "stores.py" if kind == "module" else tmp_path / "stores" / "__init__.py"
    place.parent.mkdir(exist_ok=True)
    # A directory without __init__.py is found only where no package of that name is.
    root = kind != "namespace"
    if root:
        place.write_text("shop = 1\n")
    else:
        (tmp_path / "task_tracker").symlink_to(ROOT / "task_tracker")
        place = place.parent
    assert run_with(tmp_path, root=root) == (
        f"the package 'stores' that Python finds is not that of durable-task-tracker but {place}; "
        "rename it or put it behind in sys.path"
    )


def test_somebody_elses_stores_that_cannot_be_imported_is_not_taken_for_ours(tmp_path: Path) -> None:
    (tmp_path / "stores.py").write_text("import a_framework_that_is_not_there\n")
    assert run_with(tmp_path) == (
        "the package 'stores' that Python finds cannot be imported (ModuleNotFoundError: No module named "
        "'a_framework_that_is_not_there'); if it is not that of durable-task-tracker, rename it or put it "
        "behind in sys.path"
    )


def test_stores_that_is_not_there_is_said_to_be_missing(tmp_path: Path) -> None:
    (tmp_path / "task_tracker").symlink_to(ROOT / "task_tracker")
    assert run_with(tmp_path, root=False) == (
        "the package 'stores' of durable-task-tracker is missing; install durable-task-tracker again"
    )


def test_a_backend_whose_driver_is_missing_names_the_extra() -> None:
    asked = "import sys; sys.modules['psycopg'] = None; from stores import PostgresTaskStore"
    done = subprocess.run(
        [sys.executable, "-c", asked], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 1
    assert "psycopg; install it with pip install 'durable-task-tracker[postgres]'" in done.stderr
