"""The contract, kept by the persistent store on file systems of fsspec, by what was found out about each."""

import itertools
from pathlib import Path

import pytest

from task_tracker.testing import TaskStoreContract
from task_tracker.testing.contract.creating import CreatingContract
from task_tracker.testing.contract.deleting import DeletingContract
from task_tracker.testing.contract.listing import ListingContract
from task_tracker.testing.contract.outages import OutageContract
from task_tracker.testing.contract.owners import OwnerContract
from task_tracker.testing.contract.reading import ReadingContract
from task_tracker.testing.contract.updating import UpdatingContract
from task_tracker.testing.contract.upkeep import UpkeepContract
from tests.contract import filesystem_harnesses
from tests.filesystems.servers import AgfsServer

NUMBERS = itertools.count()


class Memory:
    """Compare-and-set among the threads of the process; nothing outlives it."""

    @pytest.fixture
    def harness(self):
        with filesystem_harnesses.memory(next(NUMBERS)) as harness, harness.counting():
            yield harness


class Directory:
    """Renames replace, opening as new is exclusive."""

    @pytest.fixture
    def harness(self, tmp_path: Path):
        with filesystem_harnesses.directory(tmp_path / "root").counting() as harness:
            yield harness


class Agfs:
    """One server for all tests of a class. Renames replace, nothing is exclusive."""

    replaces = True

    @pytest.fixture(scope="class")
    @classmethod
    def server(cls, tmp_path_factory: pytest.TempPathFactory):
        with AgfsServer(tmp_path_factory.mktemp("agfs"), replaces=cls.replaces) as server:
            yield server

    @pytest.fixture
    def harness(self, server: AgfsServer):
        with filesystem_harnesses.agfs(server, next(NUMBERS)).counting() as harness:
            yield harness


class TestMemoryOfFsspec(
    Memory,
    CreatingContract,
    UpdatingContract,
    ReadingContract,
    ListingContract,
    DeletingContract,
    OwnerContract,
    UpkeepContract,
    OutageContract,
):
    """The parts that are quick."""


class TestDirectoryOfFsspec(Directory, CreatingContract, UpdatingContract, DeletingContract, OutageContract):
    """The parts that publish."""


class TestAgfsServer(Agfs, CreatingContract, UpdatingContract, DeletingContract):
    """The same over HTTP."""


@pytest.mark.slow
class TestAllOfItInMemoryOfFsspec(Memory, TaskStoreContract):
    """All of it."""


@pytest.mark.slow
class TestAllOfItOnADirectoryOfFsspec(Directory, TaskStoreContract):
    """All of it, with several processes."""


@pytest.mark.slow
class TestAllOfItOnAnAgfsServer(Agfs, TaskStoreContract):
    """All of it."""


@pytest.mark.slow
class TestAllOfItOnAnAgfsServerWhoseMoveDoesNotReplace(Agfs, TaskStoreContract):
    """As its memory file system is: renames are exclusive, writes are in place."""

    replaces = False

    def test_writer_that_is_killed_leaves_the_old_record_or_the_new(self) -> None:  # type: ignore[override]
        """Nor half of one: that takes a file system that replaces files at once; where none does the log says so."""
        pytest.skip("records are written in place here, and the log has said so")
