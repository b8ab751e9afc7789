"""From names to functions.

``registry`` holds the builders by name, ``resolve`` checks names and arguments, ``experiment`` is a configuration that
is ready, ``build`` calls the builders.
"""
