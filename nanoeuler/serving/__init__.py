"""A model as a service: requests that share a running batch, OpenAI's API, and a page.

`batch` decodes, `engine` is the thread that does so, `app` speaks HTTP. What a client asks for is
in `requests`, what it gets in `answers`.
"""
