"""The playground in a real browser: conversations with the tiny pair, and with servers that fail."""

import base64
import hashlib
import json
import math
import re
import shutil

import pytest
from tests.helpers.cut_cases import CUT_CASES
from tests.helpers.serving import serving
from tests.helpers.shipped import new_engine, shared_engine

from outpace import SamplingParams
from outpace.serve.page import load_page

HELLO = "hello"
CHAT = "**/v1/chat/completions"
READY = "#model:not(:empty), #error:not([hidden])"
ANSWER = "article.assistant:last-of-type"


def said(messages, **controls):
    """What plain decoding answers."""
    return shared_engine("none").generate(messages, SamplingParams(**controls))


def user(text):
    return {"role": "user", "content": text}


@pytest.fixture(scope="module")
def browser():
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    place = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if place is None:
        pytest.skip("no chromium on this machine")
    with sync_api.sync_playwright() as driver:
        opened = driver.chromium.launch(executable_path=place, args=["--no-sandbox"])  # root, as in containers
        yield opened
        opened.close()


@pytest.fixture
def visit(browser):
    """Opens the page at a server; whatever the browser complains of fails the test."""
    contexts, complaints = [], []

    def go(url, expect=(), **options):
        contexts.append(browser.new_context(**{"viewport": {"width": 1100, "height": 720}, **options}))
        page = contexts[-1].new_page()
        page.set_default_timeout(60_000)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("console", lambda message: message.type == "error" and complaints.append(message.text))
        page.goto(url)
        page.wait_for_selector(READY, state="attached")
        return page

    go.complaints = complaints
    yield go
    for context in contexts:
        context.close()
    assert not complaints


@pytest.fixture
def page(visit, live):
    return visit(live.url)


def send(page, text, **settings):
    for field, value in settings.items():
        page.fill(f"#{field.replace('_', '-')}", str(value))
    page.fill("#prompt", text)
    page.press("#prompt", "Enter")


def finish(page):
    page.wait_for_selector("body:not(.busy)")
    return page.locator(f"{ANSWER} .body").text_content()


def stream(*chunks, done=True):
    """The body of a stream in which each text is one token, or each chunk is as given."""
    made = [
        chunk if isinstance(chunk, dict) else
        {"choices": [{"delta": {"content": chunk}, "outpace": {"tokens": [{"text": chunk, "origin": "medusa",
                                                                           "logprob": None}], "live": None}}]}
        for chunk in chunks
    ]  # fmt: skip
    return "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in made) + ("data: [DONE]\n\n" if done else "")


def fulfil(page, body, **response):
    page.route(CHAT, lambda route: route.fulfill(**{"body": body, "content_type": "text/event-stream", **response}))


# ---- what is served


def test_one_page_that_asks_nobody_else():
    body, headers = load_page()
    text = body.decode()
    assert not re.search(
        r"""(src|href)=["']?(https?:)?//|@import|url\(|innerHTML|outerHTML|insertAdjacent|eval\(""", text
    )
    policy = headers["Content-Security-Policy"]
    for tag, directive in (("script", "script-src"), ("style", "style-src")):
        found = re.findall(rf"<{tag}>(.*?)</{tag}>", text, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(found[0].encode()).digest()).decode()
        assert len(found) == 1 and f"{directive} 'sha256-{digest}';" in policy
    assert policy.startswith("default-src 'none';") and "unsafe" not in policy


def test_the_policy_keeps_other_scripts_out(page, visit):
    page.evaluate("""() => {
        const script = document.createElement('script');
        script.textContent = 'window.owned = true';
        document.body.append(script);
    }""")
    assert page.evaluate("window.owned") is None
    assert "Content Security Policy" in visit.complaints.pop()


# ---- conversations


def test_a_conversation(page, live):
    send(page, HELLO, max_tokens=40)
    first = said([user(HELLO)], max_tokens=40)
    assert finish(page) == first.text
    drafted = live.engine.generate([user(HELLO)], SamplingParams(max_tokens=40, logprobs=5))
    spans = page.locator(f"{ANSWER} .token")
    classes = {
        int(span["index"]): span["name"]
        for span in spans.evaluate_all("all => all.map(span => ({index: span.dataset.index, name: span.className}))")
    }
    assert [classes[i].split()[1] for i in sorted(classes)] == [f"o-{origin}" for origin in drafted.origins]
    legend = dict(
        zip(page.locator("#legend b").all_inner_texts(), page.locator("#legend em").all_inner_texts(), strict=True)
    )
    assert {name.replace(" ", "_"): int(count) for name, count in legend.items()} == {
        origin: drafted.origins.count(origin) for origin in set(drafted.origins)
    }
    assert page.inner_text("#alpha") == f"{drafted.report.alpha:.2f}"
    assert page.inner_text("#block") == f"{drafted.report.block_efficiency:.2f}"
    report = drafted.report
    assert page.inner_text("#rows") == f"{1 + report.drafted / report.target_passes:.2f}"
    assert float(page.inner_text("#rate")) > 0 and page.inner_text("#gain").endswith(" plain")
    assert page.locator("#passes > div").count() == report.target_passes
    assert page.locator("#line").get_attribute("points")

    spans.nth(3).hover()
    tip = page.locator("#tip")
    one = drafted.logprobs[3]
    assert f"Probability {100 * math.exp(one.logprob):.1f} %" in tip.inner_text()
    assert tip.locator("li").count() == 5
    assert tip.locator("li span").all_inner_texts()[0] == f"{100 * math.exp(one.top[0][1]):.1f} %"

    send(page, "and then?")
    second = said([user(HELLO), {"role": "assistant", "content": first.text}, user("and then?")], max_tokens=40)
    assert finish(page) == second.text
    assert page.locator("article").count() == 4


def test_settings_reach_the_server_and_are_remembered(page):
    bodies = []
    page.on("request", lambda request: request.post_data and bodies.append(json.loads(request.post_data)))
    page.fill("#system", "be brief")
    page.fill("#temperature", "0.9")
    page.select_option("#drafter", "lookup")
    send(page, HELLO, seed=7, max_tokens=12, gamma=3)
    answer = finish(page)
    messages = [{"role": "system", "content": "be brief"}, user(HELLO)]
    assert answer == said(messages, temperature=0.9, seed=7, max_tokens=12).text
    assert bodies[-1]["outpace"] == {"show": True, "drafter": "lookup", "gamma": 3}
    page.uncheck("#speculate")
    page.click("text=Regenerate")
    assert finish(page) == answer  # the same seed: speculation changes no word
    assert bodies[-1]["outpace"] == {"show": True, "off": True}
    assert page.locator("#legend b").all_inner_texts() == ["plain"]
    page.reload()
    page.wait_for_selector(READY, state="attached")
    assert page.input_value("#system") == "be brief" and page.input_value("#seed") == "7"
    assert page.input_value("#drafter") == "lookup" and not page.is_checked("#speculate")


def test_edit_and_regenerate(page):
    send(page, HELLO, max_tokens=10)
    finish(page)
    send(page, "second")
    finish(page)
    page.locator("article.user").first.get_by_text("Edit").click()
    page.keyboard.press("Escape")
    assert page.locator("article").count() == 4
    page.locator("article.user").first.get_by_text("Edit").click()
    page.fill("textarea.edit", "other")
    page.keyboard.press("Enter")
    assert finish(page) == said([user("other")], max_tokens=10).text
    assert page.locator("article").count() == 2
    page.fill("#max-tokens", "5")
    page.click("text=Regenerate")
    assert finish(page) == said([user("other")], max_tokens=5).text
    assert page.inner_text(f"{ANSWER} .note") == "Cut at the maximum number of tokens."


def test_escape_stops_and_keeps_the_text(page, live):
    whole = said([user(HELLO)], max_tokens=None, ignore_eos=True).text
    page.evaluate("""() => {
        const original = streamChat;
        streamChat = (body, ...rest) => original({...body, ignore_eos: true}, ...rest);
    }""")
    send(page, HELLO, max_tokens="")
    page.wait_for_selector(f"{ANSWER} .token")
    assert page.is_visible("#stop") and not page.is_visible("#send")
    page.keyboard.press("Escape")
    text = finish(page)
    assert page.inner_text(f"{ANSWER} .note") == "Stopped."
    assert text and len(text) < len(whole) and whole.startswith(text)
    assert live.wait_idle()
    assert page.is_visible("#send") and page.evaluate("document.activeElement.id") == "prompt"


def test_history(page):
    send(page, "first talk", max_tokens=6)
    first = finish(page)
    page.click("#new")
    assert page.locator("article").count() == 0 and page.is_visible("#welcome")
    send(page, "second talk")
    finish(page)
    page.reload()
    assert page.locator("#history button").all_inner_texts() == ["second talk", "first talk"]
    page.click("#history >> text=first talk")
    assert page.locator(f"{ANSWER} .body").text_content() == first
    assert page.locator(f"{ANSWER} .token").first.get_attribute("class").split()[1].startswith("o-")
    page.click("#clear")
    page.reload()
    assert page.locator("#history button").count() == 0


# ---- text is text


EVIL = "<img src=x onerror='document.title=\"owned\"'><script>document.title='owned'</script>"


def test_markup_is_shown_and_never_run(page):
    fulfil(page, stream("Look: ", EVIL, "\n```html\n", EVIL, "\n```\n"))
    page.fill("#system", EVIL)
    send(page, EVIL)
    assert EVIL in finish(page)
    page.locator(f"{ANSWER} .token").nth(1).hover()
    assert page.locator("#tip code").first.text_content() == EVIL.replace(" ", "␣")
    page.reload()
    page.click("#history button")
    assert page.title().startswith("Outpace") and page.locator("#log img, #log script, #history img").count() == 0


def test_blocks_of_code(page):
    fulfil(page, stream("So:\n", "``", "`py\n", "x = 1\n\n  y", "\n", "```", "\nDone ```inline``` and", "\n```\nopen"))
    send(page, HELLO)
    finish(page)
    assert page.locator(f"{ANSWER} pre").all_text_contents() == ["x = 1\n\n  y\n", "open"]
    assert page.locator(f"{ANSWER} .fence").all_text_contents() == ["```py\n", "```\n", "```\n"]
    assert page.locator(f"{ANSWER} .prose").all_text_contents() == ["So:\n", "Done ```inline``` and\n"]
    assert page.locator("#legend b").all_inner_texts() == ["medusa"]


def test_text_is_cut_at_its_tokens(page):
    for text, spellings, pieces in CUT_CASES:
        assert page.evaluate("([text, spellings]) => cut(text, spellings)", [text, spellings]) == pieces


# ---- failures


@pytest.mark.parametrize(
    ("body", "response", "words"),
    [
        (json.dumps({"error": {"message": "gamma is too large"}}), {"status": 400}, "gamma is too large"),
        (json.dumps({"error": {"message": "Too busy."}}), {"status": 429, "headers": {"Retry-After": "7"}},
         "Too busy. Try again in 7 s."),
        ("<html>no", {"status": 502}, "Bad Gateway"),
        (stream({"error": {"message": "no memory"}}), {}, "no memory"),
        (stream(done=False), {}, "ended the answer before it was whole"),
    ],
)  # fmt: skip
def test_failures_are_told_and_the_message_comes_back(page, visit, body, response, words):
    fulfil(page, body, **response)
    send(page, HELLO)
    page.wait_for_selector("#error:not([hidden])")
    assert words in page.inner_text("#error")
    assert page.input_value("#prompt") == HELLO and page.locator("article").count() == 0
    visit.complaints.clear()  # the browser's own line about the status
    page.unroute(CHAT)
    page.fill("#max-tokens", "4")
    page.press("#prompt", "Enter")
    assert finish(page) == said([user(HELLO)], max_tokens=4).text and not page.is_visible("#error")


def test_an_answer_that_breaks_off_stays(page):
    fulfil(page, stream("half an ", "answer", done=False))
    send(page, HELLO)
    page.wait_for_selector("#error:not([hidden])")
    assert finish(page) == "half an answer"


def test_a_refused_regeneration_leaves_the_answer(page, visit):
    send(page, HELLO, max_tokens=6)
    answer = finish(page)
    fulfil(page, json.dumps({"error": {"message": "no"}}), status=400)
    page.click("text=Regenerate")
    page.wait_for_selector("#error:not([hidden])")
    assert finish(page) == answer
    visit.complaints.clear()


def test_numbers_are_checked_before_they_are_sent(page):
    send(page, HELLO, seed="1" * 20)
    assert "Seed must be a whole number" in page.inner_text("#error")
    assert page.input_value("#prompt") == HELLO


def test_a_server_that_has_gone(page, visit):
    page.route(CHAT, lambda route: route.abort())
    send(page, HELLO)
    page.wait_for_selector("#error:not([hidden])")
    assert "cannot be reached" in page.inner_text("#error")
    visit.complaints.clear()


def test_a_key_is_asked_for_and_kept_in_memory_only(visit):
    with serving(new_engine("lookup"), keys=("open-sesame",)) as server:
        page = visit(server.url)
        assert page.evaluate("document.activeElement.id") == "key"
        visit.complaints.clear()
        page.fill("#key", "open-sesame")
        page.keyboard.press("Enter")
        page.wait_for_selector("#model:not(:empty)")
        send(page, HELLO, max_tokens=5)
        assert finish(page) == said([user(HELLO)], max_tokens=5).text
        assert "sesame" not in page.evaluate(
            "JSON.stringify([{...localStorage}, {...sessionStorage}, document.cookie])"
        )
        page.close()


# ---- for everybody


def test_keyboard_alone(page):
    send(page, HELLO, max_tokens=8)
    finish(page)
    page.keyboard.press("Shift+Enter")
    page.keyboard.type("x")
    assert page.input_value("#prompt") == "\nx"
    order = []
    for _ in range(5):
        page.keyboard.press("Shift+Tab")
        order.append(page.evaluate("document.activeElement.textContent.trim() || document.activeElement.id"))
    assert order[:2] == ["Regenerate", "Copy"] and order[3] == "Edit"
    page.locator(f"{ANSWER} .body").focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    assert page.is_visible("#tip")
    focused = page.evaluate(
        "[document.activeElement.dataset.index, document.activeElement.getAttribute('aria-describedby')]"
    )
    assert focused == ["1", "tip"]
    page.keyboard.press("Escape")
    assert not page.is_visible("#tip")


def test_an_answer_is_announced_once(page):
    assert page.get_attribute("#log", "role") == "log"
    busy = []
    page.expose_function("seen", lambda value: busy.append(value))
    page.evaluate(
        "new MutationObserver(() => seen($('log').getAttribute('aria-busy'))).observe($('log'), {attributes: true})"
    )
    send(page, HELLO, max_tokens=8)
    finish(page)
    assert page.inner_text("#status") == "Cut at the maximum number of tokens."
    page.wait_for_timeout(50)
    assert busy == ["true", "false"]


def test_colours_can_be_switched_off(page):
    send(page, HELLO, max_tokens=8)
    finish(page)
    tint = f"getComputedStyle(document.querySelector('{ANSWER} .token')).backgroundColor"
    assert page.evaluate(tint) != "rgba(0, 0, 0, 0)"
    page.uncheck("#colours")
    assert page.evaluate(tint) == "rgba(0, 0, 0, 0)"


def test_light_and_dark(visit, live):
    page = visit(live.url, color_scheme="dark")

    def brightness():
        colour = page.evaluate("getComputedStyle(document.documentElement).backgroundColor")
        return sum(map(int, re.findall(r"\d+", colour)[:3])) / 3

    assert brightness() < 60 and page.inner_text("#theme") == "Auto"
    page.click("#theme")
    assert brightness() > 200 and page.inner_text("#theme") == "Light"
    page.reload()
    assert brightness() > 200
    page.click("#theme")
    assert brightness() < 60 and page.inner_text("#theme") == "Dark"


@pytest.mark.parametrize("width", [320, 390])
def test_a_phone(visit, live, width):
    page = visit(live.url, viewport={"width": width, "height": 700}, has_touch=True)
    fulfil(page, stream("a long line of code:\n```\n" + "x" * 200 + "\n```\n" + "y" * 300))
    send(page, HELLO)
    finish(page)
    assert page.evaluate("document.documentElement.scrollWidth") == width
    assert not page.is_visible("#panel") and page.is_visible("#send")
    page.locator(f"{ANSWER} .token").first.tap()
    box = page.locator("#tip").bounding_box()
    assert box and box["x"] >= 0 and box["x"] + box["width"] <= width
    page.tap("#panel-button")
    assert page.is_visible("#settings") and page.get_attribute("#panel-button", "aria-expanded") == "true"
    page.keyboard.press("Escape")
    assert not page.is_visible("#panel")
