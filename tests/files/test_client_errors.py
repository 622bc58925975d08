"""What clients' errors are taken for: absence, presence, or trouble."""

from __future__ import annotations

import pytest

from stores.files.client_errors import meaning_of

PATH = "/local/acme/tasks/user/session-1.json"


def named(name: str, *bases: type[Exception]) -> type[Exception]:
    return type(name, bases or (Exception,), {})


def meaning(error: Exception, method: str = "read", path: str = PATH) -> str:
    kind = meaning_of(error, method, [path])
    return "trouble" if kind is None else {FileNotFoundError: "missing", FileExistsError: "taken"}[kind]


@pytest.mark.parametrize(
    "text",
    [
        f"no such file: {PATH}",  # AGFS localfs, read
        "no such directory: /acme/tasks/user",  # AGFS localfs, ls
        f"no such file or directory: {PATH}",  # AGFS memfs
        "parent directory does not exist: /acme/tasks/user",  # AGFS localfs, write
        f"not found: {PATH}",  # ragfs
        "No such file or directory",  # pyagfs, of a 404 without a text
        f"file not found: {PATH}",
        f"open {PATH}: file does not exist",  # Go's fs.ErrNotExist
        f"{PATH} not found",
        f"user alice: {PATH}: not found",
        "NoSuchKey: The specified key does not exist.",
        "Object doesn't exist",
    ],
)
def test_texts_of_absence(text: str) -> None:
    """[D071] Whatever the type, these sentences mean that the path is not there."""
    assert meaning(RuntimeError(text)) == "missing"
    assert meaning(named("AGFSClientError")(text)) == "missing"


@pytest.mark.parametrize(
    "text",
    [
        "mount point not found: /local",  # ragfs
        "user not found",
        "User 'alice' not found",
        "connection not found",
        "session not found, log in again",
        "API key not found",
        "token does not exist",
        "the specified bucket does not exist",
        "host not found",
        "404 page not found",  # Go's router: another version of the API
        "plugin not found: localfs",
        "method not found",
        "lookup agfs on 10.0.0.2: no such host",
        "permission denied: /local/acme",
        "Connection refused - server not running at localhost:8080",
        "Request timeout after 10s",
        "Internal server error",
        "Bad Gateway - backend service unavailable",
        "is a directory: /local/acme",
        "not a directory: /local/acme",
        "",
    ],
)
def test_texts_of_trouble(text: str) -> None:
    """[D071] Something else is not found, or wrong: nothing is known of the path."""
    assert meaning(RuntimeError(text)) == "trouble"


@pytest.mark.parametrize(
    "text", ["file already exists: /x", "directory already exists: /x", "already exists: /x", "file exists"]
)
def test_texts_of_presence(text: str) -> None:
    assert meaning(RuntimeError(text), "mkdir") == "taken"


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (FileNotFoundError(2, "No such file"), "missing"),
        (FileExistsError(17, "File exists"), "taken"),
        (KeyError(PATH), "missing"),
        (KeyError(PATH.lstrip("/")), "missing"),
        (KeyError("acme"), "missing"),
        (KeyError("session-1.json"), "missing"),
        (KeyError("content"), "trouble"),
        (KeyError(), "trouble"),
        (PermissionError(13, "Permission denied"), "trouble"),
        (PermissionError("file not found or not allowed"), "trouble"),
        (ConnectionRefusedError("not found"), "trouble"),
        (TimeoutError("not found in time"), "trouble"),
        (OSError(5, "Input/output error"), "trouble"),
        (ModuleNotFoundError("No module named 'requests'"), "trouble"),
        (ImportError("symbol not found"), "trouble"),
        (NotADirectoryError(20, "Not a directory"), "trouble"),
        (named("AGFSNotFoundError")("gone"), "missing"),
        (named("NotFound")(""), "missing"),
        (named("PathNotFoundError")(""), "missing"),
        (named("ServerFileNotFoundError")(""), "missing"),
        (named("Child", named("FileNotFound"))("gone"), "missing"),
        (named("ObjectNotFound", KeyError)("it is gone"), "missing"),
        (named("AGFSMountPointNotFoundError")("mount point not found: /local"), "trouble"),
        (named("UserNotFoundError")("not found"), "trouble"),
        (named("HostNotFoundError")("not found"), "trouble"),
        (named("AGFSAlreadyExistsError")(""), "taken"),
        (named("AGFSFileExistsError")(""), "taken"),
        (named("AGFSMountPointExistsError")("mount point exists"), "trouble"),
        (
            named("ConnectError")("[Errno 2] No such file or directory"),
            "trouble",
        ),  # a unix socket that is gone
        (named("AGFSConnectionError")("server not found"), "trouble"),
        (named("AGFSTimeoutError")("not found in time"), "trouble"),
        (named("AGFSPermissionDeniedError")("not found or denied"), "trouble"),
        (named("AuthenticationError")("account not found"), "trouble"),
    ],
    ids=repr,
)
def test_types_and_their_names(error: Exception, expected: str) -> None:
    """[D071]"""
    assert meaning(error) == expected


@pytest.mark.parametrize(
    "error",
    [
        NotADirectoryError(20, "Not a directory"),
        RuntimeError("not a directory: /local/notes.txt"),
        named("AGFSNotADirectoryError")("no"),
    ],
    ids=repr,
)
def test_a_file_has_nothing_in_it(error: Exception) -> None:
    """Listing a file where an account's directory would be is listing nothing."""
    assert meaning(error, "ls") == "missing"
    assert meaning(error, "write") == "trouble"
