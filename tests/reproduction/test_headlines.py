"""The page of the headline claims says what the record of all claims says."""

import json
import re

from reproduction.judging.claims import Claim
from reproduction.judging.margins import Interval
from reproduction.publishing import headlines, published
from reproduction.publishing.verdicts import Verdict


def test_the_page_agrees_with_the_record():
    page = (published.FOLDER / headlines.MARKDOWN).read_text()
    record = sorted(json.loads((published.FOLDER / published.JSON).read_text()), key=lambda row: not row["papers"])
    sentences = re.findall(r"^\| .* \| (That .*\.) \|$", page, re.MULTILINE)
    assert len(sentences) == len(headlines.HEADLINES)
    verbs = "|".join(headlines._VERBS.values())
    for headline, sentence in zip(headlines.HEADLINES, sentences, strict=True):
        told = re.findall(rf"\b({verbs}) (.*?)(?= (?:{verbs}) |\.$)", sentence.removeprefix(f"That {headline.that}"))
        rows = [row for row in record if row["paper"] == headline.paper and row["text"].startswith(headline.text)]
        for place, name in headline.places.items():
            row = next(row for row in rows if row["place"] == place)
            verbs_of = [verb for verb, names in told if name in names]
            assert verbs_of == [headlines._VERBS[row["verdict"]]], (sentence, name)
            assert (f"{name}*" in sentence) == (row["corrected"] != row["verdict"])
            assert not row["needs"] or row["needs"] in sentence


def verdict(place, word, corrected="", **about):
    part = Interval(1.0, 0.5, 1.5, "points", 3, at_least=0.0)
    claim = Claim("A paper", place, "DRAG is first in", "")
    return Verdict(claim, word, "1 %", (part,), "default", "x", corrected=corrected, **({"scale": "medium"} | about))


HEADLINE = headlines.Headline("A paper", "DRAG is first", "DRAG is first", {"Fig. 1": "on A", "Fig. 2": "on B"})


def test_a_sentence_groups_the_panels_by_their_verdict():
    both = [verdict("Fig. 1", "holds", "holds"), verdict("Fig. 2", "holds", "undecided")]
    assert headlines.sentence(HEADLINE, headlines.found(HEADLINE, both)) == "That DRAG is first holds on A and on B*."
    both = [verdict("Fig. 1", "not measured"), verdict("Fig. 2", "does not hold")]
    said = "That DRAG is first does not hold on B and was not measured on A."
    assert headlines.sentence(HEADLINE, headlines.found(HEADLINE, both)) == said


def test_the_paper_s_own_setting_speaks_first():
    scaled, own = verdict("Fig. 1", "holds"), verdict("Fig. 1", "does not hold", scale="full")
    assert headlines.found(HEADLINE, [scaled, own]) == {"on A": own}
