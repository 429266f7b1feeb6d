"""The server's page in a real headless Chromium."""

import pytest

from tests.chromium import browser, sync_api
from tests.serving.server import ServerProcess

__all__ = ["browser"]


@pytest.fixture(scope="module")
def server(tmp_path_factory, tuned_folder, endless_folder):
    """The tuned model, and one whose replies go on and on."""
    folder = tmp_path_factory.mktemp("page")
    (folder / "tuned").symlink_to(tuned_folder)
    with ServerProcess(folder, folder / "tuned", endless_folder, "--rows", 4) as server:
        yield server


@pytest.fixture(params=[(1200, "light"), (390, "dark")])
def page(request, browser, server):
    width, scheme = request.param
    viewport = {"width": width, "height": 800}
    with browser.new_page(viewport=viewport, color_scheme=scheme) as page:
        page.set_default_timeout(60_000)
        problems = []
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.goto(server.url)
        page.wait_for_selector("#models input", state="attached")
        page.evaluate("document.getElementById('settings').open = true")
        page.fill("#temperature", "0")
        yield page
        assert not problems
        assert page.evaluate("document.documentElement.scrollWidth") == width


def test_a_question_is_answered_and_its_tokens_explain_themselves(page, server):
    welcome = page.locator("#welcome")
    sync_api.expect(welcome).to_contain_text("tuned and endless will answer. Tap a word")
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
