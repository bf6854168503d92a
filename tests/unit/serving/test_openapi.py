"""Every answer matches the OpenAPI document, whether or not the request does."""

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from serving_client import RunningServer

CHECKS = [
    not_a_server_error,
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
]
NUM_EXAMPLES = 40
POSTS = [
    *("/translate", "/detect", "/v1/translate", "/v1/parse"),
    *("/v1/score", "/v1/attention"),
]
GETS = [
    "/languages",
    "/frontend/settings",
    "/v1/models",
    "/v1/glossaries",
    "/health",
    "/metrics",
]


Operations = dict[tuple[str, str], schemathesis.APIOperation]


@pytest.fixture(scope="module")
def operations(http: RunningServer) -> Operations:
    """Operations of the server's document, by method and path."""
    schema = schemathesis.openapi.from_url(f"{http.address}/openapi.json")
    found = [result.ok() for result in schema.get_all_operations()]
    return {(each.method.upper(), each.path): each for each in found}


def test_every_path_is_documented(operations: Operations) -> None:
    expected = {("POST", path) for path in POSTS} | {("GET", path) for path in GETS}
    assert set(operations) == expected


# The server, a thread of this process, may draw a random number while a case is made.
@pytest.mark.filterwarnings("ignore:Do not use the `random` module inside strategies")
@pytest.mark.parametrize(
    ("method", "path", "mode"),
    [
        *(("POST", path, mode) for path in POSTS for mode in GenerationMode),
        *(("GET", path, GenerationMode.POSITIVE) for path in GETS),
    ],
    ids=str,
)
def test_answers_match_the_documentation(
    operations: Operations, method: str, path: str, mode: GenerationMode
) -> None:
    operation = operations[method, path]

    @given(case=operation.as_strategy(generation_mode=mode))
    @settings(
        max_examples=NUM_EXAMPLES, deadline=None, database=None,
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    def check(case: schemathesis.Case) -> None:
        case.call_and_validate(checks=CHECKS)

    check()
