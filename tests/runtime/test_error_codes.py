"""The library's ``error_code``s: all of them are in docs/guarantees.md, and nothing else is."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from tests.runtime.test_events import PROJECT

_CODE = re.compile(r"[a-z]+(_[a-z]+)*")
_FAILURES = ("Failed", "_failure", "failed", "failure")


def given(source: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call):
            continue
        keywords = [keyword.value for keyword in node.keywords if keyword.arg == "error_code"]
        is_failure = getattr(node.func, "id", getattr(node.func, "attr", "")) in _FAILURES
        for value in [*keywords, *(node.args if is_failure else [])]:
            if (
                isinstance(value, ast.Constant)
                and isinstance(value.value, str)
                and _CODE.fullmatch(value.value)
            ):
                yield value.value


def test_every_code_is_documented() -> None:
    sources = [
        path.read_text(encoding="utf-8")
        for top in ("task_tracker", "stores")
        for path in (PROJECT / top).rglob("*.py")
        if "testing" not in path.parts
    ]
    codes = {code for source in sources for code in given(source)}
    text = (PROJECT / "docs" / "guarantees.md").read_text(encoding="utf-8").partition("## Error codes")[2]
    assert set(re.findall(r"^\| `(\w+)` \|", text, re.MULTILINE)) == codes
