"""What is masked, what is left alone, and in which order. Fake keys are put together at run time, so that no
secret scanner mistakes this file for a leak."""

# long: the tables of what is masked and of what is not are read side by side

import base64
import json
import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from task_tracker import redaction
from task_tracker.redaction import (
    JSON,
    MAX_ERROR_CHARS,
    REDACTED,
    SENSITIVE_KEYS,
    clean_text,
    is_sensitive_key,
    redact_error,
    redact_text,
    redact_value,
)

SECRET = "Zq9" + "hunter2" + "Vx"
BODY = "a1B2c3D4e5F6g7H8j9K0" * 3
HEX = "0123456789abcdef" * 4
JWT = ".".join("eyJ" + part for part in ("hbGciOiJIUzI1NiJ9", "zdWIiOiIxMjM0In0", "sig-na_ture"))
PEM = "\n".join(
    ("-----BEGIN " + "RSA PRIVATE KEY-----", "MIIEow" + BODY, BODY, "-----END " + "RSA PRIVATE KEY-----")
)
MASKED = REDACTED

# Forms of their own: masked wherever they stand.
KEYS = {
    "jwt": JWT,
    "jwt-cut": JWT[:25],
    "jwt-short": "eyJ" + "hbGci.eyJzdWIi.c2ln",
    "openai": "sk-" + BODY[:48],
    "openai-lower-case": "sk-" + "abcdefghijklmnopqrst",
    "openai-project": "sk-" + "proj-" + BODY,
    "anthropic": "sk-" + "ant-api03-" + BODY + "-_AA",
    "openrouter": "sk-" + "or-v1-" + HEX,
    **{f"github-{kind}": f"gh{kind}_" + BODY[:36] for kind in "pousr"},
    "github-fine-grained": "github_" + "pat_11ABC_" + BODY,
    "gitlab": "gl" + "pat-" + BODY[:20],
    **{f"slack-{kind}": f"xox{kind}-1234567890-" + BODY[:24] for kind in "abprs"},
    "slack-app": "xapp" + "-1-A0-" + BODY[:24],
    "slack-rotated": "xoxe." + "xoxp-1-" + BODY,
    "aws-access-key": "AK" + "IAIOSFODNN7EXAMPLE",
    "aws-session-key": "AS" + "IAIOSFODNN7EXAMPLE",
    "google": "AI" + "za" + BODY[:35],
    "google-oauth": "ya29" + "." + BODY,
    "stripe-secret": "sk_" + "live_" + BODY[:24],
    "stripe-restricted": "rk_" + "live_" + BODY[:24],
    "hugging-face": "hf" + "_" + BODY[:34],
    "notion": "ntn" + "_" + BODY[:46],
    "notion-old": "secret" + "_" + BODY[:43],
    "npm": "npm" + "_" + BODY[:36],
    "pypi": "pypi-" + "AgEIcHlwaS5vcmc" + BODY,
    "volcengine": "AK" + "LT" + BODY[:44],
    "ark": "ark-" + "01234567-89ab-cdef-0123-456789abcdef-0a1b2",
    "alibaba": "LT" + "AI" + BODY[:20],
    "coze": "pat" + "_" + BODY,
    "groq": "gsk" + "_" + BODY,
    "sendgrid": "SG" + "." + BODY[:22] + "." + BODY[:43],
    "pem": PEM,
    "pem-escaped": PEM.replace("\n", "\\n"),
    "pem-certificate": PEM.replace("RSA PRIVATE KEY", "CERTIFICATE"),
    "pem-pgp": PEM.replace("RSA PRIVATE KEY", "PGP PRIVATE KEY BLOCK"),
    "pem-ssh2": PEM.replace("-----BEGIN", "---- BEGIN").replace("-----END", "---- END"),
}
each_key = pytest.mark.parametrize("key", KEYS.values(), ids=KEYS)

# Credentials by their place: {} is the secret. Without the `|` part, nothing but the secret changes.
PLACES = {
    "bearer": "sent Authorization: Bearer {} to h",
    "bearer-alone": "got 401 for bearer {}",
    "bearer-encoded": "h/?a=Bearer%20{}",
    "bearer-json": '{{"Authorization": "{}", "a": 1}}|{{"Authorization": "Bearer {}", "a": 1}}',
    "bearer-curl": "curl -H 'Authorization: Bearer {}' http://h/",
    "basic": "Authorization: Basic {}",
    "unknown-scheme": "Authorization: {}\nHost: h|Authorization: Custom a {} b\nHost: h",
    "unknown-scheme-curl": "curl -H 'Authorization: {}' http://h/|curl -H 'Authorization: Custom a {}' http://h/",
    "proxy-authorization": "Proxy-Authorization: NTLM {}",
    "quoted-after-scheme": 'Authorization: Bearer "{}"',
    "digest": 'Authorization: {}|Authorization: Digest username="u", nonce="n", response="{}"',
    "digest-alone": 'sent Digest {}\nthen|sent Digest username="u", nonce="n", response="{}"\nthen',
    "cookie": "Cookie: {}\nHost: h|Cookie: a=b; sid={}; c=d\nHost: h",
    "set-cookie": "{{'Set-Cookie': '{}'}}|{{'Set-Cookie': 'sid={}; Path=/'}}",
    "raw-headers": "[(b'cookie', b'{}'), (b'host', b'h')]",
    "raw-header-x": "('x-api-key', '{}')",
    "url": "postgresql://user:{}@db.example.org:5432/name?x=1",
    "url-no-user": "redis://:{}@h:6379/0",
    "url-driver": "connect to 'postgresql+psycopg://user:{}@h/db' failed",
    "url-at": "postgresql://user:{}@h/db|postgresql://user:p@ss%40{}@h/db",
    "url-user-at": "smtp://me@example.org:{}@h:587",
    "url-hash": "postgresql://user:{}@h/db|postgresql://user:p?a#{}@h/db",
    "url-slash": "postgresql://user:{}@h/db|postgresql://user:p/{}@h/db",
    "url-digits": "amqp://user:{}@h/|amqp://user:123!{}@h/",
    "url-list": "redis://:{}@h1,redis://:x@h2|",
    "url-cut": "cannot connect to postgresql://user:{}",
    "no-scheme": "cannot connect to user:{}@host",
    "no-scheme-port": "cannot connect to admin:{}@db.example.org:5432",
    "dsn": "host=h password={} dbname=d",
    "dsn-quoted": "host=h password='{}' dbname=d|host=h password='a b {}' dbname=d",
    "dsn-delimiters": "host=h password={} dbname=d|host=h password=a,b;c&d){} dbname=d",
    "ado": "Server=h;Pwd={};User=u",
    "odbc": "UID=sa;PWD={};x=1",
    "azure": "AccountName=a;AccountKey={};Suffix=core|AccountName=a;AccountKey={}==;Suffix=core",
    "query": "GET https://h/p?token={}&page=2",
    "query-encoded": "next=%2Fp%3Ftoken%3D{}",
    "query-json-escaped": r"https://h/?a=1\u0026access_token={}",
    "s3": f"https://h/k?X-Amz-Credential={{}}&X-Amz-Security-Token={MASKED}&x=1|"
    f"https://h/k?X-Amz-Credential={{}}/2024/s3&X-Amz-Security-Token={MASKED}&x=1",
    "env": "OPENAI_API_KEY={} HOME=/root",
    "numbered": "api_key_2: {}",
    "spaced": "wrong API key: {} (401)",
    "session-token": "session token = {}",
    "camel-case": "clientSecret={}",
    "attribute": "settings.db.password={}",
    "yaml": "password: {}",
    "wide-colon": "token\uff1a{}\uff0c\u8bf7\u91cd\u8bd5",
    "arrow": "'password' => '{}'",
    "walrus": "token := {}",
    "json": '{{"a": {{"password": "{}", "n": 1}}}}',
    "json-quote-inside": r'{{"password": "{}", "n": 1}}|{{"password": "a\"{}", "n": 1}}',
    "json-in-json": r'{{"body": "{{\"password\": \"{}\", \"n\": 1}}"}}',
    "json-cut": '{{"a": 1, "password": "{}',
    "json-object": '{{"cookies": {}, "n": 1}}|{{"cookies": {{"s": ["a}}b", "{}"]}}, "n": 1}}',
    "json-object-cut": 'x "credentials": {}|x "credentials": {{"s": ["{}',
    "repr": "{{'user_key': '{}', 'n': 1}}",
    "repr-bytes": "{{b'password': b'{}'}}",
    "repr-call": "Settings(password={}, n=1)|Settings(password=SecretStr('{}'), n=1)",
    "escaped-line": r"'...\npassword={} ...'",
    "option": "command 'x --password {} --port 1' failed",
    "option-list": "Command '['mysql', '--password', '{}', '-x']' returned 1",
    "bearer-under-other-name": "token: Bearer {}",
    "aws-secret": "aws_secret_access_key = {}",
}
PLACES["url-list"] = "redis://:{}@h1,redis://:" + MASKED + "@h2"


def _place(form: str, secret: str) -> tuple[str, str]:
    """The text with the secret in it, and what has to come out."""
    masked, _, text = form.partition("|")
    return (text or masked).format(secret), masked.format(MASKED)


each_place = pytest.mark.parametrize("form", PLACES.values(), ids=PLACES)

TRACEBACK = """Traceback (most recent call last):
  File "/app/server/handlers.py", line 33, in get_token
    result = self.client.fetch(url, timeout=30)
ConnectionError: HTTPPool(host='10.0.0.1', port=8080): Max retries exceeded with url: /v1/items?page=3
(Caused by NewConnectionError('<urllib3.HTTPConnection object at 0x7f12>: [Errno 111] Connection refused'))
"""
ORDINARY = (
    "task-1 failed",
    "disk-12345678901234567890 full",
    "a sketch of risk-averse-investors-2024-q3 and of C:\\risk-averse\\notes-2024.txt",
    "token count: 42, max_tokens=4096, tokens: 17, total_tokens=3, cost_per_token=0.01, eos_token=</s>",
    "next_page_token=abc, tokenizer: bpe, author: Bob, monkey=1, secretary: Ann, bypass=1, key=7, keys: 3",
    "write to me@example.org, mailto:me@example.org or user:bob@example.com; ERROR:bob@example.com.",
    "http://host:8080/path and https://host:8443/a/b@c?page=2#x and http://[::1]:8080/a@b and ftp://h:21",
    "see http://localhost:{port}/x, redis://host:6379, ssh://git@github.com:org/repo@v1, kafka://h1:9092,h2:9092",
    "pulled nginx:1.25@sha256:" + HEX,
    "Basic usage, basic HttpClient2, Basic HTTP-based auth, digest mismatch, Digest algorithm unknown",
    "bearer of bad news; Bearer token expired; the bearer, Bearer authentication. 'Bearer token'",
    'WWW-Authenticate: Bearer realm="example", error="invalid_token"',
    "b5f8cf2f9b5962004d96ac9fbb21a7d628607899 0190a0e4-5b6c-7d8e-9f00-112233445566 /var/lib/x/y-1.json",
    "survey_keyJsonSerializerFactory and surveyJohnsonianDistribution",
    "password: Field required; token: must be a string; api_key=None, token=null&x=1, cookie: expired",
    "password='' token=\"\" secret= , pwd=)",
    "def login(token: str, password: str | None = None) -> None:",
    "Unexpected token: ( at line 3; unexpected token '}' at 4; KeyError: 'password'; token == other",
    "Missing fields: ['password', 'email'] for secret://vault/x and enum Token::Kind",
    "PWD=/app OLDPWD=/root",
    "auth: failed, auth=required, sig=SIGTERM, signature: (a: int) -> str, signature = inspect.signature(f)",
    TRACEBACK,
    "\u4efb\u52a1\u5931\u8d25\uff1a\u8d85\u65f6 (task-1)",
    "",
)


@each_key
def test_keys_with_a_form_of_their_own_are_masked(key: str) -> None:
    """[D142] Alone, in prose, in quotes, after escapes, in a path."""
    assert redact_text(key) == MASKED
    surroundings = ("got | today", "'|'", r"b'\n|", "%3D|", r"\u0026|&", "x_|, y", "(|).")
    for before, _, after in (surrounding.partition("|") for surrounding in surroundings):
        assert redact_text(f"{before}{key}{after}").startswith(before + MASKED)
        assert key[10:20] not in redact_text(f"{before}{key}{after}")


@each_place
def test_credentials_are_masked_by_their_place(form: str) -> None:
    """[D142] The name, the scheme, the user and the host stay."""
    text, expected = _place(form, SECRET)
    assert redact_text(text) == expected


@pytest.mark.parametrize("name", sorted(SENSITIVE_KEYS - {"auth"}))
@pytest.mark.parametrize("form", ['{{"{}": "{}"}}', "{}={}", "{}: {}", "?a=1&{}={}"])
def test_every_sensitive_key_is_masked_in_text(name: str, form: str) -> None:
    """[D142] Neither may the hints that save work hide a name."""
    assert redact_text(form.format(name, SECRET)) == form.format(name, MASKED)
    assert redact_text(form.format(name.upper(), SECRET)) == form.format(name.upper(), MASKED)


@pytest.mark.parametrize("name", ["sig", "X-Amz-Signature", "auth", "sk"])
def test_names_that_are_often_harmless_need_a_long_value(name: str) -> None:
    assert redact_text(f"{name}={HEX}&x=1") == f"{name}={MASKED}&x=1"
    assert redact_text(f'"{name}": "{BODY}"') == f'"{name}": "{MASKED}"'
    assert redact_text(f"{name}=short1&x=1") == f"{name}=short1&x=1"


def test_basic_credentials_are_masked_without_their_header() -> None:
    """[D142] base64 of user:password, with and without padding."""
    for password in ("pass", "passw", "passwo", SECRET):
        value = base64.b64encode(f"user:{password}".encode()).decode()
        assert redact_text(f"used Basic {value} there") == f"used Basic {MASKED} there"


def test_a_pem_block_that_was_cut_is_masked_to_the_end() -> None:
    """[D142]"""
    assert redact_text(f"key {PEM[:60]}") == f"key {MASKED}"
    assert redact_text(f"{PEM} and {PEM}, done") == f"{MASKED} and {MASKED}, done"


def test_slack_webhooks_are_masked() -> None:
    assert redact_text("POST https://hooks.slack.com/services/" + "T00/B00/" + BODY).endswith("/" + MASKED)


@pytest.mark.parametrize(
    "token",
    ["Zx9K" + "q2Lm4Vt7Wp3R", BODY[:20], BODY[:10] + "-_~+" + BODY[:6], HEX[:32], "a1" * 26, "7" * 40],
)
@pytest.mark.parametrize("host", ["github.com/acme/x.git/': 403", "[::1]:8080/", "h"])
def test_tokens_in_the_place_of_a_user_are_masked(token: str, host: str) -> None:
    """[D142] As git takes them, without a password."""
    text = "fatal: unable to access 'https://{}@" + host
    assert redact_text(text.format(token)) == text.format(MASKED)
    assert redact_text(f"{text.format(token)} {text.format(token)}").count(MASKED) == 2


@pytest.mark.parametrize(
    "text",
    [
        "git@github.com:acme/x.git and ssh://git@github.com/acme/x.git and git+ssh://git@host/x",
        "https://alice@host/path, https://deploy-bot-2@host, ftp://anonymous@host/",
        "https://first.last%40example.org@host/x and https://John.Smith2024Abc%40Example1x.org@host/x",
        "https://service-account-2024-prod@host/x and https://build_agent_number_17b@host/x",
        "https://x-access-token@github.com/x and https://oauth2accesstoken@gcr.io/",
        "https://TheBuildAgentOfTheTeam@host/x and https://host/" + BODY + "@v1",
        "https://host?q=" + BODY + "@x",
        "mail to " + BODY[:20] + "@example.org and mailto:" + BODY[:20] + "@example.org",
        "s3://" + BODY + "/x and https://" + HEX + ".example.org/a@b and see https://" + BODY + " @ noon",
    ],
)
def test_users_without_a_password_stay(text: str) -> None:
    assert redact_text(text) == text


@pytest.mark.parametrize("text", ORDINARY)
def test_ordinary_text_comes_through_unharmed(text: str) -> None:
    """[D142] `task-1 failed` and its like."""
    assert redact_text(text) == text


# Pieces that mean something to a pattern, in any order, with secrets between them.
PIECES = st.sampled_from(
    [
        *("Bearer ", "Basic ", "Digest ", "nonce=", "token", "password=", '"cookie": ', "Authorization: "),
        *("--token", "api key: ", "x-api-key", "sig=", "auth", "user:", "://", "@", "None", "field", "PWD="),
        *("\\n", "%3D", "'", '"', '\\"', "\\", "(", ")", "[", "]", "{", "}", ",", ";", "&", "=", ": ", " "),
        *("\n", "/", ".", "\uff1a", "\u3002", "[REDAC", "TED]", MASKED, HEX, "abc", "A1", *KEYS.values()),
        *("-----BEGIN X-----", "-----END X-----"),
    ]
)
TEXTS = st.lists(PIECES | st.text(max_size=4), max_size=14).map("".join)


@given(TEXTS)
def test_redacting_twice_is_redacting_once(text: str) -> None:
    once = redact_text(text)
    assert redact_text(once) == once


def test_the_number_of_rounds_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redaction, "_MAX_ROUNDS", 1)
    assert redact_text(f"password={SECRET}") == f"password={MASKED}"


PROSE = st.text(alphabet="abc XYZ.,-/:\n12", max_size=60)
PASSWORDS = st.text(alphabet="abcXYZ019!#$%^*+~_-.", min_size=1, max_size=12).map(lambda text: f"Q{text}9z")


@given(PROSE, st.sampled_from(sorted(PLACES)), PASSWORDS, PROSE)
def test_a_secret_never_survives_wherever_it_stands(before: str, place: str, secret: str, after: str) -> None:
    """[D142]"""
    text, _ = _place(PLACES[place], secret)
    end = "" if place.endswith("-cut") else f" {after}"
    assert secret not in redact_text(f"{before} {text}{end}")


@given(PROSE, st.sampled_from(sorted(KEYS)), PROSE)
def test_a_key_never_survives_wherever_it_stands(before: str, kind: str, after: str) -> None:
    """[D142]"""
    assert KEYS[kind] not in redact_text(f"{before} {KEYS[kind]} {after}")
    assert KEYS[kind] not in redact_text(f"{before}={KEYS[kind]}'{after}")


RUNS = [
    *(
        "a",
        "-",
        "eyJ",
        "eyJ.",
        "-sk-",
        ":",
        "@",
        "://",
        "://a:",
        "://a:@",
        "://a@",
        "a:b@",
        "user:a@b.",
        " ",
        "=",
    ),
    *(",", "\\", "'", "(", "a=", "token=a,", "password='", 'password="\\', "password=(", "Bearer a."),
    *("Basic a", "Basic Aa", "digest a=", "sig=", "-----BEGIN ", "-----BEGIN A-----", "-----END A-----"),
    *("--token ", "%3D", MASKED),
]


@pytest.mark.parametrize("start", ["", "Basic ", "password=", "://u:", "-----BEGIN A-----"])
@pytest.mark.parametrize("run", RUNS)
def test_time_grows_with_the_length_not_with_its_square(run: str, start: str) -> None:
    """Sixteen times the text: 16 times the time if linear, 256 times if quadratic."""
    seconds = []
    for chars in (4_096, 65_536):
        text = (start + run * chars)[:chars]
        began = time.process_time()
        redact_text(text)
        seconds.append(time.process_time() - began)
    assert seconds[1] < 80 * max(seconds[0], 0.001)


def test_a_megabyte_is_no_problem() -> None:
    for run in ("a", "eyJ", "://", "a:b@", "password='"):
        redact_text(run * (1_000_000 // len(run)))


# ------------------------------------------------------------------------------------------- errors


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        ("plain", "plain"),
        (ValueError("no such thing"), "ValueError: no such thing"),
        (KeyError("x"), "KeyError: 'x'"),
        (TimeoutError(), "TimeoutError"),
        (KeyboardInterrupt(), "KeyboardInterrupt"),
        (None, "None"),
        (42, "42"),
        ({"password": SECRET}, f"{{'password': '{MASKED}'}}"),
        (Unprintable(), "Unprintable (no text: its __str__ raised RuntimeError)"),
        ("a\0b\ud800c\udfff\U0001f600", "a\ufffdb\ufffdc\ufffd\U0001f600"),
        ("", ""),
        ("x" * MAX_ERROR_CHARS, "x" * MAX_ERROR_CHARS),
    ],
    ids=repr,
)
def test_error_text(error: object, expected: str) -> None:
    assert redact_error(error) == expected


@pytest.mark.parametrize("length", range(440, 515))
def test_secrets_are_masked_before_truncation(length: int) -> None:
    """[D142] A secret that the limit cuts in two is masked as a whole, and no mark is cut."""
    for secret in (f"password={SECRET}", KEYS["openai"], f"redis://:{SECRET}@h/0", PEM, f"Bearer {JWT}"):
        kept = redact_error("x" * length + " " + secret + " tail" * 40)
        assert len(kept) <= MAX_ERROR_CHARS
        assert kept.endswith("... [truncated]")
        assert not any(secret[-12 - cut : -cut or None] in kept for cut in range(len(secret) - 24))
        assert "[" not in kept.replace(MASKED, "").removesuffix("... [truncated]")


def test_a_truncated_error_is_as_long_as_it_may_be() -> None:
    assert len(redact_error("x" * 501)) == MAX_ERROR_CHARS


@pytest.mark.parametrize("back", range(0, 90, 3))
@pytest.mark.parametrize("kind", ["url", "url-at", "json-cut", "dsn-quoted", "no-scheme", "repr-call"])
def test_a_secret_at_the_edge_of_the_window_does_not_leak(kind: str, back: int) -> None:
    """[D142] However short masking makes the text, so that the edge comes within the 500 characters."""
    secret = "".join(f"q{number}z" for number in range(10, 20))
    text, _ = _place(PLACES[kind], secret)
    for filler in (f"-----BEGIN X-----{'M' * 65_000}-----END X-----", "password=" + "M" * 65_050):
        room = redaction._WINDOW_CHARS - len(filler) - back
        kept = redact_error(filler + " ." * (room // 2) + " " + text + " tail" * 1_000)
        assert "q1" not in kept
        assert kept.endswith("... [truncated]")


def test_keys_at_the_edge_of_the_window_do_not_leak() -> None:
    """[D142]"""
    filler = "password=" + "M" * 65_400
    for back in (1, 3, 5, 9, 15, 25):
        for key in KEYS.values():
            kept = redact_error(filler + " " * (redaction._WINDOW_CHARS - len(filler) - back) + key * 9)
            assert kept.startswith(f"password={MASKED}")
            assert key[:3] not in kept


def test_a_mark_that_fills_the_window_is_kept() -> None:
    assert redact_error(PEM[:60] + "M" * 100_000) == f"{MASKED}... [truncated]"


def test_a_huge_error_costs_no_more_than_its_window() -> None:
    text = "task-1 failed " * 8_000_000
    began = time.process_time()
    assert redact_error(text).startswith("task-1 failed")
    assert time.process_time() - began < 1


@given(st.text() | TEXTS)
def test_what_is_kept_of_an_error_can_be_stored(text: str) -> None:
    kept = redact_error(text * 20)
    assert len(kept) <= MAX_ERROR_CHARS
    assert "\0" not in kept
    kept.encode("utf-8")


def test_clean_text() -> None:
    assert clean_text("a\0b\ud83dc\ude00") == "a\ufffdb\ufffdc\ufffd"
    for text in ("", "plain\n", "gr\u00fc\u00df \u4efb\u52a1 \U0001f600"):
        assert clean_text(text) is text


# ------------------------------------------------------------------------------------------- values


@pytest.mark.parametrize(
    "name", [*sorted(SENSITIVE_KEYS), "X-Api-Key", "Client Secret", "DB_PASSWORD", "GITHUB_TOKEN"]
)
def test_sensitive_keys(name: str) -> None:
    assert is_sensitive_key(name)
    assert is_sensitive_key(name.upper())


HARMLESS_NAMES = (
    *("tokens", "token_count", "max_tokens", "key", "keys", "author", "authors", "tokenizer", "token_type"),
    *("next_page_token", "nextToken", "eos_token", "ms_per_token", "lease_token", "password_hash", "auth0"),
    *("signature", "user_id", "account_id", "api_key_id", "secret_name", "cookie_jar", "monkey", ""),
)


@pytest.mark.parametrize("name", HARMLESS_NAMES)
def test_keys_that_are_not_sensitive(name: str) -> None:
    assert not is_sensitive_key(name)


def test_values_of_sensitive_keys_are_masked_at_any_depth() -> None:
    """[D143] Nested password, api_key and cookie; the argument is not changed."""
    value: JSON = {
        "auth": {"password": SECRET},
        "meta": [{"api_key": SECRET, "n": 1}, [{"Cookie": [SECRET]}], "password=x"],
        "user": {"token": 5, "tokens": 17, "password": None, "secret": "", "has_password": True},
        "untouched": {"a": [1, 2.5, None, False, "text"]},
    }
    before = json.dumps(value)
    assert redact_value(value) == {
        "auth": MASKED,
        "meta": [{"api_key": MASKED, "n": 1}, [{"Cookie": MASKED}], "password=x"],
        "user": {"token": MASKED, "tokens": 17, "password": None, "secret": "", "has_password": True},
        "untouched": {"a": [1, 2.5, None, False, "text"]},
    }
    assert json.dumps(value) == before


def test_a_value_without_credentials_is_returned_itself() -> None:
    """[D143] Nothing is copied, the second time neither."""
    values: list[JSON] = [{"a": [{"b": 1}]}, [], {}, "x", 0, True, None, {"password": None, "token": ""}]
    for value in values:
        assert redact_value(value) is value
    masked = redact_value({"password": SECRET})
    assert redact_value(masked) is masked


@pytest.mark.parametrize("levels", [900, 100_000])
def test_deep_values_do_not_exhaust_the_stack(levels: int) -> None:
    """[D143]"""
    value: JSON = {"password": SECRET}
    for level in range(levels):
        value = [value] if level % 2 else {"a": value}
    found = redact_value(value)
    while isinstance(found, list) or (isinstance(found, dict) and "a" in found):
        found = found[0] if isinstance(found, list) else found["a"]
    assert found == {"password": MASKED}


JSONS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["a", "b", "password", "Api-Key", "tokens"]), inner, max_size=3)
    ),
)


@given(JSONS)
def test_redacted_values_keep_their_shape(value: JSON) -> None:
    """[D143]"""

    def expected(part: JSON, name: str = "") -> JSON:
        if is_sensitive_key(name) and part not in (None, "") and not isinstance(part, bool):
            return MASKED
        if isinstance(part, dict):
            return {key: expected(child, key) for key, child in part.items()}
        return [expected(child) for child in part] if isinstance(part, list) else part

    assert redact_value(value) == expected(value)


# ------------------------------------------------------------------------------------------- module


def test_normalised_names_are_normalised() -> None:
    assert all(re.fullmatch("[a-z]+", name) for name in SENSITIVE_KEYS)
