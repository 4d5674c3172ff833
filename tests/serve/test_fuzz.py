"""Requests made from our own description: none may crash the server, answer outside of the description, or get in
although the description forbids it."""

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_schema_conformance,
    status_code_conformance,
    unsupported_method,
)
from tests.helpers.serving import serving
from tests.helpers.shipped import model

from outpace.engine.build import load

CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance,
          negative_data_rejection, unsupported_method]  # fmt: skip
PATHS = ["/v1/chat/completions", "/v1/completions", "/v1/models", "/v1/models/{model_id}", "/health", "/metrics"]


@pytest.fixture(scope="module")
def description():
    """The application's own. A short context keeps answers short that nobody limits."""
    engine = load(model("tiny", context=48), drafter="lookup")
    with serving(engine) as server:
        yield schemathesis.openapi.from_url(f"{server.url}/openapi.json")
        assert server.wait_idle()


def fuzz(description, path, mode, examples, derandomize):
    (operation,) = [found.ok() for found in description.get_all_operations() if found.ok().path == path]

    @given(case=operation.as_strategy(generation_mode=mode))
    @settings(max_examples=examples, deadline=None, suppress_health_check=list(HealthCheck), derandomize=derandomize)
    def ask(case):
        case.call_and_validate(checks=CHECKS)

    ask()


MODES = pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE], ids=lambda mode: mode.value)


def test_everything_is_described(description):
    assert sorted(found.ok().path for found in description.get_all_operations()) == sorted(PATHS)


@MODES
@pytest.mark.parametrize("path", PATHS[:2])
def test_a_few_of_everything(description, path, mode):
    fuzz(description, path, mode, 8, True)


@pytest.mark.audit
@MODES
@pytest.mark.parametrize("path", PATHS)
def test_many_of_everything(description, path, mode):
    if mode == GenerationMode.NEGATIVE and path not in PATHS[:2]:
        pytest.skip("it takes nothing that could be wrong")
    fuzz(description, path, mode, 500, False)
