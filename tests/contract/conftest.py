"""The S3 server, started once for these tests."""

from tests.objects.server import s3_server, shared_server

__all__ = ["s3_server", "shared_server"]
