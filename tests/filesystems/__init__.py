"""Stores on file systems of fsspec and behind AGFS: what is found out there, and what is promised."""
