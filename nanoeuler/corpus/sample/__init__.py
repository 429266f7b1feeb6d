"""The invented world of the offline demo: the Skerrow Isles, their people and boats, and everything written about them.

    nanoeuler sample --config config/config.yaml --output data/sample

A seeded generator makes up a few hundred facts (world.py), says each in many ways (telling.py, scenes.py), and prints them as books in the wrappings
of Project Gutenberg (books.py, gutenberg_wrapping.py), as web pages in FineWeb-Edu's schema (articles.py), and as instructions (conversations.py).
Half of the people and boats never occur in the instructions: whoever answers the held-out questions about them has learned that from the text.
Later stages treat the result like the real thing: only the addresses in config/sample.yaml differ.
"""
