"""The contract, kept by the lease store on files."""

import pytest

from task_tracker.testing import LeaseStoreContract
from tests.contract.lease_harnesses import LeaseDirectoryHarness


class TestLeaseStoreOnADirectory(LeaseStoreContract):
    @pytest.fixture
    def harness(self, tmp_path):
        with LeaseDirectoryHarness(tmp_path).counting() as harness:
            yield harness
