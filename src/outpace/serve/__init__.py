"""The OpenAI-compatible HTTP server. Knows the engine only; docs/how-to/serve.md says what it answers.

What it adds to OpenAI's objects is under the key ``outpace``:

- in a request: ``{"drafter": name, "gamma": n, "accept": rule, "off": bool, "show": bool}``, each optional;
- in an answer, and in the last chunk with choices of a stream: what the request cost (:class:`bodies.Speculation`);
- with ``"show": true``, in every choice of a streamed chunk that has tokens (:class:`bodies.Shown`):
  ``choices[i].outpace = {"tokens": [{"text", "origin", "logprob"}, ...], "live": {"alpha", "block_efficiency",
  "rows_per_pass", "tokens_per_second", "plain_tokens_per_second"}}``. ``origin``: the source of the accepted draft
  ("lookup", "draft_model", ...), or "correction", "bonus" or "plain"; ``logprob`` is null unless log-probabilities were
  asked for. A token's text is what it spells alone; a character split between tokens shows as U+FFFD there.
- in ``GET /v1/models``: ``data[0].outpace`` (:class:`bodies.ModelOptions`).
"""
