"""Answers that are not the object store's, and ids that look like its words."""

import pytest

from stores.files.objects_probe import Found
from stores.files.objects_requests import Requests
from task_tracker.errors import StoreUnavailable, TaskNotFound
from task_tracker.testing import RecordMaker
from tests.objects.server import UNAVAILABLE
from tests.objects.support import files_of, open_on


@pytest.fixture
def store(s3_server):
    return open_on(s3_server, s3_server.new_root())


@pytest.mark.parametrize("word", ["NoSuchBucket", "AccessDenied", "NotImplemented", "OperationAborted"])
def test_id_that_is_a_word_of_the_server(store, word):
    make = RecordMaker()
    with pytest.raises(TaskNotFound):
        store.get(make.key(word))
    record = make(word, user_id=word)
    store.create(record)
    assert store.get(record.key).record == record


def test_page_of_a_proxy_is_not_a_missing_task(store, monkeypatch):
    """A 404 is believed if the object store says what is missing, or does not list it."""
    make = RecordMaker()
    record = make()
    store.create(record)
    stores = Requests._stores

    class Proxy:
        def __init__(self, library):
            self._library = library

        def __getattr__(self, name):
            return getattr(self._library, name)

        def get(self, *arguments, **options):
            raise FileNotFoundError("status code: 404 Not Found: <html>404 nginx</html>")

    def through_proxy(self):
        library, reading, writing = stores(self)
        return Proxy(library), reading, writing

    with monkeypatch.context() as patch:
        patch.setattr(Requests, "_stores", through_proxy)
        with pytest.raises(StoreUnavailable):
            store.get(record.key)
        with pytest.raises(TaskNotFound):
            store.get(make.key("unheard-of"))
    assert store.get(record.key).record == record


@pytest.mark.parametrize("number", [1, 2, 3])
def test_hiccup_during_the_probe_is_no_missing_promise(s3_server, number):
    """A request that was sent twice must not look like a server that ignores conditions. [D090]"""
    store = open_on(s3_server, s3_server.new_root(), max_retries=2)
    puts = [0]

    def disturb(method, key):
        if method != "PUT" or "probe" not in key:
            return None
        puts[0] += 1
        return UNAVAILABLE if puts[0] == number else None

    with s3_server.disturbed(disturb):
        assert store.capabilities.compare_and_set
        assert files_of(store)._probed() == Found(True, True, True)
    assert puts[0] > 3, "one was sent again"
