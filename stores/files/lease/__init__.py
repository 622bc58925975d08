"""The lease store: fenced ownership on plain files, by renames of one directory per active task."""
