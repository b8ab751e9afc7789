"""From the outcome of a sweep to the answer of a question.

``outcome`` has the cells and their quantities, ``margins`` the intervals over the seeds, ``claims`` what a claim, a
question and an answer are; ``questions`` and ``freeloaders`` are the questions, ``comparison`` is what they share.
"""
