"""Links between the pages, and from them to files, lead somewhere."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ("config", "docs", "models")
PAGES = sorted(
    [*ROOT.glob("*.md"), *(page for folder in FOLDERS for page in (ROOT / folder).rglob("*.md"))]
)
LINK = re.compile(r"\]\(\s*(?!\w+:)([^)\s#]*)(?:#([^)\s]+))?\)")


def anchors(page: Path) -> list[str]:
    """Those of its headings, as GitHub makes them."""
    headings = re.findall(r"(?m)^#+ (.+)$", page.read_text(encoding="utf-8"))
    texts = [re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading) for heading in headings]
    return [re.sub(r"[^\w\- ]", "", text).strip().lower().replace(" ", "-") for text in texts]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_files_and_headings(page):
    lost = []
    for name, anchor in LINK.findall(page.read_text(encoding="utf-8")):
        target = page.parent / name if name else page
        is_page = anchor and target.suffix == ".md"
        if not target.exists() or (is_page and anchor not in anchors(target)):
            lost.append(f"{name}#{anchor}")
    assert lost == []
