# SPDX-License-Identifier: Apache-2.0
from collections.abc import Callable
from collections.abc import Iterator
from queue import Empty
from queue import Queue
import threading
import time

import pytest

from alpamayo_node.errors import BackendError
from alpamayo_node.errors import Cancelled
from alpamayo_node.errors import ConfigError
from alpamayo_node.errors import Reason
from alpamayo_node.errors import Refusal
from alpamayo_node.plan.adjust import AdjustLimits
from alpamayo_node.plan.gate import GateLimits
from alpamayo_node.plan.planner import Planner
from alpamayo_node.plan.worker import Failed
from alpamayo_node.plan.worker import Job
from alpamayo_node.plan.worker import Planned
from alpamayo_node.plan.worker import Ready
from alpamayo_node.plan.worker import Refused
from alpamayo_node.plan.worker import Worker
from alpamayo_node.plan.worker import WorkerEvent
from alpamayo_node.plan.worker import WorkerState
from tests.fakes.expert import EmptyStore
from tests.fakes.expert import GatedExpert
from tests.fakes.expert import ScriptedExpert
from tests.fakes.expert import make_request

PATIENCE_S = 10.0


class Harness:
    """A worker around one scripted expert, and its events in order."""

    def __init__(self, expert: ScriptedExpert) -> None:
        self.expert = expert
        self.events: Queue[WorkerEvent] = Queue()
        self.worker = Worker(self._build, self.events.put)

    def _build(self, should_stop, report) -> tuple[Planner, str]:
        report('loading')
        text = self.expert.self_test(should_stop)
        planner = Planner(
            self.expert, EmptyStore(), adjust_limits=AdjustLimits(), gate_limits=GateLimits()
        )
        return planner, text

    def next(self) -> WorkerEvent:
        return self.events.get(timeout=PATIENCE_S)

    def start(self) -> None:
        self.worker.start()
        assert isinstance(self.next(), Ready)

    def assert_silent(self) -> None:
        with pytest.raises(Empty):
            self.events.get(timeout=0.05)


@pytest.fixture
def harness_for() -> Iterator[Callable[[ScriptedExpert], Harness]]:
    made: list[Harness] = []

    def make(expert: ScriptedExpert) -> Harness:
        made.append(Harness(expert))
        return made[-1]

    yield make
    for harness in made:
        assert harness.worker.stop(PATIENCE_S)


def raise_(error: Exception) -> None:
    raise error


def test_worker_plans_a_job_and_closes_the_expert_at_the_end(harness_for) -> None:
    harness = harness_for(ScriptedExpert())
    harness.start()
    job = Job(make_request(), epoch=3)
    assert harness.worker.submit(job) is None
    event = harness.next()
    assert isinstance(event, Planned)
    assert event.job is job
    assert len(event.plans) == 1
    assert event.plans[0].is_valid
    assert harness.worker.stop(PATIENCE_S)
    assert harness.worker.state is WorkerState.STOPPED
    assert harness.expert.is_closed


def test_worker_flooded_during_a_plan_plans_only_the_newest(harness_for) -> None:
    expert = GatedExpert()
    harness = harness_for(expert)
    harness.start()
    first, *flood = (Job(make_request(seed=seed)) for seed in range(6))
    assert harness.worker.submit(first) is None
    assert expert.has_begun.wait(PATIENCE_S)
    displaced = [harness.worker.submit(job) for job in flood]
    assert displaced == [None, *flood[:-1]]
    expert.gate.set()
    answered = [harness.next(), harness.next()]
    assert [event.job for event in answered] == [first, flood[-1]]
    assert all(isinstance(event, Planned) for event in answered)
    harness.assert_silent()
    assert expert.n_samples == 2


def test_worker_query_does_not_displace_a_waiting_context(harness_for) -> None:
    expert = GatedExpert()
    harness = harness_for(expert)
    harness.start()
    running, waiting = Job(make_request()), Job(make_request())
    query = Job(make_request(), is_query=True)
    harness.worker.submit(running)
    assert expert.has_begun.wait(PATIENCE_S)
    assert harness.worker.submit(waiting) is None
    assert harness.worker.submit(query) is None
    newer_query = Job(make_request(), is_query=True)
    assert harness.worker.submit(newer_query) is query
    expert.gate.set()
    order = [harness.next().job for _ in range(3)]
    assert order == [running, waiting, newer_query]


def test_worker_refusal_leaves_it_ready_for_the_next_job(harness_for) -> None:
    refusals = [Refusal(Reason.SHAPE_MISMATCH, '3 layers, expected 2')]
    expert = ScriptedExpert(on_load=lambda: raise_(refusals.pop()) if refusals else None)
    harness = harness_for(expert)
    harness.start()
    harness.worker.submit(Job(make_request()))
    event = harness.next()
    assert isinstance(event, Refused)
    assert event.refusal.reason is Reason.SHAPE_MISMATCH
    assert event.cause is None
    harness.worker.submit(Job(make_request()))
    assert isinstance(harness.next(), Planned)


def test_worker_defect_is_refused_with_its_cause_and_the_worker_lives_on(harness_for) -> None:
    defects = [ZeroDivisionError('division by zero')]
    expert = ScriptedExpert(on_sample=lambda: raise_(defects.pop()) if defects else None)
    harness = harness_for(expert)
    harness.start()
    harness.worker.submit(Job(make_request()))
    event = harness.next()
    assert isinstance(event, Refused)
    assert event.refusal.reason is Reason.INTERNAL_ERROR
    assert 'ZeroDivisionError' in event.refusal.text
    assert isinstance(event.cause, ZeroDivisionError)
    harness.worker.submit(Job(make_request()))
    assert isinstance(harness.next(), Planned)


def test_worker_backend_error_answers_every_job_then_fails(harness_for) -> None:
    expert = GatedExpert()
    expert.on_sample = lambda: raise_(BackendError('chip hung'))
    harness = harness_for(expert)
    harness.start()
    running, waiting = Job(make_request()), Job(make_request())
    harness.worker.submit(running)
    assert expert.has_begun.wait(PATIENCE_S)
    harness.worker.submit(waiting)
    expert.gate.set()
    events = [harness.next() for _ in range(3)]
    assert [event.job for event in events[:2]] == [running, waiting]
    assert {event.refusal.reason for event in events[:2]} == {Reason.BACKEND_FAILED}
    assert isinstance(events[2], Failed)
    assert harness.worker.state is WorkerState.FAILED
    late = Job(make_request())
    assert harness.worker.submit(late) is None
    event = harness.next()
    assert isinstance(event, Refused)
    assert event.job is late
    assert harness.worker.stop(PATIENCE_S)
    assert expert.is_closed


@pytest.mark.parametrize('error', [ConfigError('a.b', 1, 'must be 2'), RuntimeError('no')])
def test_worker_build_failure_is_reported_and_final(harness_for, error) -> None:
    harness = harness_for(ScriptedExpert(on_self_test=lambda: raise_(error)))
    harness.worker.start()
    event = harness.next()
    assert isinstance(event, Failed)
    assert event.error is error
    harness.worker.submit(Job(make_request()))
    assert isinstance(harness.next(), Refused)


def test_worker_stopped_while_building_ends_quietly(harness_for) -> None:
    begun = threading.Event()
    expert = ScriptedExpert()
    harness = harness_for(expert)

    def build(should_stop, report):
        begun.set()
        while not should_stop():
            time.sleep(0.001)
        raise Cancelled('while loading')

    harness.worker = Worker(build, harness.events.put)
    harness.worker.start()
    assert begun.wait(PATIENCE_S)
    assert harness.worker.stop(PATIENCE_S)
    assert harness.worker.state is WorkerState.STOPPED
    harness.assert_silent()


def test_worker_cancel_all_refuses_current_and_waiting_then_plans_again(harness_for) -> None:
    expert = GatedExpert()
    harness = harness_for(expert)
    harness.start()
    running, waiting = Job(make_request()), Job(make_request())
    harness.worker.submit(running)
    assert expert.has_begun.wait(PATIENCE_S)
    harness.worker.submit(waiting)
    harness.worker.cancel_all()
    events = [harness.next(), harness.next()]
    assert {id(event.job) for event in events} == {id(running), id(waiting)}
    assert {event.refusal.reason for event in events} == {Reason.CANCELLED}
    expert.gate.set()
    harness.worker.submit(Job(make_request()))
    assert isinstance(harness.next(), Planned)


def test_worker_stop_during_a_plan_ends_in_time_and_answers_the_job(harness_for) -> None:
    expert = GatedExpert()
    harness = harness_for(expert)
    harness.start()
    job = Job(make_request())
    harness.worker.submit(job)
    assert expert.has_begun.wait(PATIENCE_S)
    assert harness.worker.busy_s > 0.0
    assert harness.worker.stop(PATIENCE_S)
    event = harness.next()
    assert isinstance(event, Refused)
    assert event.job is job
    assert harness.worker.busy_s == 0.0


def test_worker_that_never_returns_does_not_hold_up_its_owner() -> None:
    release = threading.Event()
    harness = Harness(ScriptedExpert(on_sample=lambda: release.wait(PATIENCE_S)))
    harness.start()
    harness.worker.submit(Job(make_request()))
    while harness.worker.state is not WorkerState.BUSY:
        time.sleep(0.001)
    assert not harness.worker.stop(0.05)
    release.set()
    assert harness.worker.stop(PATIENCE_S)
