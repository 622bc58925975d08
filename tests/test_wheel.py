"""The built wheel, as a user gets it: what is in it, and that it works where nothing else is."""

import email
import json
import re
import subprocess
import sys
import venv
import zipfile
from email.message import Message
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

USE_EVERY_DEPENDENCY_OF_THE_CORE = """
import sys
from task_tracker import StorageConfig

for config in {"backend": "memory"}, {"backend": "persistent", "root": sys.argv[1]}:
    tracker = StorageConfig(task_tracker=config).build_task_tracker()
    task = tracker.create("reindex", account_id="acme", user_id="alice")
    tracker.start(task.task_id)
    tracker.complete(task.task_id, {"done": True})
    assert tracker.get(task.task_id, "acme", "alice").to_dict()["status"] == "completed"
    tracker.close()
"""


def run(*command: str | Path, cwd: Path) -> str:
    """Run a command and return its output; a failure shows what it said."""
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def index_trouble(workdir: Path) -> str | None:
    """Why nothing can be installed here, in one line; None if the package index answers."""
    probe = ["-m", "pip", "download", "--quiet", "--no-deps", "--retries=1", "--timeout=15", "filelock"]
    done = subprocess.run([sys.executable, *probe], cwd=workdir, capture_output=True, text=True, check=False)
    return None if done.returncode == 0 else (done.stderr.strip().splitlines() or ["pip failed"])[-1]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("wheel")
    run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", directory, cwd=ROOT)
    (path,) = directory.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def metadata(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return email.message_from_bytes(archive.read(name))


def test_wheel_contains_both_packages_whole_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        inside = {name for name in archive.namelist() if ".dist-info/" not in name}
    packages = (ROOT / "task_tracker", ROOT / "stores")
    sources = {
        path.relative_to(ROOT).as_posix()
        for package in packages
        for path in package.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert inside == sources
    assert {"task_tracker/py.typed", "stores/py.typed"} <= inside


def test_metadata_names_the_distribution_and_its_extras(metadata: Message) -> None:
    assert metadata["Name"] == "durable-task-tracker"
    assert metadata["Requires-Python"] == ">=3.11"
    assert metadata["License-Expression"] == "Apache-2.0"
    assert {"all", "dev", "http"} <= set(metadata.get_all("Provides-Extra", []))


def test_every_dependency_has_a_lower_and_an_upper_bound(metadata: Message) -> None:
    requirements = metadata.get_all("Requires-Dist", [])
    own = [line for line in requirements if not line.startswith("durable-task-tracker[")]
    tools = [line for line in own if "extra == 'dev'" in line]
    assert own
    assert [line for line in own if line not in tools and not (">=" in line and "<" in line)] == []


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Skip what installs something if nothing can be installed here."""
    trouble = index_trouble(tmp_path_factory.mktemp("probe"))
    if trouble is not None:
        pytest.skip(f"no package index within reach: {trouble}")


def new_environment(directory: Path, *requirements: str) -> tuple[Path, dict[str, str]]:
    """Make an environment with these in it. Return its Python, and the version of what it contains."""
    venv.create(directory, with_pip=False)
    python = directory / "bin" / "python"
    pip = (sys.executable, "-m", "pip", "--python", python)
    run(*pip, "install", "--quiet", *requirements, cwd=directory)
    listing = json.loads(run(*pip, "list", "--format=json", cwd=directory))
    return python, {distribution["name"].lower(): distribution["version"] for distribution in listing}


def test_wheel_is_all_that_is_needed_of_this_project(wheel: Path, tmp_path: Path) -> None:
    """Unpacked somewhere else, with the dependencies that are installed here."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "unpacked")
    program = "import sys; sys.path.insert(0, sys.argv.pop(1))"
    where = "import task_tracker, stores; print(task_tracker.__file__); print(stores.__file__)"
    found = run(
        sys.executable,
        "-I",
        "-c",
        f"{program}\n{where}\n{USE_EVERY_DEPENDENCY_OF_THE_CORE}",
        tmp_path / "unpacked",
        tmp_path / "tasks",
        cwd=tmp_path,
    )
    assert all(Path(line).is_relative_to(tmp_path / "unpacked") for line in found.splitlines()), found


@pytest.mark.slow
@pytest.mark.usefixtures("index")
def test_wheel_without_extras_works_in_an_empty_environment(wheel: Path, tmp_path: Path) -> None:
    python, installed = new_environment(tmp_path / "empty", str(wheel))
    assert "durable-task-tracker" in installed
    assert installed.keys().isdisjoint({"arq", "fastapi", "fsspec", "psycopg", "redis", "starlette"})

    program = "import task_tracker, stores; print(task_tracker.__file__); print(stores.__file__)"
    where = run(python, "-I", "-c", program, cwd=tmp_path)
    assert all(Path(line).is_relative_to(tmp_path) for line in where.splitlines()), where
    run(python, "-I", "-c", USE_EVERY_DEPENDENCY_OF_THE_CORE, tmp_path / "tasks", cwd=tmp_path)


@pytest.mark.slow
@pytest.mark.skipif(sys.version_info >= (3, 12), reason="the lowest versions exist for Python 3.11 only")
@pytest.mark.usefixtures("index")
def test_wheel_works_with_the_lowest_versions_that_it_allows(
    wheel: Path, metadata: Message, tmp_path: Path
) -> None:
    lowest = {
        match[1]: match[2]
        for line in metadata.get_all("Requires-Dist", [])
        if "extra == 'dev'" not in line and (match := re.match(r"([\w-]+).*>=([\d.]+)", line))
    }
    assert {"fastapi", "filelock", "orjson", "pydantic", "pydantic-settings"} <= lowest.keys()

    pins = [f"{name}=={version}" for name, version in lowest.items()]
    python, installed = new_environment(tmp_path / "lowest", f"{wheel}[http]", *pins)
    assert all(installed[name].startswith(version) for name, version in lowest.items()), installed

    run(python, "-I", "-W", "error", "-c", "import task_tracker.http", cwd=tmp_path)
    run(python, "-I", "-c", USE_EVERY_DEPENDENCY_OF_THE_CORE, tmp_path / "tasks", cwd=tmp_path)
