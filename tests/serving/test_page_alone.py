"""A model that the server's page has loaded: it answers there, also where the server is gone."""

import json
import re

import pytest

from tests.chromium import browser, browsers, gpu_browser, sync_api
from tests.serving.server import ServerProcess

__all__ = ["browser", "browsers", "gpu_browser"]

expect = sync_api.expect


@pytest.fixture(scope="module")
def server(tmp_path_factory, tuned_folder, formed_folder):
    folder = tmp_path_factory.mktemp("page")
    (folder / "tuned").symlink_to(tuned_folder)
    with ServerProcess(folder, folder / "tuned", formed_folder) as server:
        yield server


def opened(browser, server, problems):
    page = browser.new_page()
    page.set_default_timeout(60_000)
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.goto(server.url)
    page.wait_for_selector("#models input", state="attached")
    page.evaluate("document.getElementById('settings').open = true")
    page.fill("#temperature", "0")
    return page


def load(page, number):
    """Load the model of that place; the server is out of reach from then on."""
    page.locator("#models button").nth(number).click()
    expect(page.locator("#models .here")).to_have_text("runs here")
    page.context.set_offline(True)


def ask(page, text):
    page.fill("#text", text)
    page.click("#send")
    reply = page.locator(".reply").last
    expect(reply.locator("button").first).to_be_enabled()
    return reply


def test_it_answers_without_the_server_by_webgpu(gpu_browser, server):
    problems = []
    page = opened(gpu_browser, server, problems)
    page.uncheck("[value=formed]")
    button = page.locator("#models button").first
    assert re.fullmatch(r"Run it here \([\d.]+ MB\)", button.text_content())
    load(page, 0)
    expect(page.locator("#here")).to_have_text(
        "tuned is in this page. Your browser computes it with WebGPU (google swiftshader)."
    )
    page.check("[name=mode][value=text]")
    page.fill("#max_tokens", "5")
    asked = {"model": "tuned", "prompt": "The fox", "temperature": 0, "max_tokens": 5}
    expected = json.loads(server.post("/v1/completions", asked).data)["choices"][0]["text"]
    reply = ask(page, "The fox")
    expect(reply.locator(".speed")).to_contain_text("5 tokens · first after")
    assert "".join(reply.locator(".token").all_text_contents()) == expected
    reply.locator(".token").first.click()
    expect(page.locator("#alternatives tr")).to_have_count(5)
    page.close()
    assert not problems


def test_it_calculates_and_keeps_to_its_limits_in_javascript(browser, server):
    problems = []
    page = opened(browser, server, problems)
    page.uncheck("[value=tuned]")
    load(page, 1)
    expect(page.locator("#here")).to_contain_text("with JavaScript: it offers no WebGPU here.")
    text = ask(page, "How many clips?").locator(".text")
    expect(text).to_have_text("48/2 = [48/2=]24 clips.")
    text.locator(".result").first.click()
    told = "The calculator's result, not sampled"
    expect(page.locator("#alternatives")).to_have_text(told)
    page.check("#history")
    page.fill("#max_tokens", "9")
    said = "How many clips?", "48/2 = 24 clips.", "And now?"
    roles = "user", "assistant", "user"
    told = [{"role": role, "content": text} for role, text in zip(roles, said, strict=True)]
    asked = {"model": "formed", "messages": told, "temperature": 0, "max_tokens": 9}
    answer = json.loads(server.post("/v1/chat/completions", asked).data)["choices"][0]
    expect(ask(page, "And now?").locator(".text")).to_have_text(answer["message"]["content"])
    page.fill("#max_tokens", "3")
    limited = ask(page, "How many clips?")
    expect(limited.locator(".speed")).to_contain_text("cut off at the limit")
    expect(limited.locator(".token")).to_have_count(3)
    expect(ask(page, "clips " * 300).locator(".error")).to_contain_text("tokens are too many")
    page.check("#json")
    asked = ask(page, "Describe Bea.").locator(".error")
    expect(asked).to_have_text("a reply of a given form takes the server")
    page.uncheck("#json")
    page.check("[value=tuned]")  # which is on the server
    expect(ask(page, "And now?").locator(".error")).to_have_count(0)
    expect(page.locator(".reply").nth(-2).locator(".error")).to_contain_text("fetch")
    page.close()
    assert not problems
