# Runs in an environment of its own, whose packages are not here.
# mypy: ignore-errors
"""Runs one driver: ``PYTHON serve.py DRIVER.py``; JSON lines in on standard input, JSON lines out.

The first line in is the settings ``{"target", "draft", "mode", "gamma", "threads"}``; the answer to it is
``{"ready": {...}}``. Every later line is a request ``{"prompt", "max_tokens", "temperature", "seeds"}``; the answer is
``{"tokens": [[...] for each seed], "drafted", "accepted", "timing": [[tokens of the first step, seconds until then,
seconds in all] for each seed]}``. Any answer may be ``{"error": "..."}`` instead.
"""

import importlib.util
import json
import os
import sys


def main():
    # This folder holds files named like the packages that they drive, and must not hide those.
    sys.path.pop(0)
    requests = os.fdopen(os.dup(0), "r", encoding="utf-8")
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)  # what the engine prints is not an answer

    def answer(value):
        answers.write(json.dumps(value) + "\n")
        answers.flush()

    generate = None
    for line in requests:
        message = json.loads(line)
        try:
            if generate is None:
                specification = importlib.util.spec_from_file_location("driver", sys.argv[1])
                driver = importlib.util.module_from_spec(specification)
                specification.loader.exec_module(driver)
                ready, generate = driver.load(message)
                answer({"ready": ready})
            else:
                answer(generate(**message))
        except Exception as error:  # whatever it is, it is the engine's own word for what went wrong
            answer({"error": f"{type(error).__name__}: {error}"})


if __name__ == "__main__":
    main()
