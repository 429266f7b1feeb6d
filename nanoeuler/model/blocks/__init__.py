"""The blocks of a model. Each is one forward-Euler step in depth: x ← x + h · f(norm(x))."""
