"""Jobs of a sweep that die: the others go on, what is finished stays, what is left is submitted again."""

import types
from typing import Any

import pytest
from submitit.core.utils import FailedJobError  # here: its first import sets up logging, which capsys does not survive

from fedjax_drag.experiment.sweep import cluster as jobs
from fedjax_drag.experiment.sweep.outcome_table import Cell

EVALUATIONS = 2  # of a cell


class Cluster:
    """Jobs that run at once and write evaluations; ``deaths`` says after how many of them a job dies, by its number.

    A cell in ``deadly`` kills its job before its first evaluation.
    """

    def __init__(self, deaths=None, deadly="", raising="", preempted=()):
        self.deaths, self.deadly, self.raising, self.preempted = deaths or {}, deadly, raising, preempted
        self.written, self.jobs, self.bar, self.at_once = {}, [], 0, 0

    def share(self, points):
        return types.SimpleNamespace(
            points=points,
            evaluated=lambda: sum(self.written.get(point.folder, 0) for point in points),
            left=lambda: [point for point in points if self.written.get(point.folder, 0) < EVALUATIONS],
        )

    def submit(self, shares):
        new = [Job(self, share, len(self.jobs) + i) for i, share in enumerate(shares)]
        self.jobs += new
        self.at_once = max(self.at_once, sum(not job.settled for job in self.jobs))
        return new

    def advance(self, number):
        self.bar += number

    def run(self, *shares, most=9):
        queue = jobs.JobQueue(self.submit, self.share, most, self.advance)
        work: list[Any] = [self.share([point(name) for name in names]) for names in shares]
        return queue.run(work)

    @property
    def submitted(self):
        return ["".join(point.folder for point in job.share.points) for job in self.jobs]


class Job:
    paths = types.SimpleNamespace(folder="logs")

    def __init__(self, cluster, share, number):
        self.cluster, self.share, self.job_id = cluster, share, str(number)
        self.left, self.settled, self.cancelled = cluster.deaths.get(number, 99), False, False
        self.state: Any = "PREEMPTED" if number in cluster.preempted else "OUT_OF_MEMORY"

    def done(self):
        return self.state not in ("PREEMPTED", "PENDING")

    def cancel(self):
        self.settled = self.cancelled = True

    def result(self):
        self.settled = True
        for at in self.share.points:
            while self.cluster.written.get(at.folder, 0) < EVALUATIONS:
                if at.folder in self.cluster.raising:
                    raise FailedJobError("trace\nImportError: no such module\n")
                if not self.left or at.folder in self.cluster.deadly:
                    raise RuntimeError("log\nno output\n")
                self.cluster.written[at.folder] = self.cluster.written.get(at.folder, 0) + 1
                self.left -= 1
        return [Cell(at.values, "done", "", {}) for at in self.share.points]


def point(name):
    return types.SimpleNamespace(folder=name, values={"name": name})


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch):
    monkeypatch.setattr(jobs, "POLL_SECONDS", 0.0)


RAISED = "job 1: ImportError: no such module"


@pytest.mark.parametrize(
    ("cluster", "shares", "submitted", "failed", "said"),
    [
        (Cluster(), "ab cd", "ab cd", {}, ""),
        (  # what has come further is submitted again with what it has left; b was finished by the third job
            Cluster(deaths={0: 3, 2: 1}),
            "abc d",
            "abc d bc c",
            {},
            "job 0 (out_of_memory): no output; submitted again with 2 cells (logs in logs)",
        ),
        (Cluster(raising="c"), "a cd", "a cd", {"c": RAISED, "d": RAISED}, RAISED),
    ],
    ids=["no death", "came further", "raises"],
)
def test_what_is_submitted(capsys, cluster, shares, submitted, failed, said):
    cells = cluster.run(*shares.split())
    assert cluster.submitted == submitted.split()
    assert {name: cell.message for name, cell in cells.items() if cell.status == "failed"} == failed
    assert cluster.written == dict.fromkeys(sorted({*shares} - {" ", *failed}), EVALUATIONS)
    assert cluster.bar == len(shares.replace(" ", ""))
    told = capsys.readouterr().err
    assert said in told if said else not told


@pytest.mark.parametrize("deadly", "abcde")
def test_a_cell_that_kills_its_job_ends_up_alone_and_the_others_go_on(deadly, capsys):
    cluster = Cluster(deadly=deadly)
    cells = cluster.run("abcde")
    assert {name: cluster.written.get(name, 0) for name in "abcde"} == dict.fromkeys("abcde", EVALUATIONS) | {deadly: 0}
    assert [name for name, cell in cells.items() if cell.status == "failed"] == [deadly]
    last = len(cluster.submitted) - 1 - cluster.submitted[::-1].index(deadly)
    assert cells[deadly].message == f"job {last} (out_of_memory): no output"
    assert cluster.submitted.count(deadly) == jobs.MOST_DEATHS
    assert cluster.bar == 5
    assert len(cluster.jobs) <= 10
    assert "logs in logs" in capsys.readouterr().err


def test_no_more_jobs_than_asked_for_run_at_once():
    cluster = Cluster(deadly="b")
    cluster.run("abcd", "ef", most=2)
    assert cluster.at_once == 2


def test_a_preempted_job_that_nobody_queues_again_is_taken_for_dead(monkeypatch, capsys):
    monkeypatch.setattr(jobs, "PATIENCE_SECONDS", 0.0)
    cluster = Cluster(preempted=(0,))
    cells = cluster.run("a", "b")
    assert cluster.submitted == ["a", "b", "a"]
    assert cluster.jobs[0].cancelled
    assert {name: cell.status for name, cell in cells.items()} == {"a": "done", "b": "done"}
    assert "job 0 (preempted): preempted, and not queued again; submitted again with 1 cell" in capsys.readouterr().err


def test_a_preempted_job_that_is_queued_again_is_waited_for(monkeypatch):
    cluster = Cluster(preempted=(0,))
    looks = iter(["PREEMPTED"] * 4 + ["PENDING"] * 4 + ["PREEMPTED"] * 4)
    monkeypatch.setattr(Job, "state", property(lambda self: next(looks, "COMPLETED"), lambda self, value: None), False)
    cluster.run("a")
    assert cluster.submitted == ["a"]


def test_ctrl_c_cancels_what_runs(monkeypatch):
    cluster = Cluster()
    monkeypatch.setattr(Job, "result", lambda self: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        cluster.run("a", "b")
    assert [job.cancelled for job in cluster.jobs] == [True, True]
