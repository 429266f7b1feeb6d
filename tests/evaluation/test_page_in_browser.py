"""The report in a real headless Chromium: what its scripts compute and do."""

import csv
import io
import json
import re
from dataclasses import dataclass
from pathlib import Path

import fabricated
import numpy as np
import pytest

import nanoeuler
from nanoeuler.browser.packing import round_to_bfloat16
from nanoeuler.evaluation.formats import NARROW
from nanoeuler.evaluation.report.gather import gather
from nanoeuler.evaluation.report.page import page as report
from nanoeuler.evaluation.report.playable import obstacle, playable
from nanoeuler.model.calculator import calculate
from nanoeuler.model.config import ModelConfig
from nanoeuler.model.files import SavedModel, save_model
from nanoeuler.model.flat import initial_parameters
from nanoeuler.model.spec import parameter_count
from nanoeuler.storage.integrity import seal
from nanoeuler.tokenizer import Tokenizer
from nanoeuler.tokenizer.bpe import learn
from nanoeuler.tokenizer.counting import count_words
from nanoeuler.tokenizer.vocabulary import build
from tests.chromium import browser, browsers, gpu_browser, sync_api
from tests.models import ODD

__all__ = ["browser", "browsers", "gpu_browser"]

expect = sync_api.expect
TEXT = "The old mill by the river isn't there; we'll see that the river 1234 rises – “Zur Mühle”.\n"
VOCABULARY = 300
LLAMA = ODD | {"vocab_size": VOCABULARY, "context": 96}
GPT2 = LLAMA | {"family": "gpt2", "kv_heads": 6, "heads": 6}
YARN = {"type": "yarn", "factor": 4.0, "original_context": 16, "beta_fast": 2.0, "beta_slow": 0.2}
SHAPES = {
    "grouped heads, tied": LLAMA,
    "norms of heads": LLAMA | {"qk_norm": "weighted", "tied": False, "step_size": 1.0},
    "plain norms of heads": LLAMA | {"qk_norm": "rms"},
    "scaled positions": LLAMA | {"rope_scaling": YARN},
    "biases, a window, a layer without rotation": LLAMA
    | {"qkv_bias": True, "windows": [0, 9], "rope_layers": [1, 1, 0]},
    "gpt2": GPT2,
}
CONTRAST = (Path(__file__).parent / "contrast.js").read_text(encoding="utf-8")
READING = {
    "texts": {"books": {"tokens": ["The", " mill", "."], "bits": [5.0, 1.25, 0.5]}},
    "lens": {
        "tokens": ["The", "␣mill"],
        "guesses": [[["a", "b"], ["c", "d"]]] * 9,
        "shares": [[[0.5, 0.2], [0.7, 0.1]]] * 9,
        "attention": [[[[40, 60], [0, 1, 99]], [[40, 60], [7, 30, 63]]]] * 4,
    },
}


@dataclass
class MadeRun:
    """A made-up run with a real model: its page, its folder, and that of the model."""

    page: Path
    run: Path
    model: Path


def make_run(root: Path, fields: dict, stage: str = "pretrain") -> MadeRun:
    config, folder = fabricated.fabricate(root, ("pretrain", "sft"))
    vocabulary = root / "tokenizer.json"
    Tokenizer(build(learn(count_words([TEXT.encode() * 3]), VOCABULARY))).save(vocabulary)
    shape = ModelConfig.from_dict(fields)
    weights = initial_parameters(shape, seed=1)
    varied = np.random.default_rng(2).standard_normal(len(weights)).astype(np.float32)
    weights = round_to_bfloat16(np.where(weights == 0, 0, 4 * weights + 0.05 * varied))
    template = None if stage == "pretrain" else "chat"
    model = folder / stage / "model"
    save_model(model, SavedModel(shape, weights, vocabulary, stage, template))
    run = gather(config, folder)
    for evaluation in run.evaluations.values():
        evaluation["reading"] = READING
    path = root / "report.html"
    path.write_text(report(run), encoding="utf-8")
    return MadeRun(path, folder, model)


@pytest.fixture(scope="module")
def tuned(tmp_path_factory):
    return make_run(tmp_path_factory.mktemp("tuned"), LLAMA, "sft")


@pytest.fixture
def open_page(browser):
    """open_page(path, width, scheme, browser) → a page whose scripts must not fail."""
    problems, pages = [], []

    def open_(path, width=1200, scheme="light", browser=browser):
        url, viewport = f"file://{path}", {"width": width, "height": 800}
        page = browser.new_page(viewport=viewport, color_scheme=scheme)
        pages.append(page)
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("request", lambda asked: asked.url == url or problems.append(asked.url))
        page.on("console", lambda said: problems.append(said.text) if said.type == "error" else 0)
        page.goto(url)
        return page

    yield open_
    for page in pages:
        page.close()
    assert not problems


LOGITS = """async (ids) => {
  const { model } = await inPage.load();
  const found = [];
  for (const id of ids) found.push(Array.from(await model.append(id)));
  return [found, model.computedBy];
}"""


def ids_and_logits(made, count):
    ids = np.random.default_rng(3).integers(VOCABULARY, size=count).tolist()
    expected = nanoeuler.load(made.model, device="reference").logits(ids)
    assert np.ptp(expected, axis=1).min() > 3  # logits that differ, so that agreeing means much
    return ids, expected


@pytest.mark.parametrize("shape", SHAPES)
def test_logits_in_the_page_are_ours(open_page, tmp_path, shape):
    made = make_run(tmp_path, SHAPES[shape])
    ids, expected = ids_and_logits(made, 30)
    found, told = open_page(made.page).evaluate(LOGITS, ids)
    assert told == "Your browser computes it with JavaScript: it offers no WebGPU here."
    assert np.abs(np.array(found) - expected).max() < 1e-3


BIASED = SHAPES["biases, a window, a layer without rotation"]
ALL_KERNELS = {"gpt2": GPT2, "llama": BIASED | {"qk_norm": "weighted", "tied": False}}
"""Shapes that launch every kernel of a page, with all of its arguments."""


@pytest.mark.parametrize("family", ALL_KERNELS)
def test_logits_by_webgpu_are_ours(open_page, gpu_browser, tmp_path, family):
    made = make_run(tmp_path, ALL_KERNELS[family])
    ids, expected = ids_and_logits(made, 12)
    found, told = open_page(made.page, browser=gpu_browser).evaluate(LOGITS, ids)
    assert told == "Your browser computes it with WebGPU (google swiftshader)."
    assert np.abs(np.array(found) - expected).max() < 1e-3


def test_where_webgpu_is_lost_javascript_goes_on(open_page, gpu_browser, tuned):
    """What was traced before, and behind the loss, is that of the model."""
    ids, expected = ids_and_logits(tuned, 8)
    found, points, shares, told = open_page(tuned.page, browser=gpu_browser).evaluate(
        """async (ids) => {
            const { model } = await inPage.load();
            const [trace, found] = [{}, []];
            for (const id of ids.slice(0, 4)) found.push(await model.append(id, trace));
            const pending = model.append(ids[4], {});
            model.ops.device.opened.destroy();
            found.push(await pending, await model.append(ids[5]));
            const [said] = await model.lens([trace.points.at(-1)]);
            found.push(...(await Promise.all([model.append(ids[6]), model.append(ids[7])])), said);
            const shares = trace.attention.map((heads) => heads.map((each) => Array.from(each)));
            const plain = (arrays) => arrays.map((each) => Array.from(each));
            return [plain(found), plain(trace.points), shares, model.computedBy];
        }""",
        ids,
    )
    assert told.startswith("Your browser computes it with JavaScript: WebGPU ended (")
    assert np.abs(np.array(found) - [*expected, expected[3]]).max() < 1e-3
    activations = nanoeuler.load(tuned.model, device="reference").activations(ids[:4])
    assert np.allclose(points[::2], activations.residual[:, -1], atol=1e-4)
    assert np.shape(shares) == (2, 6, 4)
    assert np.allclose(np.sum(shares, axis=2), 1)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ("inPage.description.kernels = null", "the kernels read heads of a multiple of 4 numbers"),
        (
            "Device.prototype.hold = function (values, name) { this.most = 0; return hold.call("
            "this, values, name); }",
            "its WebGPU lets a kernel see 0 MB at once, and .* has 0 MB",
        ),
        (
            "inPage.description.kernels.files.norm.code += '}'",
            r"WebGPU ended \(Error while parsing WGSL.*\)\.",
        ),
        (
            "const { embedding } = inPage.description.kernels.files; embedding.code ="
            " embedding.code.replace('Out(table[row + d])', 'Out(1.01 * f32(table[row + d]) + 1)')",
            r"WebGPU \(.*\) computes something else",
        ),
    ],
    ids=["form", "limit", "driver refuses", "driver errs"],
)
def test_why_it_is_not_webgpu_is_said_in_a_sentence(open_page, gpu_browser, tuned, change, reason):
    told = open_page(tuned.page, browser=gpu_browser).evaluate(
        f"""async () => {{
            const {{ hold }} = Device.prototype;
            {change};
            const {{ model }} = await inPage.load();
            await model.append(0);
            return model.computedBy;
        }}"""
    )
    assert re.fullmatch(f"Your browser computes it with JavaScript: {reason}.?", told), told


def test_the_page_cuts_text_into_the_same_tokens(open_page, tuned):
    texts = [
        TEXT,
        "isn't I'LL we'll  two   spaces\n\n\tand tabs \n",
        "1234½ ٣٤ Ⅻ x² naïve Größe 東京 🙂👍🏽 e\u0301",
        "a\u00a0b\u0085c\u2003d\ufeffe\u200bf\u3000g \u00a0 h",
        "</s> <|user|> 'tis 's",
        "",
    ]
    tokenizer = Tokenizer.load(tuned.model / "tokenizer.json")
    found = open_page(tuned.page).evaluate(
        """async (texts) => {
            const { tokenizer } = await inPage.load();
            return texts.map((text) => {
                const ids = tokenizer.encode(text);
                return [ids, tokenizer.texts(ids).join("")];
            });
        }""",
        texts,
    )
    for text, (ids, decoded) in zip(texts, found, strict=True):
        assert ids == tokenizer.encode(text).tolist(), text
        assert decoded == text


@pytest.mark.parametrize(("width", "scheme"), [(1200, "light"), (390, "dark")])
def test_the_model_answers_and_shows_what_it_thought(open_page, tuned, width, scheme):
    page = open_page(tuned.page, width, scheme)
    expected = nanoeuler.load(tuned.model, device="reference").generate(
        "See the mill", temperature=0, max_tokens=12
    )
    page.fill("#play [name=most]", "12")
    page.fill("#play [name=prompt]", "See the mill")
    page.keyboard.press("Enter")
    expect(page.locator("#play output")).to_contain_text("tokens/s")
    answered = page.locator("#play .strip .answer").all_text_contents()
    assert "".join(answered) == expected
    assert "".join(page.locator("#play .strip .said").all_text_contents()) == "See the mill"

    panel = page.locator("#play .panel")
    expect(panel.locator("tr")).to_have_count(8)  # what else was likely
    expect(page.locator("#play .computed")).to_contain_text("with JavaScript: it offers no WebGPU")
    before = page.locator("#play .strip .token").count()
    panel.locator("button").nth(1).click()  # another token: the model goes on from there
    expect(page.locator("#play output")).to_contain_text("tokens/s")
    expect(panel.locator("button")).not_to_have_count(0)
    assert page.locator("#play .strip .token").count() <= before + 12
    page.check("#play [value=attention]")
    page.locator("#play .strip").focus()
    page.keyboard.press("ArrowLeft")
    panel.locator("[data-key=head]").select_option("3")
    expect(panel).to_contain_text("the head looks at")
    page.check("#play [value=depth]")
    expect(panel.locator("tr")).to_have_count(2 * 2 + 1)
    expect(panel).to_contain_text("After 4 of 4 Euler steps")
    panel.locator("[type=range]").press("ArrowLeft")
    expect(panel).to_contain_text("After 3 of 4 Euler steps")
    page.get_by_role("button", name="Tell me about the glass market").click()
    expect(page.locator("#play .strip")).to_contain_text("Tell me about the glass market")
    assert page.evaluate("document.documentElement.scrollWidth") == width


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_no_text_is_hard_to_read(open_page, tuned, scheme):
    """4.5 is what WCAG 2 asks of text, here also of large letters and of chart labels."""
    page = open_page(tuned.page, scheme=scheme)
    page.fill("#play [name=most]", "12")
    page.get_by_role("button", name="Tell me about the glass market").click()
    expect(page.locator("#play output")).to_contain_text("tokens/s")
    for view in ("bits", "attention", "depth"):
        page.check(f"#play [value={view}]")
        assert page.evaluate(CONTRAST, 4.5) == []


def test_it_prints_on_some_ten_pages(open_page, tuned, tmp_path):
    page = open_page(tuned.page)
    printed = page.pdf(format="A4", prefer_css_page_size=True)
    assert len(re.findall(rb"/Type\s*/Page\b(?!s)", printed)) <= 12
    page.emulate_media(media="print")
    assert not page.locator("nav").is_visible()
    assert page.evaluate(CONTRAST, 4.5) == []


def test_more_than_the_model_reads_at_once_is_refused_and_ends_its_answer(open_page, tuned):
    page, context = open_page(tuned.page), LLAMA["context"]
    output = page.locator("#play output")
    page.fill("#play [name=most]", "2000")
    page.fill("#play [name=prompt]", "mill" * context)
    page.click("#play .main")
    expect(output).to_contain_text(f"tokens are too many: it reads {context} at once")
    fitting = page.evaluate(
        """async (most) => {
            const { tokenizer } = await inPage.load();
            const [before, behind] = inPage.description.prompt;
            const size = (words) => tokenizer.encode(before + "mill".repeat(words) + behind).length;
            return Array.from({ length: most }, (_, i) => i).findLast((i) => size(i) < most - 2);
        }""",
        context,
    )
    page.fill("#play [name=prompt]", "mill" * fitting)
    page.click("#play .main")
    expect(output).to_contain_text(f"all of the {context} tokens that it reads at once are taken")
    assert page.locator("#play .strip .token").count() == context


def test_attention_and_the_logit_lens_are_those_of_the_model(open_page, tuned):
    """Each head's shares sum to one, and the lens behind the last step is the model itself."""
    page = open_page(tuned.page)
    model = nanoeuler.load(tuned.model, device="reference")
    ids = [0, *model.tokenizer.encode("the river").tolist()]
    points, shares = page.evaluate(
        """async (ids) => {
            const { model } = await inPage.load();
            const trace = {};
            for (const id of ids) await model.append(id, trace);
            const shares = trace.attention.map((heads) => heads.map((each) => Array.from(each)));
            return [trace.points.map((x) => Array.from(x)), shares];
        }""",
        ids,
    )
    activations = model.activations(ids)
    assert np.allclose(points[::2], activations.residual[:, -1], atol=1e-4)
    halfway = activations.residual[:-1] + activations.attention
    assert np.allclose(points[1::2], halfway[:, -1], atol=1e-4)
    assert np.shape(shares) == (2, 6, len(ids))
    assert np.allclose(np.sum(shares, axis=2), 1)


def test_charts_tell_values_zoom_and_save_their_numbers(open_page, tuned):
    page = open_page(tuned.page, 390, "dark")
    chart = page.locator("figure.chart", has=page.get_by_text("Training loss", exact=True)).first
    drawing, tip = chart.locator("svg"), chart.locator(".tip")
    drawing.hover()
    expect(tip).to_contain_text("training")
    drawing.focus()
    page.keyboard.press("Home")
    with page.expect_download() as download:
        chart.get_by_role("button", name="CSV").click()
    header, first, *others = csv.reader(io.StringIO(Path(download.value.path()).read_text()))
    lines = fabricated.pretraining_lines()
    assert download.value.suggested_filename == "made-up-training-loss.csv"
    assert header == ["tokens", "training"]
    assert len(others) == 49
    assert float(first[0]) == lines[1]["tokens"]
    assert float(first[1]) == pytest.approx(lines[1]["loss"], rel=1e-5)

    whole = drawing.inner_html()
    drawing.focus()
    page.keyboard.press("l")
    assert chart.get_by_role("button", name="log").get_attribute("aria-pressed") == "true"
    page.keyboard.press("l")
    page.keyboard.press("+")
    expect(chart.get_by_role("button", name="whole")).to_be_visible()
    assert drawing.inner_html() != whole
    page.keyboard.press("0")
    expect(chart.get_by_role("button", name="whole")).to_be_hidden()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    expect(tip).to_contain_text("tokens 81,920")
    expect(tip).to_contain_text(f"{lines[2]['loss']:.3f}"[:4])
    box = drawing.bounding_box()
    page.mouse.move(box["x"] + 0.3 * box["width"], box["y"] + 40)
    page.mouse.down()
    page.mouse.move(box["x"] + 0.6 * box["width"], box["y"] + 60)
    page.mouse.up()
    expect(chart.get_by_role("button", name="whole")).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth") == 390


def test_tables_sort_and_samples_are_chosen_by_stage(open_page, tuned):
    page = open_page(tuned.page)
    table = page.locator("section", has=page.get_by_role("heading", name="Data")).locator("table")
    rows = table.locator("tbody th")
    given = rows.all_text_contents()
    by_bytes = table.get_by_role("button", name="bytes", exact=True)
    by_bytes.click()
    assert rows.all_text_contents()[:4] == [  # 78.1 kB, 81.4 kB, 1.73 MB, 2.31 MB
        "fineweb, held out",
        "gutenberg, held out",
        "fineweb",
        "gutenberg",
    ]
    by_bytes.click()
    assert rows.all_text_contents()[0] == "gutenberg"
    by_bytes.click()
    assert rows.all_text_contents() == given
    samples = page.locator("section", has=page.get_by_role("heading", name="Samples"))
    expect(samples).to_contain_text("It is said that the river")
    samples.get_by_label("pretrained").uncheck()
    expect(samples.get_by_text("It is said that the river").first).to_be_hidden()
    expect(samples.get_by_text("rises in the Grey Hills").first).to_be_visible()


def test_a_slider_walks_through_the_layers_and_tokens_tell_their_bits(open_page, tuned):
    page = open_page(tuned.page, 390)
    figure = page.locator("figure.plane")
    expect(figure.locator("output")).to_contain_text("8 of 8 steps (layer 4, MLP): norm 2.144")
    figure.locator("[type=range]").press("ArrowLeft")
    expect(figure.locator("output")).to_contain_text("7 of 8 steps (layer 4, attention)")
    expect(figure.locator("output")).to_contain_text("turned by 20° in this step")
    expect(page.locator("figure.lens .chosen th")).to_have_text("layer 4, attention")
    heads = page.locator("figure.attention")
    expect(heads.locator("tbody tr").nth(1)).to_have_text("␣mill199")
    heads.get_by_label("head").select_option("2")
    expect(heads.locator("tbody tr").nth(1)).to_have_text("␣mill73063")
    reading = page.locator("#reading")
    reading.locator("p.cost").first.focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    expect(reading.locator(".tip")).to_have_text("␣millpretrained 1.25 bitsfine-tuned 1.25 bits")
    expect(reading.locator("i.shown")).to_have_count(2)
    page.keyboard.press("Escape")
    expect(reading.locator(".tip")).to_be_hidden()
    reading.locator("i", has_text="The").last.hover()
    expect(reading.locator(".tip")).to_contain_text("5.0 bits")
    assert page.evaluate("document.documentElement.scrollWidth") == 390


def test_the_page_of_a_run_that_trains_reads_itself_again(open_page, tmp_path):
    run = gather(*fabricated.fabricate(tmp_path, ("pretrain",)))
    path = tmp_path / "watch.html"
    path.write_text(report(run, 1), encoding="utf-8")
    page = open_page(path)
    run.name = "made-up later"
    path.write_text(report(run, 1), encoding="utf-8")
    expect(page.locator("h1")).to_have_text("made-up later")


def test_only_a_small_finished_model_lies_in_the_page(tmp_path):
    made = make_run(tmp_path, LLAMA)
    packed = playable(gather({"run": "made-up"}, made.run))
    further = 2 * VOCABULARY * LLAMA["dim"]  # heads 1 and 2, which do not write
    shape = ModelConfig.from_dict(LLAMA)
    assert (packed.stage, packed.parameters) == ("pretrain", parameter_count(shape) - further)
    too_large = obstacle(ModelConfig.from_dict({"preset": "base"}))
    assert too_large == f"it has 107{NARROW}M parameters, and a page at most 5.25{NARROW}M"
    run = gather({"run": "made-up"}, made.run)
    assert 'id="weights"' in report(run)
    assert 'id="weights"' not in report(run, with_model=False)
    config = json.loads((made.model / "config.json").read_text())
    config["nanoeuler"]["model"]["activation"] = "relu2"
    config["nanoeuler"] = seal(config["nanoeuler"])
    (made.model / "config.json").write_text(json.dumps(config))
    page, told = report(run), "The model is not in this page: the page does not compute model.a"
    assert told in page
    assert 'id="weights"' not in page
    assert told not in report(run, with_model=False)
    (made.model / "model.safetensors").unlink()
    assert playable(gather({"run": "made-up"}, made.run)) is None


EXPRESSIONS = [
    *("48/2", "2 × 3 − 12 ÷ 4", "0.2 x 50", "1,250*2", "1,00", "-3*-.5", "1/3", "-2/3", "1/7000"),
    *("20000000/3", "1/8", "1/1048576", "1/2097152", "1/0", "1/0/", "1/(2-2)", "(1", "", "2(3)"),
    *("9" * 20, "9" * 21, "9" * 201, "٣+1", "999999.5/3*3", "7/6/5/4", "(.1+.2)/3", "0/7", "-0"),
    *("+10", "3-+2", "3*+6", "++1", "-+-+(2+1)", "+", "1-+", "(+)", "+*2", "+1/+3"),
]


def test_the_page_calculates_as_we_do(open_page, tuned):
    found = open_page(tuned.page).evaluate("(texts) => texts.map(calculate)", EXPRESSIONS)
    assert found == list(map(calculate, EXPRESSIONS))


def test_the_page_puts_results_in_behind_calls(open_page, tuned):
    tokenizer = Tokenizer.load(tuned.model / "tokenizer.json")
    call, end = tokenizer.call_ids
    begun = [call, *tokenizer.encode("10*10").tolist(), end]
    result = tokenizer.encode("100").tolist()
    asked = [begun, [*begun, result[0]], [*begun, *result], begun[1:], begun[:-1]]
    found = open_page(tuned.page).evaluate(
        """async ([asked, calls]) => {
            const { tokenizer } = await inPage.load();
            tokenizer.calls = calls;
            return asked.map((ids) => given(ids, tokenizer));
        }""",
        [asked, [call, end]],
    )
    assert found == [result, result[1:], [], [], []]
