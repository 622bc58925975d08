"""Masks credentials in error texts and in JSON values, before they are stored, shown or logged.

Owns what counts as a credential: by its place (a header, a URL, a named value) or by its own form (a
vendor's prefix, a JWT, a PEM block). Refuses to guess by entropy, so that hashes, UUIDs and paths stay
readable; refuses to log, to raise and to know about records. It exists because an error text reaches every
caller, and whoever wrote it did not think of that.

Every pattern takes linear time: a repeat starts only where a run starts, or has a bound, or consumes what it
has read.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache, lru_cache
from typing import Final, TypeAlias

__all__ = [
    "JSON",
    "MAX_ERROR_CHARS",
    "REDACTED",
    "SENSITIVE_KEYS",
    "clean_text",
    "holds_mask",
    "is_sensitive_key",
    "redact_error",
    "redact_text",
    "redact_value",
]

JSON: TypeAlias = "bool | int | float | str | list[JSON] | dict[str, JSON] | None"

MAX_ERROR_CHARS: Final = 500  # of an error that are kept: it is shown in every list of tasks
REDACTED: Final = "[REDACTED]"

_TRUNCATED: Final = "... [truncated]"
_WINDOW_CHARS: Final = (
    65_536  # of a huge error that are read; what they hold fills 500 characters in practice
)
_EDGE_CHARS: Final = 512  # more than any pattern below reads before it knows a secret; _USERINFO reads 320
_REMEMBERED_CHARS: Final = 64  # names of keys come again and again; longer ones are not worth remembering
_MAX_ROUNDS: Final = 8  # two are the rule: one that masks, one that finds nothing more

# Lower case, without "-", "_", "." and spaces. Headers: RFC 9110 and 6265; OAuth: RFC 6749, OpenID Connect;
# user_key and root_api_key: OpenViking's server.
SENSITIVE_KEYS: Final = frozenset(
    {
        *("password", "passwd", "pwd", "passphrase", "passcode", "dbpass", "userpass"),
        *("secret", "clientsecret", "secretkey", "secretaccesskey", "awssecretaccesskey"),
        *("privatekey", "signingkey", "encryptionkey", "accesskey", "accountkey", "sharedaccesskey"),
        *("apikey", "xapikey", "rootapikey", "userkey", "credential", "credentials"),
        *("token", "accesstoken", "refreshtoken", "idtoken", "authtoken", "bearertoken", "sessiontoken"),
        *("auth", "authorization", "proxyauthorization", "bearer", "cookie", "cookies", "setcookie"),
    }
)
# Also at the end of a longer name: DB_PASSWORD, openai_api_key, X-Amz-Security-Token, "\npassword" in a repr.
_SENSITIVE_ENDINGS: Final = (
    *("password", "passwd", "passphrase", "pwd", "secret", "token", "apikey", "accesskey", "accountkey"),
    *("secretkey", "privatekey", "authorization", "cookie", "credential", "credentials"),
)
# Tokens that are no credentials: paging, tokenizers, prices per token, fences.
_HARMLESS_TOKEN: Final = re.compile(
    r"(?:next|page|continuation|sync|eos|bos|pad|unk|sep|cls|mask|special|stop|first|last|(?<!su)per"
    r"|fencing|lease|cancel|cancellation|idempotency)token\Z"
)
_DROPPED: Final = str.maketrans("", "", "-_. ")

_UNSTORABLE: Final = re.compile(
    "[\\x00\\ud800-\\udfff]"
)  # PostgreSQL's text refuses the first, UTF-8 the others

# Where a credential may start: after no letter or digit, or after an escape such as \n, %3D or \u0026.
_START: Final = r"(?:(?<![A-Za-z0-9])|(?<=\\[nrt])|(?<=%[0-9A-Fa-f]{2})|(?<=\\u[0-9A-Fa-f]{4}))"
_MARK: Final = re.escape(REDACTED)
# An unquoted value. It ends at space, a quote or CJK punctuation; at another delimiter only if something
# else seems to start there, so that "a,b" is one password.
_END: Final = r"\s\"'`\u201c\u201d\u3000-\u303f\uff00-\uff1f"
_BARE: Final = (
    rf"(?:{_MARK}|[^{_END}\\,;&)\]}}>]|\\(?![\"'`])"
    rf"|[,;&)\]}}>](?![{_END}\\,;&)\]}}>]|\Z|[\w.-]{{1,40}}[=:]))+"
)

# RFC 7468, RFC 4880 (PGP) and RFC 4716 (four dashes and a space). Without an END the rest is key material.
_PEM: Final = r"(?s)-{4,5} ?BEGIN [A-Z0-9 ]{1,64}-{4,5}.*?(?:-{4,5} ?END [A-Z0-9 ]{1,64}-{4,5}|\Z)"

# Prefixes from the vendors' documentation and from the rules of gitleaks (config/gitleaks.toml). The lengths
# are below the real ones, so that a key cut by somebody else is masked too: they tell a key from a word.
_VENDOR_KEY: Final = (
    rf"(?a){_START}(?:"
    r"eyJ(?:[\w=-]{13,}|[\w=-]{3,12}\.[\w-]{3,})(?:\.[\w-]*){0,4}"  # JWT (RFC 7519): base64url of '{"'
    r"|sk-(?:ant-|proj-|or-|(?=[a-z]{16})|(?=[a-z_-]{0,80}[A-Z0-9]))[\w-]{8,}"  # OpenAI, Anthropic, ...
    r"|gh[pousr]_\w{10,}|github_pat_\w{10,}"  # GitHub
    r"|gl(?:pat|dt|rt|ptt|cbt|soat|agent)-[\w-]{10,}"  # GitLab
    r"|xox[a-z](?:\.xox[a-z])?-[\w-]{8,}|xapp-[\w-]{8,}|(?<=hooks\.slack\.com/services/)[\w/]{8,}"  # Slack
    r"|A[KS]IA[A-Z0-9]{16,}"  # AWS, long-term and temporary
    r"|AIza[\w-]{20,}|ya29\.[\w-]{16,}|GOCSPX-[\w-]{16,}"  # Google
    r"|[sr]k_(?:live|test)_\w{10,}|whsec_[\w+/=]{16,}"  # Stripe
    r"|hf_[A-Za-z0-9]{20,}|ntn_[A-Za-z0-9]{20,}|secret_[A-Za-z0-9]{32,}"  # Hugging Face, Notion (new, old)
    r"|npm_[A-Za-z0-9]{20,}|pypi-Ag[\w-]{16,}"  # npm, PyPI
    r"|AK(?:LT|TP)[\w=-]{16,}|ark-[0-9a-f]{8}-[\w-]{20,}|LTAI[A-Za-z0-9]{12,}"  # Volcengine (2), Alibaba
    r"|pat_[A-Za-z0-9]{32,}"  # Coze
    r"|gsk_\w{20,}|xai-[\w-]{20,}|pplx-\w{20,}|SG\.[\w-]{16,32}\.[\w-]{16,}"  # Groq, xAI, ..., SendGrid
    r")[\w-]*"
)

_GAP: Final = r"(?:\s{1,4}|%20|\+)"
# RFC 7616: named values, one of them a response that can be attacked offline; so the rest of the line goes.
_DIGEST: Final = rf"{_START}((?i:digest){_GAP})(?=\w{{1,20}}=[^\r\n]{{0,400}}nonce=)[^\r\n]+"
# RFC 6750. Not the word in prose ("bearer of", "Bearer token expired"), not a challenge ("Bearer realm=").
_BEARER: Final = (
    rf"{_START}((?i:bearer){_GAP})"
    r"(?!(?:[A-Za-z]?[a-z]{0,8}|[A-Z]{2,9}|(?i:authentication|authorization|credentials?))"
    r"[\"'.,;:!?)\]}]*(?:\s|\Z)|(?:realm|scope|error\w{0,12})=)"
    rf"(?=[\w.~+/\[-]){_BARE}"
)
# RFC 7617: base64 has letters of both cases; a plain or CamelCase word is prose ("Basic HttpClient2").
_BASIC: Final = (
    rf"(?a){_START}((?i:basic){_GAP})"
    r"(?![A-Z]{0,5}[a-z]{2,}(?:\d?[A-Z]{1,4}[a-z]{2,}){0,3}[A-Z]{0,4}\d?(?![\w+/=-]))"
    r"(?:(?=[A-Za-z0-9+/]*=)|(?=[A-Z0-9+/]*[a-z])(?=[a-z0-9+/]*[A-Z]))[A-Za-z0-9+/]{8,}={0,2}"
)

# Userinfo of RFC 3986. A password that nobody encoded may hold "@/?#"; ":8080/" is a port, and
# git@host:path needs no password. At the end of the text the "@" may be missing, since somebody cut it off.
_URL_PASSWORD: Final = (
    r"(://(?!git@)[^\s/?#:\[\]\"'<>]*:)(?:"
    r"[^\s/\"'<>]+(?=@)"
    r"|(?!\d{1,5}/|//)(?:(?!://)[^\s\"'<>])+(?=@)"
    r"|(?!\d{1,5}(?:\W|\Z)|port\b|//|[{<$%])(?:(?!://)[^\s\"'<>])+\Z)"
)
# A token in the place of the user, as git takes it: long, and no name that somebody chose. A plain user stays,
# and so does an e-mail address ("me%40example.org").
_URL_TOKEN: Final = (
    r"(?a)(://)(?:(?=[\w~+-]{0,80}[A-Z])(?=[\w~+-]{0,80}[a-z])(?=[\w~+-]{0,80}\d[A-Za-z])[\w~+-]{16,256}"
    r"|(?=[A-Za-z]{0,80}\d)[A-Za-z0-9]{32,256})(?=@[\w\[])"
)
# The same without a scheme, "admin:pw@db:5432". Not "mailto:me@example.org", nor an image's "tag@sha256:...".
_USERINFO: Final = (
    r"(?<![\w.%+@/:-])"
    r"(?!(?i:mailto|e-?mail|from|to|b?cc|sips?|xmpp|acct|user|group|member|principal|serviceaccount|owner"
    r"|author|contact|debug|info|warning|error|critical)"
    r":[\w.+-]{1,64}@[\w-]{1,63}(?:\.[\w-]{1,63}){1,8}(?![\w:/-]))"
    rf"([A-Za-z_][\w.%+-]{{0,63}}:)(?:{_MARK}|[^\s:/@\"'<>,;(){{}}\[\]]){{1,256}}(?=@(?!sha\d)[\w\[])"
)

# Names too common to be believed without a long value with a digit. S3, Google and Azure sign URLs so.
_WEAK_PAIR: Final = (
    rf"(?a){_START}"
    r"((?i:sig|signature|sk|auth)\\*[\"']?[ \t]{0,2}(?:[=:]|%3[ADad])[ \t]{0,2}\\*[\"']?)"
    r"(?=[A-Za-z_+/=%.~-]{0,80}\d)[\w+/=%.~-]{16,}"
)

# What to mask, and by what: only if one of the hints, in lower case, is in the text, since `in` is far faster;
# and compiled at first use, to keep the import cheap.
_compiled = cache(re.compile)
_RULES: Final = (
    (("begin ",), _PEM, REDACTED),
    (("",), _VENDOR_KEY, REDACTED),
    (("digest",), _DIGEST, rf"\1{REDACTED}"),
    (("bearer",), _BEARER, rf"\1{REDACTED}"),
    (("basic",), _BASIC, rf"\1{REDACTED}"),
    (("://",), _URL_PASSWORD, rf"\1{REDACTED}"),
    (("://",), _URL_TOKEN, rf"\1{REDACTED}"),
    (("@",), _USERINFO, rf"\1{REDACTED}"),
    (("sig", "sk", "auth"), _WEAK_PAIR, rf"\1{REDACTED}"),
)
_NAME_HINTS: Final = ("pass", "pwd", "secret", "token", "key", "auth", "cookie", "credential", "bearer")

# A name, then "=", ":", "=>", ":=" or an encoded one; or "--name value" and ('name', 'value'), as in the
# argv and the raw headers that errors quote. Not what a parser says: "unexpected token: (".
_NAME: Final = re.compile(
    r"(?<![\w.-])(?<!nexpected )(?:(?P<name>(?:(?i:api|access|secret|private) )?[\w.-]+)"
    r"\\*(?P<quote>[\"']?)\]?[ \t]{0,4}(?:=>|:=|[=:\uff1a](?![=:]|//)|%(?:25)?3[ADad])[ \t]{0,4}"
    r"|(?P<item>--[\w.-]+|(?:(?<=[(\[][\"'])|(?<=[(\[]b[\"']))[\w-]+(?=[\"'],))[\"']?,?[ ]{1,4}(?=\S))"
)
_QUOTED: Final = re.compile(
    r"[bBfFrRuU]{0,2}(?P<quote>\\*[\"'`])(?!(?P=quote))(?P<body>.*?)(?:(?<!\\)(?P=quote)|\Z)", re.DOTALL
)
_UNQUOTED: Final = re.compile(_BARE)
_SCHEME: Final = re.compile(r"(?:bearer|basic|apikey|negotiate|ntlm)[ \t]{1,4}(?=\S)", re.IGNORECASE)
_LINE_NAMES: Final = (
    "authorization",
    "cookie",
)  # unquoted, their values have spaces, up to the end of the line
_LINE: Final = re.compile(r"[^\r\n]+")
_LINE_IN_QUOTES: Final = re.compile(r"[^\r\n\"']+")
# What stands after a name without being its value: literals, types, and what validators say.
_PROSE: Final = re.compile(
    r"(?:none|null|nil|true|false|undefined|str|bytes|int|bool)(?=[\s,;&)\]}>]|\Z)"
    r"|(?:field|input|value|must|should|is|are|was|has|not|no|missing|required|invalid|expired|expected"
    r"|cannot|failed|denied)(?=[.,;:)]?(?:\s|\Z))",
    re.IGNORECASE,
)
_BRACKETED: Final = re.compile(rf"(?!{_MARK})(?:[A-Za-z_][\w.]*)?[(\[{{]")  # (...), {...}, SecretStr(...)
_BRACKET: Final = re.compile(r"([\"'])(?:\\.|(?!\1)[^\\])*(?:\1|\\?\Z)|[()\[\]{}]", re.DOTALL)
_DEPTH: Final = {"(": 1, "[": 1, "{": 1, ")": -1, "]": -1, "}": -1}


def redact_text(text: str) -> str:
    """Return ``text`` with every credential in it replaced by ``REDACTED``.

    Names, schemes, users and hosts stay, and so does all other text. Redacting twice is redacting once.
    Raises nothing; takes time linear in the length.
    """
    for _ in range(_MAX_ROUNDS):
        before = text
        lower = text.lower()
        for hints, pattern, replacement in _RULES:
            if any(hint in lower for hint in hints):
                text = _compiled(pattern).sub(replacement, text)
        if any(hint in lower for hint in _NAME_HINTS):
            text = _redact_pairs(text)
        if text == before:
            break
    return text


def redact_error(error: object) -> str:
    """Return what may be kept of ``error``: storable, redacted, then cut to ``MAX_ERROR_CHARS`` characters.

    An exception becomes "TypeName: message", anything else its ``str()``; a ``__str__`` that raises is
    reported, not passed on. A cut text ends with "... [truncated]" and is never cut inside a mark.
    """
    whole = _text_of(error)
    text = redact_text(clean_text(whole[:_WINDOW_CHARS]))
    if len(whole) <= _WINDOW_CHARS and len(text) <= MAX_ERROR_CHARS:
        return text
    end = MAX_ERROR_CHARS - len(_TRUNCATED)
    if len(whole) > _WINDOW_CHARS:
        # What follows the last mark may be the first half of a secret that lost its second half.
        end = min(end, max(len(text) - _EDGE_CHARS, text.rfind(REDACTED) + len(REDACTED)))
    mark = text.find(REDACTED, max(0, end - len(REDACTED) + 1))
    if 0 <= mark < end:
        end = mark
    return text[:end] + _TRUNCATED


def clean_text(text: str) -> str:
    """Return ``text`` with each NUL and each lone surrogate replaced by U+FFFD. Raises nothing."""
    if text.isascii() and "\0" not in text:
        return text
    return _UNSTORABLE.sub("\ufffd", text)


def is_sensitive_key(name: str) -> bool:
    """Tell whether a value under this name is a credential: ``SENSITIVE_KEYS``, or a name that ends like one.

    Case, "-", "_", "." and spaces do not matter, nor does a number at the end ("api_key_2").
    """
    return _is_sensitive(name) if len(name) <= _REMEMBERED_CHARS else _is_sensitive.__wrapped__(name)


@lru_cache(maxsize=1024)
def _is_sensitive(name: str) -> bool:
    key = name.lower().translate(_DROPPED)
    if key in SENSITIVE_KEYS:
        return True
    key = key.rstrip("0123456789")
    return key.endswith(_SENSITIVE_ENDINGS) and not _HARMLESS_TOKEN.search(key)


def redact_value(value: JSON) -> JSON:
    """Return decoded JSON with the value of each sensitive key, at any depth, replaced by ``REDACTED``.

    ``None``, "", True and False stay: they only tell whether there is a credential. Strings under other
    keys stay too. The argument is not changed; if there is nothing to mask it is returned itself, uncopied.
    Raises nothing, however deep the value is: there is no recursion.
    """
    if not _holds_credential(value):
        return value
    root = [value]
    containers: list[list[JSON] | dict[str, JSON]] = [root]
    while containers:
        # Each container here is a copy already; its children are still the argument's.
        container = containers.pop()
        if isinstance(container, dict):
            for name, child in container.items():
                container[name] = REDACTED if _is_credential(name, child) else _copied(child, containers)
        else:
            container[:] = [_copied(child, containers) for child in container]
    return root[0]


def holds_mask(value: JSON) -> bool:
    """Tell whether :func:`redact_value` has masked anything in ``value``. The mark in a text does not count.

    Raises nothing, however deep the value is: there is no recursion.
    """
    return any(item == REDACTED and is_sensitive_key(name) for name, item in _named(value))


def _copied(value: JSON, containers: list[list[JSON] | dict[str, JSON]]) -> JSON:
    if not isinstance(value, list | dict):
        return value
    copy = value.copy()
    containers.append(copy)
    return copy


def _holds_credential(value: JSON) -> bool:
    return any(_is_credential(name, item) for name, item in _named(value))


def _named(value: JSON) -> Iterator[tuple[str, JSON]]:
    """Iterate over the names and values of all objects in ``value``, at any depth."""
    pending = [value]
    while pending:
        item = pending.pop()
        if isinstance(item, dict):
            yield from item.items()
            pending.extend(item.values())
        elif isinstance(item, list):
            pending.extend(item)


def _is_credential(name: str, value: JSON) -> bool:
    return not isinstance(value, bool) and value not in (None, "", REDACTED) and is_sensitive_key(name)


def _text_of(error: object) -> str:
    try:
        text = str(error)
    except Exception as problem:  # noqa: BLE001 - an error that cannot be printed must still end its task
        return f"{type(error).__name__} (no text: its __str__ raised {type(problem).__name__})"
    if not isinstance(error, BaseException):
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _redact_pairs(text: str) -> str:
    """Mask the values of named credentials: key=value, JSON, reprs, headers, query parameters, options."""
    parts: list[str] = []
    done = position = 0
    while pair := _NAME.search(text, position):
        position = pair.end()
        if span := _credential_span(text, pair):
            parts += (text[done : span[0]], REDACTED)
            done = position = span[1]
    return "".join((*parts, text[done:]))


def _credential_span(text: str, pair: re.Match[str]) -> tuple[int, int] | None:
    """Where the credential that follows a name starts and ends; None if there is none."""
    name = (pair["name"] or pair["item"]).rpartition(".")[2]
    key = name.lower().translate(_DROPPED)
    if key == "auth" or not is_sensitive_key(key):  # "auth: failed"; _WEAK_PAIR knows the real ones
        return None
    is_line = key.endswith(_LINE_NAMES)
    if pair["item"] and not (is_line or name.lower().startswith(("--", "x-"))):
        return None  # a list of field names
    start = pair.end()
    scheme = _SCHEME.match(text, start)
    if scheme:
        start = scheme.end()
    if quoted := _QUOTED.match(text, start):
        return quoted.span("body")
    if _PROSE.match(text, start) or (name in {"PWD", "OLDPWD"} and text.startswith("/", start)):
        return None
    if bracketed := _BRACKETED.match(text, start):
        return start, _closing(text, bracketed.end() - 1)
    pattern = _UNQUOTED
    if is_line and not scheme:
        in_quotes = not pair["quote"] and text[pair.start() - 1 : pair.start()] in {'"', "'"}
        pattern = _LINE_IN_QUOTES if in_quotes else _LINE
    value = pattern.match(text, start)
    return value.span() if value else None


def _closing(text: str, start: int) -> int:
    """The end of the bracketed value at ``start``; the end of the text if somebody cut it."""
    depth = 0
    for bracket in _BRACKET.finditer(text, start):
        depth += _DEPTH.get(bracket[0], 0)
        if depth == 0:
            return bracket.end()
    return len(text)
