"""The OpenAPI document as a page that works without network.

Each path has an example, which can be changed and sent from the page.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from importlib.resources import files
from typing import Any

from transduce.report.content import Column, Part, Section, Table
from transduce.report.page import POLICY, as_html, whole_page
from transduce.serving.served_models import ServedModel

DOCUMENTATION_POLICY = f"{POLICY}; connect-src 'self'; form-action 'none'"
"""Content security policy of the page: it may connect to this server only."""
LIBRETRANSLATE = (
    "LibreTranslate clients work unchanged. A body is JSON, a form or form data; null "
    "and empty fields count as missing. A language is a BCP 47 tag in any case; if no "
    "model has it, a model of the same base language answers."
)
SENTENCE, TRANSLATION = "A dog runs.", "Ein Hund läuft."

Schema = Mapping[str, Any]


def documentation(openapi: Schema, models: Sequence[ServedModel]) -> str:
    """Write the page: each path with its request and answer, then all schemas."""
    bodies = examples(models)
    introduction = Section(
        title="For programs",
        parts=(
            LIBRETRANSLATE,
            "The same description is at /openapi.json, in OpenAPI's format.",
        ),
    )
    paths = [
        _with_form(
            Section(
                title=f"{method.upper()} {path}", parts=tuple(_operation(operation))
            ),
            method.upper(),
            path,
            bodies.get(path),
        )
        for path, operations in openapi["paths"].items()
        for method, operation in operations.items()
    ]
    schemas = [
        as_html(Section(title=name, parts=tuple(_fields(schema))))
        for name, schema in openapi["components"]["schemas"].items()
    ]
    page = files("transduce.serving") / "page"
    return whole_page(
        f"The interface of {openapi['info']['title']} {openapi['info']['version']}",
        [as_html(introduction), *paths, *schemas],
        (page / "docs.css").read_text(encoding="utf-8"),
        (page / "docs.js").read_text(encoding="utf-8"),
        DOCUMENTATION_POLICY,
    )


def examples(models: Sequence[ServedModel]) -> dict[str, dict[str, Any]]:
    """Example request for each path, one that the models can answer if any can."""
    translating = [model for model in models if not model.is_parser]
    parsing = [model for model in models if model.is_parser]
    source, target = "en", "de"
    name = parser = "NAME"
    if translating:
        name, source, target = (
            translating[0].name, translating[0].source, translating[0].target
        )  # fmt: skip
    if parsing:
        parser = parsing[0].name
    languages = {"source": source, "target": target}
    pair = {"source": SENTENCE, "target": TRANSLATION, "model": name}
    tree = {"source": SENTENCE, "target": "(S (NP (X A) (X dog)) (VP (X runs)))"}
    return {
        "/translate": {"q": SENTENCE, **languages, "format": "text", "alternatives": 2},
        "/detect": {"q": SENTENCE},
        "/v1/translate": {"q": f"{SENTENCE} {SENTENCE}", "model": name},
        "/v1/parse": {"q": SENTENCE, "model": parser},
        "/v1/score": {"source": [SENTENCE], "target": [TRANSLATION], "model": name},
        "/v1/attention": pair if translating else {**tree, "model": parser},
    }


def _with_form(
    section: Section, method: str, path: str, body: Mapping[str, Any] | None
) -> str:
    """Section with an example request to try."""
    sent, request = "", ""
    if body is not None:
        text = json.dumps(body, ensure_ascii=False, indent=2)
        rows = text.count("\n") + 1
        quoted = json.dumps(body, ensure_ascii=False)
        request = f" -H 'content-type: application/json' -d '{escape(quoted)}'"
        sent = (
            f"<p><label>Request to {escape(path)}<br>\n"
            f'<textarea rows="{rows}" spellcheck="false">\n{escape(text)}</textarea>'
            "</label></p>"
        )
    address = '<span class="address">http://localhost:5000</span>'
    form = (
        f'<form data-method="{method}" data-path="{escape(path)}">\n'
        f"<pre tabindex='0'>curl {address}{escape(path)}{request}</pre>\n{sent}\n"
        f'<button>Try it</button><output aria-live="polite"></output>\n'
        f'<pre class="answer" tabindex="0" hidden></pre>\n</form>'
    )
    return as_html(section).removesuffix("</section>") + form + "\n</section>"


def _operation(operation: Schema) -> Iterator[Part]:
    yield operation["description"]
    if body := operation.get("requestBody"):
        kinds = body["content"]
        first, *_ = kinds.values()
        *others, last = kinds
        yield f"The body is {', '.join(others)} or {last}."
        yield from _fields(first["schema"], "The body")
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
    """Describe a schema's type in words."""
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
