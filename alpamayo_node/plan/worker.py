# SPDX-License-Identifier: Apache-2.0
"""
One thread that owns the expert, and the mailbox in front of it.

Whatever touches the backend (building, self-test, plans, closing) happens on this thread, so a
device never sees two callers. The mailbox holds one job and the newest wins: a planner that falls
behind must plan from now, not from a queue of the past.

Every job that was handed in is answered by exactly one event: `Planned`, `Refused`, or its return
from `submit` as the one that was superseded. Events are delivered on the worker's thread; their
receiver must only store them.
"""

from collections.abc import Callable
from dataclasses import dataclass
from dataclasses import field
from enum import Enum
from threading import Condition
from threading import Thread
import time

from alpamayo_node.contracts import ExpertInfo
from alpamayo_node.contracts import Plan
from alpamayo_node.contracts import PlanRequest
from alpamayo_node.errors import BackendError
from alpamayo_node.errors import Cancelled
from alpamayo_node.errors import Reason
from alpamayo_node.errors import Refusal
from alpamayo_node.plan.planner import Planner

type ShouldStop = Callable[[], bool]
type Report = Callable[[str], None]
type Build = Callable[[ShouldStop, Report], tuple[Planner, str]]


class WorkerState(Enum):
    """Life of a worker, in order; FAILED and STOPPED are final."""

    STARTING = 'starting'
    READY = 'ready'
    BUSY = 'busy'
    FAILED = 'failed'
    STOPPED = 'stopped'


@dataclass(frozen=True, eq=False)
class Job:
    """One request on its way through the worker; compared by identity."""

    request: PlanRequest
    epoch: int = 0
    """Of the clock, at submission: the receiver drops results of an older one."""
    is_query: bool = False
    """Asked for by a service: the answer goes to the asker, not to the vehicle."""
    submitted_s: float = field(default_factory=time.monotonic)


@dataclass(frozen=True)
class Ready:
    """The expert is loaded and has passed its self-test."""

    info: ExpertInfo
    self_test: str


@dataclass(frozen=True)
class Planned:
    """A job was planned; each sample's plan may be valid or not."""

    job: Job
    plans: tuple[Plan, ...]


@dataclass(frozen=True)
class Refused:
    """A job ended without any plan; `cause` is set where the reason is a defect."""

    job: Job
    refusal: Refusal
    cause: Exception | None = None


@dataclass(frozen=True)
class Failed:
    """The backend is unusable; every later job is refused."""

    error: Exception


type WorkerEvent = Ready | Planned | Refused | Failed


class Worker:
    """Owns a planner on a thread of its own; all public methods may be called from any thread."""

    def __init__(self, build: Build, on_event: Callable[[WorkerEvent], None]) -> None:
        """
        :param build: makes the planner and tests it; gets a stop flag to poll and a sink for
            progress in words, and returns the planner and the self-test's result in words
        :param on_event: receives every event; called on the worker's thread
        """
        self._build = build
        self._on_event = on_event
        self._changed = Condition()
        self._state = WorkerState.STARTING
        self._activity = ''
        self._is_stopping = False
        self._pending: Job | None = None
        self._pending_query: Job | None = None
        self._current: Job | None = None
        self._is_current_cancelled = False
        self._started_s = 0.0
        self._thread = Thread(target=self._run, name='planner', daemon=True)

    def start(self) -> None:
        """Begin building the planner."""
        self._thread.start()

    @property
    def state(self) -> WorkerState:
        """Where the worker is in its life."""
        return self._state

    @property
    def activity(self) -> str:
        """What the worker is doing, in words; empty when it waits."""
        return self._activity

    @property
    def busy_s(self) -> float:
        """For how long the current job has been running, seconds; 0 when there is none."""
        with self._changed:
            return time.monotonic() - self._started_s if self._current else 0.0

    def submit(self, job: Job) -> Job | None:
        """
        Hand in a job; it runs after the current one.

        Queries have a mailbox of their own, so that an inspection never displaces a context.

        :return: the job that this one displaced, which will not be answered by an event
        """
        with self._changed:
            if self._is_stopping or self._state in (WorkerState.FAILED, WorkerState.STOPPED):
                displaced = None
                is_refused = True
            elif job.is_query:
                displaced, self._pending_query = self._pending_query, job
                is_refused = False
            else:
                displaced, self._pending = self._pending, job
                is_refused = False
            self._changed.notify()
        if is_refused:
            self._refuse(job, Reason.BACKEND_FAILED, f'the planner is {self._state.value}')
        return displaced

    def cancel_all(self) -> None:
        """End the current job at its next step and drop the waiting ones; all are refused."""
        with self._changed:
            self._is_current_cancelled = self._current is not None
            dropped = self._take_waiting()
        for job in dropped:
            self._refuse(job, Reason.CANCELLED, 'cancelled before planning began')

    def stop(self, timeout_s: float) -> bool:
        """
        End the current work at its next step, close the planner and end the thread.

        :return: whether the thread has ended in time
        """
        with self._changed:
            self._is_stopping = True
            self._changed.notify()
        if self._thread.is_alive():
            self._thread.join(timeout_s)
        return not self._thread.is_alive()

    # ------------------------------------------------------------------ on the worker's thread

    def _run(self) -> None:
        try:
            planner, self_test = self._build(self._should_stop, self._report)
        except Cancelled:
            self._finish(WorkerState.STOPPED)
            return
        except Exception as error:  # the thread's edge: nothing may vanish here
            self._finish(WorkerState.FAILED)
            self._on_event(Failed(error))
            return
        self._report('')
        self._set_state(WorkerState.READY)
        self._on_event(Ready(planner.info, self_test))
        try:
            self._serve(planner)
        finally:
            planner.close()

    def _serve(self, planner: Planner) -> None:
        while job := self._next_job():
            try:
                event: WorkerEvent = self._answer(planner, job)
            except BackendError as error:
                self._forget_current()
                self._refuse(job, Reason.BACKEND_FAILED, str(error), error)
                self._finish(WorkerState.FAILED)
                self._on_event(Failed(error))
                return
            self._forget_current()
            self._on_event(event)
        self._finish(WorkerState.STOPPED)

    def _answer(self, planner: Planner, job: Job) -> WorkerEvent:
        queue_s = time.monotonic() - job.submitted_s
        try:
            plans = planner.plan(job.request, self._should_stop, queue_s=queue_s)
        except Refusal as refusal:
            return Refused(job, refusal)
        except Cancelled:
            return Refused(job, Refusal(Reason.CANCELLED, 'cancelled while planning'))
        except BackendError:
            raise
        except Exception as error:  # a defect of ours must not end the node
            text = f'{type(error).__name__}: {error}'
            return Refused(job, Refusal(Reason.INTERNAL_ERROR, text), error)
        return Planned(job, plans)

    def _next_job(self) -> Job | None:
        with self._changed:
            self._changed.wait_for(
                lambda: self._is_stopping or self._pending or self._pending_query
            )
            if self._is_stopping:
                return None
            if self._pending:
                self._current, self._pending = self._pending, None
            else:
                self._current, self._pending_query = self._pending_query, None
            self._is_current_cancelled = False
            self._started_s = time.monotonic()
            self._state = WorkerState.BUSY
            return self._current

    def _forget_current(self) -> None:
        with self._changed:
            self._current = None
            self._state = WorkerState.READY

    def _finish(self, state: WorkerState) -> None:
        self._report('')
        with self._changed:
            self._state = state
            dropped = self._take_waiting()
        reason = Reason.CANCELLED if state is WorkerState.STOPPED else Reason.BACKEND_FAILED
        for job in dropped:
            self._refuse(job, reason, f'the planner is {state.value}')

    def _take_waiting(self) -> list[Job]:
        dropped = [job for job in (self._pending, self._pending_query) if job]
        self._pending = self._pending_query = None
        return dropped

    def _set_state(self, state: WorkerState) -> None:
        with self._changed:
            self._state = state

    def _should_stop(self) -> bool:
        return self._is_stopping or self._is_current_cancelled

    def _report(self, activity: str) -> None:
        self._activity = activity

    def _refuse(self, job: Job, reason: Reason, text: str, cause: Exception | None = None) -> None:
        self._on_event(Refused(job, Refusal(reason, text), cause))
