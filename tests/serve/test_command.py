"""`outpace serve` as a process: it says where it serves, and ends as it should."""

import contextlib
import signal
import subprocess
import sys
import threading

import httpx
import pytest

from outpace.cli import main


@contextlib.contextmanager
def process(*options):
    command = [sys.executable, "-m", "outpace", "serve", "--target", "tiny", "--port", "0", "--threads", "1", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
        line = running.stdout.readline()
        assert line.startswith("serving tiny on http://127.0.0.1:"), line + running.stderr.read()
        try:
            yield running, line.split()[-1]
        finally:
            running.kill()


def test_a_signal_lets_answers_end():
    """What runs is answered, nothing new is taken, and the process ends."""
    body = {"prompt": "def f(", "max_tokens": 600, "temperature": 0, "ignore_eos": True, "stream": True}
    with process() as (running, url):
        with httpx.stream("POST", f"{url}/v1/completions", json=body, timeout=120) as response:
            lines = response.iter_lines()
            next(lines)
            running.send_signal(signal.SIGTERM)
            last = [line for line in lines if line][-1]
        assert last == "data: [DONE]"
        assert running.wait(timeout=60) in (0, -signal.SIGTERM)
        with pytest.raises(httpx.ConnectError):
            httpx.get(f"{url}/health")
        assert "Traceback" not in running.stderr.read()


def test_after_the_grace_answers_are_cut():
    body = {"prompt": "def f(", "max_tokens": 1000, "temperature": 0, "ignore_eos": True, "n": 8}
    answers = []

    def ask(url):
        try:
            answers.append(httpx.post(f"{url}/v1/completions", json=body, timeout=120).status_code)
        except httpx.HTTPError as error:
            answers.append(error)

    with process("--grace", "1") as (running, url):
        thread = threading.Thread(target=ask, args=(url,))
        thread.start()
        while httpx.get(f"{url}/health").json()["running"] == 0:
            pass
        running.send_signal(signal.SIGTERM)
        assert running.wait(timeout=60) in (0, -signal.SIGTERM)
        thread.join()
    assert answers and answers[0] != 200


def test_mistakes_are_one_line_and_come_before_loading(capsys, tmp_path):
    mistakes = [(["--api-keys", str(tmp_path / "none")], "--api-keys"), (["--port", "70000"], "cannot listen"),
                (["--timeout", "0"], "timeout"), (["--max-open", "0"], "most_open")]  # fmt: skip
    for options, words in mistakes:
        assert main(["serve", "--target", "no-such-model", *options]) == 1
        error = capsys.readouterr().err
        assert error.startswith("outpace: error: ") and words in error and error.count("\n") == 1
