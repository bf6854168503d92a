"""The OpenAPI document as a page that loads nothing from anywhere."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from transduce.report.content import Column, Part, Report, Section, Table
from transduce.report.page import as_page

Schema = Mapping[str, Any]


def documentation(openapi: Schema) -> str:
    """Each path, what it takes and what it answers, and then all kinds of answers."""
    paths = [
        Section(title=f"{method.upper()} {path}", parts=tuple(_operation(operation)))
        for path, operations in openapi["paths"].items()
        for method, operation in operations.items()
    ]
    schemas = [
        Section(title=name, parts=tuple(_fields(schema)))
        for name, schema in openapi["components"]["schemas"].items()
    ]
    introduction = Section(
        title="For programs",
        parts=("All of this is at /openapi.json too, as OpenAPI has it.",),
    )
    title = f"The interface of {openapi['info']['title']} {openapi['info']['version']}"
    return as_page(Report(title=title, sections=(introduction, *paths, *schemas)))


def _operation(operation: Schema) -> Iterator[Part]:
    yield operation["description"]
    if body := operation.get("requestBody"):
        kinds = body["content"]
        first, *_ = kinds.values()
        yield from _fields(first["schema"], f"The body, as {' or '.join(kinds)}")
    rows = tuple(
        (status, _content(answer), answer["description"])
        for status, answer in operation["responses"].items()
    )
    yield Table(title="The answer", columns=_texts("status", "body", "when"), rows=rows)


def _content(answer: Schema) -> str:
    return ", ".join(
        f"{_kind(content['schema'])} as {kind}"
        for kind, content in answer.get("content", {}).items()
        if "schema" in content
    )


def _fields(schema: Schema, title: str = "") -> Iterator[Part]:
    if not title:
        yield schema["description"]
    required = schema.get("required", ())
    rows = tuple(
        (
            name,
            _kind(field),
            "none: it must be given"
            if name in required
            else _json(field.get("default")),
            field.get("description", ""),
        )
        for name, field in schema["properties"].items()
    )
    heads = _texts("field", "kind", "default", "meaning")
    yield Table(title=title, columns=heads, rows=rows)


def _kind(schema: Schema) -> str:
    """In words, as far as a reader needs it."""
    if "anyOf" in schema:
        return " or ".join(map(_kind, schema["anyOf"]))
    if "enum" in schema:
        return " or ".join(map(_json, schema["enum"]))
    if "const" in schema:
        return _json(schema["const"])
    if "$ref" in schema:
        return str(schema["$ref"]).rpartition("/")[2]
    if schema.get("type") == "array":
        return f"list of {_kind(schema['items'])}"
    return str(schema.get("type", "text"))


def _json(value: object) -> str:
    return json.dumps(value)


def _texts(*names: str) -> tuple[Column, ...]:
    return tuple(Column(name=name, is_text=True) for name in names)
