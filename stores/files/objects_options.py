"""What a URL and the options of fsspec's file systems mean to obstore.

Owns the names. Refuses those that it does not know: a misspelt credential would silently be the environment's.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Final, NamedTuple

from task_tracker.errors import SettingsError

__all__ = ["SCHEMES", "ObjectSettings"]

_S3: Final = {
    "key": "access_key_id",
    "secret": "secret_access_key",
    "token": "session_token",
    "anon": "skip_signature",
    "endpoint_url": "endpoint",
    "region": "region",
}
_GS: Final = {"token": "service_account", "anon": "skip_signature"}
_AZ: Final = {
    "account_name": "account_name",
    "account_key": "account_key",
    "sas_token": "sas_key",
    "tenant_id": "tenant_id",
    "client_id": "client_id",
    "client_secret": "client_secret",
    "anon": "skip_signature",
    "endpoint_url": "endpoint",
}
SCHEMES: Final[Mapping[str, Mapping[str, str]]] = {
    **dict.fromkeys(("s3", "s3a"), _S3),
    **dict.fromkeys(("gs", "gcs"), _GS),
    **dict.fromkeys(("az", "azure", "abfs", "abfss", "adl"), _AZ),
}
"""By scheme: fsspec's names for credentials and the like, and obstore's."""

_CLIENT: Final = {"endpoint_url": "endpoint_url", "region_name": "region"}
"""What may stand in ``client_kwargs``, as s3fs has it."""
_PATIENCE_SECONDS: Final = 10.0
_MAX_RETRIES: Final = 3
_CONNECT_SECONDS: Final = 3.0


class ObjectSettings(NamedTuple):
    """Where objects live, how to get in, and how long to try. ``patience_seconds`` bounds one call."""

    url: str
    config: Mapping[str, str | bool]
    allow_http: bool
    patience_seconds: float
    max_retries: int

    @classmethod
    def of(cls, url: str, options: Mapping[str, object]) -> ObjectSettings:
        """Return what ``url`` and ``options`` ask for. Raises SettingsError."""
        scheme, _, place = url.partition("://")
        scheme = scheme.lower()
        names = SCHEMES.get(scheme)
        if names is None:
            raise SettingsError(f"root is {url!r}; object stores have URLs with {', '.join(SCHEMES)}")
        bucket = place.partition("/")[0]
        if not bucket or "@" in place or "?" in place or "#" in place:
            raise SettingsError(
                f"root is {scheme}://...; give {scheme}://bucket/prefix, and credentials as options"
            )
        given = dict(options)
        patience = _number(given.pop("timeout_seconds", _PATIENCE_SECONDS), "timeout_seconds")
        retries = int(_number(given.pop("max_retries", _MAX_RETRIES), "max_retries", least=0))
        if names is _S3:
            given = _flattened(given)
        config: dict[str, str | bool] = {}
        for name, value in given.items():
            if name not in names:
                known = [
                    *names,
                    *(("client_kwargs",) if names is _S3 else ()),
                    "timeout_seconds",
                    "max_retries",
                ]
                raise SettingsError(
                    f"a {scheme}:// root has no option {name!r}; it knows {', '.join(sorted(known))}"
                )
            if value is not None:
                config[names[name]] = _value(name, value)
        if names is _GS:
            _settle_token(config)
        if names is _S3:
            config["disable_bulk_delete"] = True  # one object, one plain request
        endpoint = config.get("endpoint", "")
        # fsspec's own URLs do not end in a slash, people's do.
        return cls(
            f"{scheme}://{place}".rstrip("/"), config, str(endpoint).startswith("http://"), patience, retries
        )

    def built_with(self, *, retrying: bool) -> dict[str, Any]:
        """Return the arguments for ``from_url``. Whoever does not retry must know that nothing was sent twice."""
        half = timedelta(seconds=self.patience_seconds / 2)
        connect = timedelta(seconds=min(_CONNECT_SECONDS, self.patience_seconds / 2))
        return {
            "config": dict(self.config) or None,
            "client_options": {"allow_http": self.allow_http, "timeout": half, "connect_timeout": connect},
            "retry_config": {
                "max_retries": self.max_retries if retrying else 0,
                "retry_timeout": half,
                "backoff": {
                    "init_backoff": timedelta(milliseconds=100),
                    "max_backoff": timedelta(seconds=1),
                    "base": 2,
                },
            },
        }


def _flattened(given: Mapping[str, object]) -> dict[str, object]:
    """Return the options with those of ``client_kwargs`` among them."""
    flat = {name: value for name, value in given.items() if name != "client_kwargs"}
    inner = given.get("client_kwargs") or {}
    if not isinstance(inner, Mapping):
        raise SettingsError(f"client_kwargs is a {type(inner).__name__}; give a dict")
    for name, value in inner.items():
        if name not in _CLIENT:
            raise SettingsError(f"client_kwargs has no {name!r} here; it knows {', '.join(sorted(_CLIENT))}")
        flat.setdefault(_CLIENT[name], value)
    return flat


def _settle_token(config: dict[str, str | bool]) -> None:
    """Make of gcsfs's ``token`` what it means: a key file, or nobody."""
    if config.get("service_account") == "anon":
        del config["service_account"]
        config["skip_signature"] = True


def _value(name: str, value: object) -> str | bool:
    if isinstance(value, (str, bool)):
        return value
    if hasattr(value, "get_secret_value"):
        return str(value.get_secret_value())
    raise SettingsError(f"option {name} is a {type(value).__name__}; give text")


def _number(value: object, name: str, *, least: float = 0.001) -> float:
    try:
        number = float(value)  # type: ignore[arg-type]
        if not least <= number <= 3600:
            raise ValueError(number)
    except (TypeError, ValueError) as error:
        raise SettingsError(f"{name} is {value!r}; give a number from {least:g} to 3600") from error
    return number
