"""The verdicts on all claims of the papers.

``verdicts`` judges the claims by the stored results; ``published`` writes the record of them and the page made from it.
"""
