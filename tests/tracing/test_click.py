"""The server's page says where a reply comes from, in a real headless Chromium."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from nanoeuler.model.files import load_model, save_model
from tests.chromium import browser, browsers, sync_api
from tests.inference.conftest import tune
from tests.serving.server import ServerProcess
from tests.tracing.conftest import SECRET

__all__ = ["browser", "browsers"]

BEGINNING, CONTINUED = "Listen: ", f"😀 {SECRET}, é."


@pytest.fixture(scope="module")
def server(run, tmp_path_factory):
    """A model of the run that quotes its training text, and the same one without its run."""
    folder = tmp_path_factory.mktemp("quoting")
    given = Path(run.paths.tokenizer), {BEGINNING: CONTINUED}
    alone = tune(folder / "alone", *given, steps=120, template=str)
    shutil.copytree(run.paths.results, folder / "tiny")
    quoting = folder / "tiny" / "sft" / "model"
    learned = load_model(quoting)
    save_model(quoting, replace(load_model(alone), info=learned.info, template=learned.template))
    with ServerProcess(folder, quoting, alone) as server:
        yield server


@pytest.mark.parametrize(("width", "scheme"), [(1200, "light"), (400, "dark")])
def test_a_click_marks_the_words_that_were_read_and_says_where_and_when(
    browser, server, width, scheme
):
    viewport = {"width": width, "height": 800}
    with browser.new_page(viewport=viewport, color_scheme=scheme) as page:
        problems = []
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.goto(server.url)
        page.wait_for_selector("#models input", state="attached")
        page.evaluate("document.getElementById('settings').open = true")
        page.fill("#temperature", "0")
        page.check("[name=mode][value=text]")
        page.fill("#text", BEGINNING)
        page.keyboard.press("Enter")
        quoting, alone = (page.locator(".reply").nth(i) for i in range(2))
        where = quoting.get_by_role("button", name="Where does this come from?")
        where.click()
        origins = quoting.locator(".origins")
        sync_api.expect(origins).to_contain_text("stand word for word in what tiny-sft learned")
        passage = origins.locator("ol > li").first
        sync_api.expect(passage.locator("q")).to_have_text(SECRET)
        sync_api.expect(passage).to_contain_text("1\xa0×\xa0in training text")
        sync_api.expect(passage).to_contain_text("11.txt · own text")
        sync_api.expect(passage.locator(".read")).to_contain_text("read by pretrain at step")
        words = "(name) => [...CSS.highlights.get(name)].map(String)"
        assert page.evaluate(words, "copied") == [SECRET]
        passage.hover()
        assert page.evaluate(words, "pointed") == [SECRET]
        assert page.evaluate("document.documentElement.scrollWidth") == width
        assert alone.get_by_role("button").count() == 1  # to regenerate
        page.get_by_role("button", name="Hide where it comes from").click()
        sync_api.expect(origins).to_be_hidden()
        assert page.evaluate(words, "copied") == []
        where.click()
        sync_api.expect(origins).to_be_visible()
        again = quoting.get_by_role("button", name="Regenerate")
        again.click()
        sync_api.expect(origins).to_be_hidden()
        sync_api.expect(where).to_be_visible()
        asked = []
        page.route("**/trace", lambda route: asked.append(route))
        quoting.locator(".where").click()
        again.click()  # while it is traced
        sync_api.expect(again).to_be_enabled()
        asked[0].continue_()
        sync_api.expect(where).to_be_enabled()
        assert page.evaluate(words, "copied") == []
        assert not problems
