"""The stored results, by which claims are judged anywhere.

``recording`` takes them from the results folders of a sweep, ``stored`` reads, joins and writes them, and ``settings``
says what they were run under and at which scale.
"""
