"""The PostgreSQL server, for tests that run on every store with leases."""

from tests.postgres.fixtures import ground, grounds

__all__ = ["ground", "grounds"]
