"""The server's page in a real headless Chromium."""

import json
import re

import numpy as np
import pytest

from nanoeuler.browser.packing import round_to_bfloat16
from nanoeuler.model.template import alpaca
from tests.chromium import browser, browsers, gpu_browser, open_page, sync_api, watched
from tests.serving.conftest import FORMED
from tests.serving.server import ServerProcess

__all__ = ["browser", "browsers", "gpu_browser", "open_page"]


@pytest.fixture(scope="module")
def server(tmp_path_factory, tuned_folder, endless_folder, formed_folder):
    """The tuned model, one whose replies go on and on, and one that calculates and writes JSON."""
    folder = tmp_path_factory.mktemp("page")
    (folder / "tuned").symlink_to(tuned_folder)
    models = folder / "tuned", endless_folder, formed_folder
    with ServerProcess(folder, *models, "--rows", 4) as server:
        yield server


@pytest.fixture(params=[(1200, "light"), (390, "dark")])
def page(request, browser, server):
    width, scheme = request.param
    viewport = {"width": width, "height": 800}
    with watched(browser, server.url, viewport=viewport, color_scheme=scheme) as page:
        yield set_up(page)
        assert page.evaluate("document.documentElement.scrollWidth") == width


def set_up(page):
    page.wait_for_selector("#models input", state="attached")
    page.evaluate("document.getElementById('settings').open = true")
    page.fill("#temperature", "0")
    return page


def test_a_question_is_answered_and_its_tokens_explain_themselves(page, server):
    welcome = page.locator("#welcome")
    sync_api.expect(welcome).to_contain_text("tuned, endless and formed will answer. Tap a word")
    page.uncheck("[value=formed]")
    page.uncheck("[value=endless]")
    sync_api.expect(welcome).to_contain_text("tuned will answer.")
    page.fill("#text", "Where does the fox live?")
    page.keyboard.press("Enter")
    reply = page.locator(".reply").first
    sync_api.expect(welcome).to_be_hidden()
    sync_api.expect(reply.locator(".text")).to_have_text("In the old mill, café “Zur Mühle”.")
    sync_api.expect(reply.locator(".speed")).to_contain_text("tokens · first after")
    reply.locator(".token").first.click()
    sync_api.expect(page.locator("#alternatives tr")).to_have_count(5)
    sync_api.expect(page.locator("#alternatives .chosen")).to_contain_text("%")
    reply.locator(".text").focus()
    page.keyboard.press("ArrowRight")
    sync_api.expect(reply.locator(".token.shown")).to_have_count(1)
    page.keyboard.press("Escape")
    sync_api.expect(page.locator("#alternatives")).to_be_hidden()
    assert len(page.screenshot()) > 10_000
    page.get_by_role("button", name="Regenerate").click()
    sync_api.expect(reply.locator(".text")).to_have_text("In the old mill, café “Zur Mühle”.")
    page.reload()
    sync_api.expect(page.locator(".reply")).to_have_count(0)
    page.wait_for_selector("#models input", state="attached")
    page.evaluate("document.getElementById('settings').open = true")


def test_models_answer_side_by_side_and_stop(page, server):
    page.uncheck("[value=formed]")
    page.fill("#max_tokens", "20000")
    page.fill("#text", "Count.")
    page.click("#send")
    sync_api.expect(page.locator(".reply")).to_have_count(2)
    sync_api.expect(page.locator(".reply").first).to_contain_text("one two three four five")
    sync_api.expect(page.locator(".reply").nth(1).locator(".speed")).to_contain_text("tokens/s")
    page.click("#stop")
    sync_api.expect(page.locator(".reply").nth(1).locator(".speed")).to_contain_text("stopped")
    sync_api.expect(page.locator("#send")).to_be_visible()
    page.click("#clear")
    sync_api.expect(page.locator(".reply")).to_have_count(0)


def ask(page, text, *models):
    """The element of the last reply's text, once it is whole."""
    for box in page.locator("#models input").all():
        box.set_checked(box.get_attribute("value") in models)
    page.fill("#text", text)
    page.click("#send")
    reply = page.locator(".reply").last
    sync_api.expect(reply.locator("button")).to_be_enabled()
    page.evaluate("new Promise(requestAnimationFrame)")  # it is drawn
    return reply.locator(".text")


def copied(page, text):
    """What is copied where all of an element is selected."""
    text.evaluate("(element) => getSelection().selectAllChildren(element)")
    return page.evaluate("getSelection().toString()")


ALTERNATIVES = "#alternatives"


@pytest.mark.parametrize("mode", ["chat", "text"])
def test_calls_of_the_calculator_show_in_brackets_and_their_results_stay(page, server, mode):
    page.check(f"[name=mode][value={mode}]")
    question = "How many clips?"
    given = alpaca(question) if mode == "text" else ""
    text = ask(page, given or question, "formed")
    sync_api.expect(text).to_have_text(f"{given}48/2 = [48/2=]24 clips.")
    assert copied(page, text).endswith("48/2 = 24 clips.")
    call, plain = text.locator(".call"), text.locator(".plain")
    assert call.all_text_contents() == ["[", "4", "8", "/", "2", "=]"]
    colours = [each.first.evaluate("(e) => getComputedStyle(e).color") for each in (call, plain)]
    assert colours[0] != colours[1]
    call.first.click()
    sync_api.expect(page.locator(ALTERNATIVES)).to_contain_text("In a call of the calculator")
    sync_api.expect(page.locator(f"{ALTERNATIVES} .chosen")).to_contain_text("[ of a call")
    page.keyboard.press("Escape")
    text.focus()
    for _ in range(len("48/2 = [48/2=]2") - 1):  # a token is a character, but of =]
        page.keyboard.press("ArrowRight")
    sync_api.expect(text.locator(".result.shown")).to_have_text("2")
    sync_api.expect(page.locator(ALTERNATIVES)).to_have_text("The calculator's result, not sampled")
    page.keyboard.press("Escape")


def test_a_reply_in_json_is_laid_out_once_it_is_whole(page, server):
    written = FORMED["Describe Bea."]
    text = ask(page, "Describe Bea.", "formed")
    expected = json.dumps(json.loads(written), indent=2, ensure_ascii=False)
    assert text.inner_text() == copied(page, text) == expected
    assert "monospace" in text.evaluate("(element) => getComputedStyle(element).fontFamily")
    text.locator(".token", has_text="7").click()
    sync_api.expect(page.locator(f"{ALTERNATIVES} .chosen")).to_contain_text("7")
    page.keyboard.press("Escape")
    text.focus()
    page.keyboard.press("ArrowLeft")
    sync_api.expect(text.locator(".token.shown")).to_have_text("}")
    sync_api.expect(page.locator(f"{ALTERNATIVES} .chosen")).to_contain_text("}")
    page.keyboard.press("Escape")
    page.fill("#max_tokens", str(len(written) // 2))
    text = ask(page, "Describe Bea.", "formed")
    assert written.startswith(text.inner_text())  # it is cut off: no JSON
    assert "{" in text.inner_text()


STYLES = [
    '{"a":[ ] ,"b" :{"c":[1,-2.5]}}',
    ' [\n{ } , "\\\\", "] \\" , ", null ]\n',
    '["😀", ""]',
    "[[],{}]",
]


def test_json_of_any_style_has_one_layout_and_other_texts_have_none(page):
    layout = "(texts) => texts.map((text) => indented(text)?.join('') ?? null)"
    python_s = [json.dumps(json.loads(text), indent=2, ensure_ascii=False) for text in STYLES]
    assert page.evaluate(layout, STYLES) == python_s
    assert page.evaluate(layout, ["[1.50e+1]", "{}"]) == ["[\n  1.50e+1\n]", "{}"]
    others = ["7", '"[1]"', "null", "[1", "[1] and", "", "[Bea]"]
    assert page.evaluate(layout, others) == [None] * len(others)


def test_a_reply_as_json_can_be_asked_for(page, server):
    page.check("#json")
    page.fill("#max_tokens", "20")
    text = ask(page, "How many clips?", "formed")
    assert text.inner_text().startswith("{")
    page.check("[name=mode][value=text]")
    sync_api.expect(page.locator("#json")).to_be_hidden()


def test_without_the_library_no_json_is_offered(browser, tmp_path, tuned_folder, monkeypatch):
    (tmp_path / "sitecustomize.py").write_text("import sys; sys.modules['llguidance'] = None\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with ServerProcess(tmp_path, tuned_folder) as server, browser.new_page() as page:
        page.goto(server.url)
        page.wait_for_selector("#models input", state="attached")
        page.evaluate("document.getElementById('settings').open = true")
        sync_api.expect(page.locator("#history")).to_be_visible()
        sync_api.expect(page.locator("#json")).to_be_hidden()


def test_weights_in_int8_are_widened(page):
    random = np.random.default_rng(3)
    halves = round_to_bfloat16(random.standard_normal(6).astype(np.float32))
    codes = random.integers(-127, 128, 96).astype(np.int8)  # the last four are none's
    scales = random.random(3).astype(np.float32)
    parts = (halves.view(np.uint32) >> 16).astype(np.uint16), codes, scales
    data = list(b"".join(part.tobytes() for part in parts))
    tensors = [["norm", 2], ["one", 60], ["other", 32], ["bias", 4]]
    described = {"tensors": tensors, "vectors": ["norm", "bias"], "block": 32}
    found = page.evaluate(
        """([data, described]) => Object.entries(fromBlocks(new Uint8Array(data), described))
            .map(([name, numbers]) => [name, [...numbers]])""",
        [data, described],
    )
    numbers = codes * np.repeat(scales, 32)
    expected = {
        "norm": halves[:2],
        "bias": halves[2:],
        "one": numbers[:60],
        "other": numbers[60:92],
    }
    assert {name: values for name, values in found} == {
        name: values.tolist() for name, values in expected.items()
    }


def load_here(page, number):
    """Load the model of that place; the server is out of reach from then on."""
    page.locator("#models button").nth(number).click()
    sync_api.expect(page.locator("#models .here")).to_have_text("runs here")
    page.context.set_offline(True)


def ask_here(page, text):
    page.fill("#text", text)
    page.click("#send")
    reply = page.locator(".reply").last
    sync_api.expect(reply.locator("button").first).to_be_enabled()
    return reply


def test_a_text_that_is_too_long_is_asked_once(browser, server, open_page):
    page = set_up(open_page(browser, server.url))
    page.uncheck("[value=formed]")
    page.uncheck("[value=endless]")
    asked = []
    page.on("request", lambda request: asked.append(request.url))
    ask_here(page, "Count.")
    sync_api.expect(ask_here(page, "word " * 100).locator(".error")).to_contain_text("shorten it")
    assert len(asked) == 2  # no earlier turn is sent that could be left out


def test_it_answers_without_the_server_by_webgpu(gpu_browser, server, open_page):
    page = set_up(open_page(gpu_browser, server.url))
    page.uncheck("[value=formed]")
    page.uncheck("[value=endless]")
    button = page.locator("#models button").first
    assert re.fullmatch(r"Run it here \([\d.]+ MB\)", button.text_content())
    load_here(page, 0)
    sync_api.expect(page.locator("#here")).to_have_text(
        "tuned is in this page. Your browser computes it with WebGPU (google swiftshader)."
    )
    page.check("[name=mode][value=text]")
    page.fill("#max_tokens", "5")
    asked = {"model": "tuned", "prompt": "The fox", "temperature": 0, "max_tokens": 5}
    expected = json.loads(server.post("/v1/completions", asked).data)["choices"][0]["text"]
    reply = ask_here(page, "The fox")
    sync_api.expect(reply.locator(".speed")).to_contain_text("5 tokens · first after")
    assert "".join(reply.locator(".token").all_text_contents()) == expected
    reply.locator(".token").first.click()
    sync_api.expect(page.locator("#alternatives tr")).to_have_count(5)


def test_it_calculates_and_keeps_to_its_limits_in_javascript(browser, server, open_page):
    page = set_up(open_page(browser, server.url))
    page.uncheck("[value=tuned]")
    page.uncheck("[value=endless]")
    load_here(page, 2)
    sync_api.expect(page.locator("#here")).to_contain_text(
        "with JavaScript: it offers no WebGPU here."
    )
    text = ask_here(page, "How many clips?").locator(".text")
    sync_api.expect(text).to_have_text("48/2 = [48/2=]24 clips.")
    text.locator(".result").first.click()
    told = "The calculator's result, not sampled"
    sync_api.expect(page.locator("#alternatives")).to_have_text(told)
    page.check("#history")
    page.fill("#max_tokens", "9")
    said = "How many clips?", "48/2 = 24 clips.", "And now?"
    roles = "user", "assistant", "user"
    told = [{"role": role, "content": text} for role, text in zip(roles, said, strict=True)]
    asked = {"model": "formed", "messages": told, "temperature": 0, "max_tokens": 9}
    answer = json.loads(server.post("/v1/chat/completions", asked).data)["choices"][0]
    sync_api.expect(ask_here(page, "And now?").locator(".text")).to_have_text(
        answer["message"]["content"]
    )
    page.fill("#max_tokens", "3")
    limited = ask_here(page, "How many clips?")
    sync_api.expect(limited.locator(".speed")).to_contain_text("cut off at the limit")
    sync_api.expect(limited.locator(".token")).to_have_count(3)
    sync_api.expect(ask_here(page, "clips " * 300).locator(".error")).to_contain_text(
        "tokens are too many"
    )
    page.check("#json")
    asked = ask_here(page, "Describe Bea.").locator(".error")
    sync_api.expect(asked).to_have_text("a reply of a given form takes the server")
    page.uncheck("#json")
    page.check("[value=tuned]")  # which is on the server
    sync_api.expect(ask_here(page, "And now?").locator(".error")).to_have_count(0)
    sync_api.expect(page.locator(".reply").nth(-2).locator(".error")).to_contain_text("fetch")
