"""One server for the tests that need no settings of their own."""

from collections.abc import Iterator

import pytest
from tests.helpers.serving import Live, serving
from tests.helpers.shipped import model

from outpace.engine.build import load


@pytest.fixture(scope="package")
def live() -> Iterator[Live]:
    engine = load(model("tiny"), model("tiny-draft"), drafter="draft_model,lookup", controller="fixed",
                  drafter_options={"lookup": {"min_match": 1}})  # fmt: skip
    with serving(engine) as server:
        yield server
        assert server.wait_idle()
