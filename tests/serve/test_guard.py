"""Before a request is read: hosts, keys, sizes."""

import hmac
import socket

import pytest
from fastapi.testclient import TestClient
from tests.helpers.shipped import new_engine

from outpace.commands.serve import bind, is_loopback, read_keys
from outpace.core.errors import ParameterError
from outpace.serve.app import create_app
from outpace.serve.settings import ServerSettings

BODY = {"prompt": "x", "max_tokens": 1}


@pytest.fixture(scope="module")
def app():
    """One application for keys, hosts and sizes."""
    settings = ServerSettings(keys=("sesame", "open-up"), hosts=("localhost", "[::1]"), most_body=2000)
    with TestClient(create_app(new_engine(), settings), base_url="http://localhost:8000") as client:
        yield client


def test_paths_that_need_a_key(app):
    for path in ("/v1/models", "/v1/models/x", "/metrics", "/openapi.json", "/nothing"):
        refused = app.get(path)
        assert refused.status_code == 401 and refused.headers["www-authenticate"] == "Bearer"
        assert refused.json()["error"]["code"] == "invalid_api_key"
    assert app.post("/v1/completions", json=BODY).status_code == 401
    assert app.get("/health").status_code == app.get("/").status_code == 200


@pytest.mark.parametrize("header", ["", "Bearer", "Bearer ", "Bearer sesam", "Bearer sesame2", "Basic sesame", "sesame",
                                    "Bearer sesame open-up", "Bearer \xe9"])  # fmt: skip
def test_wrong_keys(app, header):
    assert app.get("/v1/models", headers={"authorization": header.encode("latin-1")}).status_code == 401


@pytest.mark.parametrize("key", ["sesame", "open-up"])
def test_right_keys(app, key):
    answer = app.post("/v1/completions", json=BODY, headers={"authorization": f"Bearer {key}"})
    assert answer.status_code == 200


def test_keys_are_compared_in_constant_time(app, monkeypatch):
    """All of them, by the library's function, on digests of one length."""
    seen = []
    real = hmac.compare_digest
    monkeypatch.setattr(hmac, "compare_digest", lambda a, b: seen.append((a, b)) or real(a, b))
    app.get("/v1/models", headers={"authorization": "Bearer sesame"})
    assert [len(part) for pair in seen for part in pair] == [32] * 4


def test_tenants_are_told_apart_and_keep_their_keys(monkeypatch):
    """Requests of different keys share no cached beginnings; the engine never learns a key."""
    engine, seen = new_engine(), []
    opened = engine.stream
    monkeypatch.setattr(engine, "stream", lambda *args, **more: seen.append(more["tenant"]) or opened(*args, **more))
    with TestClient(create_app(engine, ServerSettings(keys=("one", "two")))) as client:
        for key in ("one", "two", "one"):
            client.post("/v1/completions", json=BODY, headers={"authorization": f"Bearer {key}"})
    assert seen[0] == seen[2] != seen[1] and not {"one", "two"} & set(seen)


HOSTS = {"localhost": 200, "LOCALHOST:1": 200, "[::1]:8000": 200, "[::1]": 200, "evil.example": 400,
         "localhost.evil.example:8000": 400, "": 400}  # fmt: skip


@pytest.mark.parametrize(("host", "status"), HOSTS.items())
def test_a_page_under_another_name_is_refused(app, host, status):
    """A name that an attacker points at this machine: the browser would send the page's requests here."""
    assert app.get("/health", headers={"host": host}).status_code == status


def test_no_other_site_is_let_in(app):
    """CORS is off: no page but our own may read an answer."""
    asked = {"origin": "http://evil.example", "access-control-request-method": "POST"}
    answer = app.options("/v1/completions", headers={**asked, "authorization": "Bearer sesame"})
    assert answer.status_code == 405
    for response in (answer, app.get("/health", headers=asked)):
        assert not any(name.startswith("access-control") for name in response.headers)


@pytest.mark.parametrize("declared", [True, False])
def test_a_body_that_is_too_large(app, declared):
    """Refused by what it says, and by what comes when it says nothing."""
    headers = {"authorization": "Bearer sesame", "content-type": "application/json"}
    large = b'{"prompt": "' + b"x" * 2000 + b'"}'
    content = large if declared else (large[i : i + 100] for i in range(0, len(large), 100))
    answer = app.post("/v1/completions", content=content, headers=headers)
    assert answer.status_code == 413 and answer.json()["error"]["code"] == "body_too_large"
    fits = b'{"prompt": "' + b"x" * 200 + b'", "max_tokens": 1}'
    assert app.post("/v1/completions", content=fits, headers=headers).status_code == 200


def test_the_page_lets_in_nothing_from_elsewhere(app):
    page = app.get("/")
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert "default-src 'none'" in page.headers["content-security-policy"]
    assert "http://" not in page.text.replace("http://www.w3.org", "") and "https://" not in page.text


def test_loopback():
    assert all(is_loopback(host) for host in ("127.0.0.1", "127.9.9.9", "::1", "localhost"))
    assert not any(is_loopback(host) for host in ("0.0.0.0", "::", "10.0.0.1", "example.org"))


def test_key_files(tmp_path):
    file = tmp_path / "keys"
    file.write_text("# ours\n  abc \n\nd-e-f\n")
    assert read_keys(str(file)) == ("abc", "d-e-f") and read_keys(None) == ()
    file.write_text("# none yet\n")
    for path in (file, tmp_path / "missing"):
        with pytest.raises(ParameterError, match="--api-keys"):
            read_keys(str(path))


@pytest.mark.parametrize(
    "wrong",
    [
        {"most_open": 0},
        {"timeout": 0},
        {"most_body": 0},
        {"keys": ("",)},
        {"keys": ("é",)},
        {"read_timeout": 0},
        {"stall_timeout": float("nan")},
        {"most_connections": 0},
    ],
)
def test_impossible_settings(wrong):
    with pytest.raises(ParameterError):
        ServerSettings(**wrong)


def test_small_events_are_sent_at_once():
    """asyncio switches off Nagle's algorithm only where the socket names its protocol."""
    with bind("127.0.0.1", 0) as listener:
        assert listener.proto == socket.IPPROTO_TCP


def test_an_address_that_is_taken():
    with bind("127.0.0.1", 0) as taken:
        taken.listen()
        with pytest.raises(ParameterError, match="cannot listen on 127.0.0.1"):
            bind("127.0.0.1", taken.getsockname()[1])
    with pytest.raises(ParameterError, match="cannot listen"):
        bind("127.0.0.1", 99999)
