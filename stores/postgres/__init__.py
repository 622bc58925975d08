"""Records in PostgreSQL, written under leases; see docs/postgres.md."""
