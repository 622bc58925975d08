"""Records as files: layout, publication, the persistent store."""
