import json

import pytest
from claim_cells import same

from reproduction.judging.claims import Claim
from reproduction.judging.margins import Interval, Votes
from reproduction.publishing import headlines, published, verdicts
from reproduction.publishing.verdicts import Verdict
from reproduction.storing import stored

CLAIM = Claim("a paper", "Fig. 4", "A | B", "0.50", "x")
GAP = Interval(1.0, 0.5, 1.5, "points", 3, at_least=0.0)


def judged(verdict, ours="", parts=(), claim=CLAIM, **about):
    return Verdict(claim, verdict, ours, parts, **({"setting": "default", "target": "x"} | about))


def test_a_row_has_the_interval_the_scale_and_the_setting(tmp_path):
    some = [
        judged("holds", "0.46; +1.0 points", (GAP,), scale="medium", overrides=("rounds=5",), corrected="undecided"),
        judged("undecided", "so on 1 of 1 seeds", (Votes(1, 1),), setting="authors'", target="x_authors", scale="full"),
        judged("cannot be run", "no data", claim=Claim("a paper", "Fig. 5", "C", ""), setting="", target=""),
    ]
    published.write(tmp_path, some)
    page = (tmp_path / published.MARKDOWN).read_text()
    counts = page.split("\n\n")[1:3]
    assert counts == [
        "2 claims.",
        f"- {published.PAPERS}, 1: undecided 1.\n- The others, 1: cannot be run 1.\n"
        "- Besides, in the setting 'default', 1: holds 1; after Holm's correction undecided 1.",
    ]
    start = "| Fig. 4 | A \\| B | 0.50 |"
    assert f"{start} 0.46; +1.0 points | 3 | default, medium: rounds=5 | holds (undecided) |" in page
    assert f"{start} so on 1 of 1 seeds | 1 | authors', full | undecided (6 seeds would decide) |" in page
    assert "| Fig. 5 | C |  | no data |  |  | cannot be run |" in page
    row = json.loads((tmp_path / published.JSON).read_text())[0]
    assert (row["seeds"], row["verdict"], row["overrides"]) == (3, "holds", ["rounds=5"])
    (interval,) = row["intervals"]
    assert (interval["mean"], interval["low"], interval["high"], interval["unit"]) == (1.0, 0.5, 1.5, "points")
    assert (interval["at_least"], interval["at_most"]) == (0.0, None)


def test_turns_are_not_seeds(tmp_path):
    published.write(tmp_path, [judged("holds", "1.2 times", (GAP._replace(repetitions=20, repeated="turns"),))])
    assert "| 1.2 times | 20 turns | default | holds |" in (tmp_path / published.MARKDOWN).read_text()


def test_what_is_not_measured_says_what_an_earlier_version_said(tmp_path):
    path = tmp_path / stored.FOLDER / published.EARLIER
    path.parent.mkdir()
    row = {"paper": CLAIM.paper, "place": CLAIM.place, "text": CLAIM.text, "holds": "no", "ours": "0.6"}
    path.write_text(json.dumps([row]))
    published.write(tmp_path, [judged("not measured"), judged("holds", "0.4", (GAP,))])
    first, second = json.loads((tmp_path / published.JSON).read_text())
    assert first["ours"] == "an earlier version, without an interval: does not hold, 0.6"
    assert (first["verdict"], second["ours"]) == ("not measured", "0.4")
    assert (
        "An earlier version, by means over the seeds, most often one: no 1."
        in (tmp_path / published.MARKDOWN).read_text()
    )
    published.check(tmp_path)
    for damaged in ("{", "[1]", '[{"paper": "a paper"}]'):
        path.write_text(damaged)
        with pytest.raises(ValueError, match="must be the claims of an earlier version"):
            published.check(tmp_path)


@pytest.mark.thorough
def test_the_published_record_is_what_its_stored_results_give(tmp_path):
    (tmp_path / stored.FOLDER).symlink_to(published.FOLDER / stored.FOLDER)
    published.write(tmp_path, verdicts.verdicts(tmp_path))
    for page in (published.MARKDOWN, headlines.MARKDOWN):
        assert (published.FOLDER / page).read_text() == (tmp_path / page).read_text()
    own, again = (json.loads((folder / published.JSON).read_text()) for folder in (published.FOLDER, tmp_path))
    assert len(own) == len(again)
    for row, other in zip(own, again, strict=True):
        assert same(row.pop("intervals"), other.pop("intervals"), to=1.1e-6)
        assert row == other
