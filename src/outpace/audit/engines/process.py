"""A peer: another engine in its own environment, reached through a subprocess and JSON lines."""

from __future__ import annotations

import json
import subprocess
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ...core.errors import PeerError

DRIVERS = Path(__file__).parent / "drivers"


class Draws(NamedTuple):
    """One answer a seed, and how many tokens were drafted and accepted for them (None: the engine does not tell).
    ``timing``: for each seed, tokens that were out after the first step, seconds until then, and seconds in all."""

    tokens: list[list[int]]
    drafted: int | None
    accepted: int | None
    timing: list[tuple[int, float, float]] | None = None


class Peer:
    """A running driver. ``ready`` is what it said of itself: ``versions`` and ``numerics``.

    Raises PeerError when the environment is missing, when the engine ends early or is silent for longer than
    ``timeout`` seconds, and with the engine's own words when it refuses.
    """

    def __init__(
        self, python: str | Path, driver: str | Path, settings: Mapping[str, Any], timeout: float = 300
    ) -> None:
        self.name, self._timeout = Path(driver).stem, timeout
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 - closed in close()
        try:
            self._process = subprocess.Popen(
                [str(python), str(DRIVERS / "serve.py"), str(driver)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._stderr,
                text=True,
                encoding="utf-8",
            )
        except OSError as error:
            self._stderr.close()
            raise PeerError(f"{self.name}: {python} cannot be run ({error.strerror}); `make peers` makes it") from error
        try:
            self.ready: dict[str, Any] = self._ask(settings)["ready"]
        except BaseException:
            self.close()
            raise

    def generate(self, prompt: Sequence[int], max_tokens: int, temperature: float, seeds: Sequence[int]) -> Draws:
        """An answer of at most ``max_tokens`` tokens to the prompt for each seed."""
        answer = self._ask(
            {"prompt": list(prompt), "max_tokens": max_tokens, "temperature": temperature, "seeds": list(seeds)}
        )
        tokens = answer.get("tokens")
        if not isinstance(tokens, list) or len(tokens) != len(seeds):
            raise PeerError(f"{self.name}: the driver did not answer {len(seeds)} seeds with as many lists of tokens")
        return Draws(tokens, answer.get("drafted"), answer.get("accepted"), answer.get("timing"))

    def _ask(self, message: Mapping[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None and self._process.stdout is not None
        late = threading.Timer(self._timeout, self._process.kill)
        late.start()
        try:
            self._process.stdin.write(json.dumps(message) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except OSError:
            line = ""
        finally:
            late.cancel()
        if not line:
            status = self._process.wait()
            why = (
                f"silent for {self._timeout:g} seconds"
                if late.finished.is_set() and status == -9
                else f"status {status}"
            )
            raise PeerError(f"{self.name}: the engine ended without an answer ({why}); its last words: {self._words()}")
        try:
            answer: dict[str, Any] = json.loads(line)
        except json.JSONDecodeError as error:
            raise PeerError(f"{self.name}: the driver's answer is not JSON: {line[:80]!r}") from error
        if "error" in answer:
            raise PeerError(f"{self.name}: {answer['error']}")
        return answer

    def _words(self) -> str:
        self._stderr.seek(0)
        lines = self._stderr.read().decode("utf-8", "replace").strip().splitlines()
        return lines[-1] if lines else "none"

    def close(self) -> None:
        """End the driver, and what it started ends with it."""
        assert self._process.stdin is not None and self._process.stdout is not None
        try:
            self._process.stdin.close()  # the driver's loop ends, and its engine is put away
            self._process.wait(timeout=20)
        except (OSError, subprocess.TimeoutExpired):
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()
        self._stderr.close()

    def __enter__(self) -> Peer:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
