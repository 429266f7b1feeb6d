"""The characters and blanks of pages, by which they are kept or dropped."""

from hypothesis import given
from hypothesis import strategies as st

from nanoeuler.corpus.batches import Batch
from nanoeuler.corpus.parquet_pages import measure


@given(
    st.lists(
        st.text(
            st.one_of(st.sampled_from(" \t\n\r"), st.characters(exclude_categories=["Cs"])),
            max_size=12,
        ),
        max_size=6,
    )
)
def test_characters_and_blank_pages_are_those_of_python(texts):
    characters, blank = measure(Batch.of([text.encode() for text in texts]))
    assert characters == [len(text) for text in texts]
    assert blank == [not text.strip(" \t\n\r") for text in texts]
