"""URLs and options: fsspec's names are understood, others are refused, and no secret is shown."""

import subprocess
import sys

import pytest
from pydantic import SecretStr

from stores.files.backing import ETag
from stores.files.objects import ObjectFiles
from stores.files.objects_options import ObjectSettings
from stores.files.objects_requests import Requests
from stores.files.persistent import PersistentTaskStore
from task_tracker.clock import SYSTEM_CLOCK
from task_tracker.errors import SettingsError
from task_tracker.registry import open_store
from task_tracker.store import Query, StoreOptions
from task_tracker.testing import RecordMaker
from task_tracker.testing.answers import listed


def config_of(url, **options):
    settings = ObjectSettings.of(url, options)
    return {name: value for name, value in settings.config.items() if name != "disable_bulk_delete"}


class TestNames:
    def test_s3(self):
        """As s3fs has them."""
        assert config_of(
            "s3://bucket/prefix",
            key="k",
            secret=SecretStr("s"),
            token="t",
            client_kwargs={"region_name": "eu-central-1", "endpoint_url": "https://s3.example.org"},
        ) == {
            "access_key_id": "k",
            "secret_access_key": "s",
            "session_token": "t",
            "region": "eu-central-1",
            "endpoint": "https://s3.example.org",
        }

    def test_what_is_given_twice_is_taken_from_outside(self):
        """As s3fs does."""
        config = config_of(
            "s3://b", endpoint_url="https://one", client_kwargs={"endpoint_url": "https://two"}
        )
        assert config == {"endpoint": "https://one"}

    def test_nothing_given_is_left_to_the_environment(self):
        assert config_of("s3://bucket", key=None) == {}

    @pytest.mark.parametrize(
        ("url", "options", "config"),
        [
            ("s3://b", {"anon": True}, {"skip_signature": True}),
            ("gs://b", {"token": "anon"}, {"skip_signature": True}),
            ("gcs://b", {"token": "/keys/sa.json"}, {"service_account": "/keys/sa.json"}),
            ("az://c", {"account_name": "a", "account_key": "k"}, {"account_name": "a", "account_key": "k"}),
            ("abfs://c", {"sas_token": "s"}, {"sas_key": "s"}),
        ],
    )
    def test_others(self, url, options, config):
        assert config_of(url, **options) == config

    def test_plain_http_is_allowed_if_the_endpoint_says_so(self):
        assert ObjectSettings.of("s3://b", {"endpoint_url": "http://localhost:9000"}).allow_http
        assert not ObjectSettings.of("s3://b", {"endpoint_url": "https://s3.example.org"}).allow_http
        assert not ObjectSettings.of("s3://b", {}).allow_http

    def test_urls_are_written_in_many_ways(self):
        assert ObjectSettings.of("S3://bucket/prefix//", {}).url == "s3://bucket/prefix"


class TestRefusals:
    @pytest.mark.parametrize(
        ("url", "options", "says"),
        [
            ("s3://bucket", {"acces_key": "x"}, "has no option 'acces_key'; it knows anon, client_kwargs,"),
            ("gs://bucket", {"key": "x"}, "has no option 'key'; it knows anon,"),
            ("s3://bucket", {"client_kwargs": {"verify": False}}, "client_kwargs has no 'verify'"),
            ("s3://bucket", {"client_kwargs": "x"}, "give a dict"),
            ("s3://bucket", {"key": 1}, "option key is a int"),
            ("s3://bucket", {"timeout_seconds": 0}, "timeout_seconds is 0"),
            ("s3://bucket", {"timeout_seconds": "soon"}, "timeout_seconds is 'soon'"),
            ("s3://bucket", {"max_retries": -1}, "max_retries is -1"),
            ("s3://", {}, "bucket/prefix"),
            ("s3:///prefix", {}, "bucket/prefix"),
            ("s3://bucket?x=1", {}, "bucket/prefix"),
            ("ftp://host", {}, "object stores have URLs with s3"),
        ],
    )
    def test_what_is_not_known(self, url, options, says):
        """A misspelt credential would silently be the environment's."""
        with pytest.raises(SettingsError, match=says):
            ObjectSettings.of(url, options)

    def test_credentials_in_the_url_are_refused_and_not_repeated(self):
        with pytest.raises(SettingsError) as raised:
            ObjectSettings.of("s3://key:s3cret@bucket/prefix", {})
        assert "s3cret" not in str(raised.value)

    def test_library_that_is_not_installed(self):
        """Said when the store is opened, with what to install."""
        program = (
            "import sys; sys.modules['obstore'] = None\n"
            "from task_tracker.errors import SettingsError\n"
            "from stores.files.persistent import PersistentTaskStore\n"
            "try: PersistentTaskStore('s3://bucket')\n"
            "except SettingsError as error: print(error)\n"
        )
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
        assert "pip install 'durable-task-tracker[s3]'" in done.stdout


class TestOpening:
    def test_configuration_opens_a_store(self, s3_server):
        """One construction path: what is configured is what the class opens. [D087]"""
        root, make = s3_server.new_root(), RecordMaker()
        configured = open_store("persistent", StoreOptions(root=root, options=s3_server.options()))
        record = make()
        configured.create(record)
        assert listed(PersistentTaskStore(root, options=s3_server.options())) == [record]

    def test_record_that_another_client_wrapped_is_one_error(self, s3_server):
        """Encrypted, for instance: that record is corrupt, the others are as they were. [D087]"""
        root, make = s3_server.new_root(), RecordMaker()
        store = PersistentTaskStore(root, options=s3_server.options())
        record, sealed = make(), make("sealed")
        store.create(record)
        place = root.removeprefix("s3://").partition("/")[2] + "/local/acme/tasks/alice/"
        s3_server.put(f"{place}{sealed.task_id}.json", b"\x00sealed\xff" * 20)
        again = PersistentTaskStore(root, options=s3_server.options())
        page = again.list(Query("acme", limit=None))
        assert ([stored.record for stored in page.items], len(page.corrupt)) == ([record], 1)
        assert again.create_if_no_active(make(resource_id="other")) is not None

    def test_opening_asks_nothing(self, s3_server):
        """A process can be forked afterwards, or the store be down for a moment."""
        with s3_server.counted() as requests:
            PersistentTaskStore(s3_server.new_root(), options=s3_server.options())
            ObjectFiles.open("s3://bucket", SYSTEM_CLOCK, {})
        assert not requests

    def test_first_task_of_a_new_user_needs_nothing_made(self, s3_server):
        """Names with slashes are all there is to a directory. [D093]"""
        root, make = s3_server.new_root(), RecordMaker()
        store = PersistentTaskStore(root, options=s3_server.options())
        records = [make(account_id=f"a{n}", user_id="new") for n in range(3)]
        with s3_server.counted() as requests:
            for record in records:
                store.create(record)
        assert requests["PUT"] == 3 + 1 + 3, "the probe's, the note of the opening, and the records"
        assert [listed(store, Query(record.account_id)) for record in records] == [[each] for each in records]


def test_google_compares_generations():
    """Its tags do not serve as conditions, so the generation is part of ours."""
    requests = Requests(ObjectSettings.of("gs://bucket", {}), SYSTEM_CLOCK)
    tag = requests._tag({"e_tag": '"abc"', "version": "17"})
    assert tag == ETag("abc#17")
    assert requests._version(tag) == {"e_tag": '"abc"', "version": "17"}
    assert requests._quoted(tag) == '"abc"'
    amazon = Requests(ObjectSettings.of("s3://bucket", {}), SYSTEM_CLOCK)
    assert amazon._tag({"e_tag": "abc", "version": "17"}) == amazon._tag({"e_tag": '"abc"', "version": None})
    assert amazon._tag({"e_tag": None, "version": None}) is None
