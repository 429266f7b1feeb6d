"""A model as a service: requests that share a running batch, OpenAI's API, and a page.

`app` speaks HTTP in one process, `engine` decodes in another one with `batch`, and `channel` is
between them. What a client asks for is in `requests`, what it gets in `answers`.
"""
