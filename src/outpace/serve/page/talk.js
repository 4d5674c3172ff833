// Talking to the server: one streamed chat completion, and what it offers.

class TalkError extends Error {
  constructor(message, status) {
    super(message);
    this.status = status;
  }
}

function authorised(key) {
  return key ? { Authorization: `Bearer ${key}` } : {};
}

async function refusal(response) {
  const body = await response.json().catch(() => null);
  const words = body?.error?.message ?? body?.detail ?? response.statusText;
  const wait = response.headers.get("Retry-After");
  const more = response.status === 429 && wait ? ` Try again in ${wait} s.` : "";
  return new TalkError(`${typeof words === "string" ? words : JSON.stringify(words)}${more}`, response.status);
}

async function reach(path, options) {
  try {
    return await fetch(path, options);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new TalkError("The server cannot be reached. Is it still running?", 0);
  }
}

async function fetchModel(key) {
  const response = await reach("v1/models", { headers: authorised(key) });
  if (!response.ok) throw await refusal(response);
  return (await response.json()).data?.[0] ?? null;
}

// Calls back with each parsed chunk. Resolves at the end of the answer; throws a TalkError, or AbortError when stopped.
async function streamChat(body, key, signal, onChunk) {
  const response = await reach("v1/chat/completions", {
    method: "POST",
    headers: { "Content-Type": "application/json", ...authorised(key) },
    body: JSON.stringify(body),
    signal,
  });
  if (!response.ok) throw await refusal(response);
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let waiting = "";
  for (;;) {
    let part;
    try {
      part = await reader.read();
    } catch (error) {
      if (error.name === "AbortError") throw error;
      throw new TalkError("The connection broke off before the answer was whole.", 0);
    }
    if (part.done) throw new TalkError("The server ended the answer before it was whole.", 0);
    const lines = (waiting + part.value).split(/\r?\n/);
    waiting = lines.pop();
    for (const line of lines) {
      if (!line.startsWith("data:")) continue;
      const data = line.slice(5).trim();
      if (data === "[DONE]") return;
      const chunk = JSON.parse(data);
      if (chunk.error) throw new TalkError(chunk.error.message ?? "The server failed.", chunk.error.code ?? 500);
      onChunk(chunk);
    }
  }
}
