"""What the server says of plain decoding's speed, and under which name a model is served."""

import time

from tests.helpers.serving import serving
from tests.helpers.shipped import shared_engine

CODE = "def read(path):\n    with open(path) as f:\n        return"


def test_plain_speed_is_of_the_last_rounds_and_compared_only_where_something_was_drafted(live):
    """It was measured once at the start: started while the machine was busy, it was wrong for good."""
    plain = live.complete(prompt=CODE, max_tokens=8, outpace={"off": True})["outpace"]
    assert plain["drafted"] == 0 and plain["plain_tokens_per_second"] is None
    drafted = live.complete(prompt=CODE, max_tokens=16, outpace={"gamma": 2})["outpace"]
    assert drafted["drafted"] > 0 and drafted["plain_tokens_per_second"] > 0
    about = live.http.get("/v1/models").json()["data"][0]["outpace"]
    assert about["plain_tokens_per_second"] > 0 and abs(about["plain_measured_at"] - time.time()) < 120


def test_a_model_from_a_file_is_served_under_the_files_name():
    with serving(shared_engine(), model=None) as server:
        [about] = server.http.get("/v1/models").json()["data"]
        refused = server.post("completions", {"model": "other", "prompt": CODE})
    assert about["id"] == "tiny" and "'tiny' is" in refused.json()["error"]["message"]
