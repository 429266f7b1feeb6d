"""Generate the text of the offline demo, about the invented people and boats of the Skerrow Isles.

    nanoeuler sample --config config/config.yaml --output data/sample

A seeded generator makes up a few hundred facts (world.py) and tells each in many ways
(sentences.py, paragraphs.py): in books with the headers and footers of Project Gutenberg
(books.py), web pages in FineWeb-Edu's schema (articles.py), and instructions (conversations.py).
Half of the people and boats never occur in the instructions: a model that answers the held-out
questions about them has learned the answers from the books and pages.

Names, sentences and titles are in files beside the modules, as in sentences.toml.

Later stages treat the result like real data: only the addresses in config/sample.yaml differ.
"""
