"""A table that is replicated by its primary key, as somebody has said, is so after the last migration too."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from stores.postgres.migrating import Migrations
from tests.postgres.grounds import Ground
from tests.postgres.test_migrations import connect
from tests.postgres.test_upgrades import steps_until


def test_index_that_names_rows_for_replication_still_does(bare: Ground, tmp_path: Path) -> None:
    """Without it the server refuses every update and every delete of a published table."""
    with closing(connect(bare)) as connection:
        Migrations(bare.names, steps_until(2, tmp_path / "steps")).apply(connection)
        ((index,),) = bare.run(
            "SELECT c.conname::text FROM pg_constraint c WHERE c.conrelid = '{tasks}'::regclass AND c.contype = 'p'"
        )
        bare.run(f'ALTER TABLE {{tasks}} REPLICA IDENTITY USING INDEX "{index}"')
        Migrations(bare.names).apply(connection)
    named = bare.run(
        "SELECT c.relname::text FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid "
        "WHERE i.indrelid = '{tasks}'::regclass AND i.indisreplident"
    )
    assert named == [(index,)]
