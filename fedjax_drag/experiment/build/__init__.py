"""From a file to an experiment that is ready, and from names to functions.

``experiment`` reads, merges and checks a configuration; ``resolve`` checks names and arguments against the builders in
``registry``; ``build`` calls them.
"""
