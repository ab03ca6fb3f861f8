# SPDX-License-Identifier: Apache-2.0
"""
The planner as a lifecycle node: it carries messages to the worker and answers back, nothing else.

Threads: all callbacks run on one single-threaded executor, which never waits for a plan; the
heartbeat has a thread of its own, so `status` goes on while weights load or a plan hangs; the
worker (`plan.worker`) owns the expert. Its events are queued and handled on the executor's thread.

Every context received ends as exactly one of planned, rejected (with a reason) or superseded.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import replace
from threading import Event
from threading import Lock
import time
import traceback
from typing import Any

from alpamayo_msgs.msg import PlannedTrajectory
from alpamayo_msgs.msg import PlannerStatus
from alpamayo_msgs.msg import VlmContext
from alpamayo_msgs.srv import Plan as PlanService
from lifecycle_msgs.srv import ChangeState
from nav_msgs.msg import Odometry
from rcl_interfaces.msg import SetParametersResult
from rclpy.callback_groups import MutuallyExclusiveCallbackGroup
from rclpy.clock import JumpThreshold
from rclpy.clock import TimeJump
from rclpy.duration import Duration
from rclpy.impl.implementation_singleton import rclpy_implementation
from rclpy.lifecycle import LifecycleNode
from rclpy.lifecycle import LifecycleState
from rclpy.lifecycle import TransitionCallbackReturn
from rclpy.task import Future

from alpamayo_node.contracts import ContextInfo
from alpamayo_node.contracts import EgoStart
from alpamayo_node.contracts import ExpertInfo
from alpamayo_node.contracts import Finding
from alpamayo_node.contracts import Plan
from alpamayo_node.contracts import PlanRequest
from alpamayo_node.errors import AlpamayoError
from alpamayo_node.errors import BackendError
from alpamayo_node.errors import Cancelled
from alpamayo_node.errors import ConfigError
from alpamayo_node.errors import Reason
from alpamayo_node.errors import Refusal
from alpamayo_node.plan.counters import Counters
from alpamayo_node.plan.history import OdometryBuffer
from alpamayo_node.plan.history import ego_start
from alpamayo_node.plan.worker import Build
from alpamayo_node.plan.worker import Failed
from alpamayo_node.plan.worker import Job
from alpamayo_node.plan.worker import Planned
from alpamayo_node.plan.worker import Ready
from alpamayo_node.plan.worker import Refused
from alpamayo_node.plan.worker import Worker
from alpamayo_node.plan.worker import WorkerEvent
from alpamayo_node.plan.worker import WorkerState
from alpamayo_node.ros import convert
from alpamayo_node.ros import qos
from alpamayo_node.ros import status
from alpamayo_node.ros.admission import Admission
from alpamayo_node.ros.declare import declare_table
from alpamayo_node.ros.declare import given_values
from alpamayo_node.ros.heartbeat import Heartbeat
from alpamayo_node.ros.outputs import Outputs
from alpamayo_node.ros.params import Settings
from alpamayo_node.ros.params import admission_limits
from alpamayo_node.ros.params import read_settings
from alpamayo_node.ros.params import topic_name

CLOSE_TIMEOUT_S = 20.0
RCLError = rclpy_implementation.RCLError
_BACKWARD_JUMP = Duration(nanoseconds=-100_000_000)
_EPOCH_IS_OVER = Refusal(Reason.CLOCK_JUMP, 'the clock jumped back, or changed its source')
_SUCCESS = TransitionCallbackReturn.SUCCESS
_FAILURE = TransitionCallbackReturn.FAILURE

type MakeBuild = Callable[[Settings], Build]


class PlannerNode(LifecycleNode):
    """`alpamayo_planner`: VlmContext and odometry in, PlannedTrajectory out."""

    def __init__(self, make_build: MakeBuild, **node_options: Any) -> None:
        """
        :param make_build: from checked settings to what the worker builds its planner with
        :param node_options: passed on to rclpy's node
        :raises ConfigError: a parameter was given a value that it does not take
        """
        super().__init__('alpamayo_planner', **node_options)
        self._make_build = make_build
        self._settings = declare_table(self)
        self.add_on_set_parameters_callback(self._on_set_parameters)
        self._counters = Counters()
        self._state = PlannerStatus.STATE_UNCONFIGURED
        self._fault = ''
        self._epoch = 0
        self._last = status.Last()
        self._last_lock = Lock()
        self._is_closing = Event()
        self._worker: Worker | None = None
        self._info: ExpertInfo | None = None
        self._admission: Admission | None = None
        self._newest: PlanRequest | None = None
        self._odometry = OdometryBuffer(self._settings.history)
        self._inputs: list[Any] = []
        self._events = deque[WorkerEvent]()
        self._open: set[Job] = set()
        self._answers: dict[Job, Future] = {}
        self._wake_up = self.create_guard_condition(self._drain)
        self._outputs = Outputs(self, self._settings)
        self._jump_handle = self.get_clock().create_jump_callback(
            JumpThreshold(min_forward=None, min_backward=_BACKWARD_JUMP, on_clock_change=True),
            post_callback=self._on_clock_jump,
        )
        self._heartbeat = Heartbeat(1.0 / self._settings.number('status.rate_hz'), self._beat)
        self._heartbeat.start()

    def start(self) -> None:
        """Configure and activate, if `autostart` says so; called on the executor's thread."""
        if self._settings.values['autostart'] and self.trigger_configure() == _SUCCESS:
            self.trigger_activate()

    def request_stop(self) -> None:
        """End long work soon; may be called from any thread, and returns at once."""
        self._is_closing.set()
        if worker := self._worker:
            worker.stop(0.0)

    def report_defect(self, error: Exception) -> None:
        """Count and log an exception that a callback let through; the node goes on."""
        self._counters.count('defect')
        self._note_error(f'{type(error).__name__}: {error}')
        self.get_logger().error(''.join(traceback.format_exception(error)))

    def close(self) -> None:
        """End the worker and the heartbeat; the node can only be destroyed afterwards."""
        self._set_state(PlannerStatus.STATE_SHUTTING_DOWN)
        self.request_stop()
        self._release()
        self._heartbeat.stop()

    # ------------------------------------------------------------------ life cycle

    def on_configure(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Load the expert and test it; FAILURE with a reason leaves the node unconfigured."""
        del state
        result = self._guarded('configure', self._configure)
        is_done = result == _SUCCESS
        if not is_done:
            self._release()
        self._set_state(
            PlannerStatus.STATE_INACTIVE if is_done else PlannerStatus.STATE_UNCONFIGURED
        )
        return result

    def on_activate(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Begin to listen."""
        result = self._guarded('activate', self._listen)
        if result == _SUCCESS:
            super().on_activate(state)
            self._set_state(PlannerStatus.STATE_ACTIVE)
        return result

    def on_deactivate(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Stop listening; what was being planned is refused."""
        self._stop_listening()
        if self._worker:
            self._worker.cancel_all()
        self._outputs.clear(self._fixed_frame)
        super().on_deactivate(state)
        self._set_state(PlannerStatus.STATE_INACTIVE)
        return _SUCCESS

    def on_cleanup(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Release the expert."""
        del state
        self._release()
        self._set_state(PlannerStatus.STATE_UNCONFIGURED)
        return _SUCCESS

    def on_shutdown(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Release the expert for good."""
        del state
        self._stop_listening()
        self._release()
        self._set_state(PlannerStatus.STATE_SHUTTING_DOWN)
        return _SUCCESS

    def on_error(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Release the expert after a transition went wrong."""
        return self.on_cleanup(state)

    def _LifecycleNodeMixin__on_change_state(  # noqa: N802
        self, request: ChangeState.Request, response: ChangeState.Response
    ) -> ChangeState.Response:
        """
        Answer an illegal transition with a refusal.

        rclpy's own callback raises, so its caller waits for an answer that never comes (rclpy
        issue 1209). Python's mangled name is the only way to reach it.
        """
        try:
            answer = super()._LifecycleNodeMixin__on_change_state(request, response)
        except RCLError as error:
            self._note_error(f'transition {request.transition.id} refused: {error}')
            response.success = False
            return response
        return answer

    def _guarded(self, what: str, step: Callable[[], None]) -> TransitionCallbackReturn:
        try:
            step()
        except AlpamayoError as error:
            self._note_error(f'{what}: {error}')
            return _FAILURE
        except Exception as error:  # rclpy would swallow it without a trace
            self._note_error(f'{what}: {type(error).__name__}: {error}')
            self.get_logger().error(traceback.format_exc())
            return _FAILURE
        return _SUCCESS

    def _configure(self) -> None:
        self._set_state(PlannerStatus.STATE_CONFIGURING)
        self._odometry = OdometryBuffer(self._settings.history)
        # A worker that was given up may still report: to a queue that nobody reads any more.
        events = self._events = deque[WorkerEvent]()
        is_built = Event()

        def on_event(event: WorkerEvent) -> None:
            events.append(event)
            if isinstance(event, Ready | Failed):
                is_built.set()
            self._wake_up.trigger()

        self._worker = Worker(self._make_build(self._settings), on_event)
        self._worker.start()
        self._wait_for_worker(is_built)
        event = events.popleft()
        if isinstance(event, Failed):
            raise event.error
        assert isinstance(event, Ready)
        self._info = event.info
        self._admission = Admission(admission_limits(self._settings), event.info)
        self.get_logger().info(
            f'{event.info.backend} {event.info.precision}, '
            f'{event.info.model_fingerprint[:23]}…; self-test: {event.self_test}'
        )

    def _wait_for_worker(self, is_built: Event) -> None:
        timeout_s = self._settings.number('watchdog.configure_timeout_s')
        deadline_s = time.monotonic() + timeout_s
        while not is_built.wait(0.05):
            if self._is_closing.is_set():
                raise Cancelled('stopped while configuring')
            if time.monotonic() > deadline_s:
                raise BackendError(f'not ready after {timeout_s} s; still {self._activity}')

    def _listen(self) -> None:
        if self._fault:
            raise BackendError(f'{self._fault}; clean up and configure again')
        settings = self._settings
        self._inputs = [
            self.create_subscription(
                VlmContext,
                topic_name(settings, 'context'),
                self._on_context,
                qos.profile(settings, 'context', 1),
                event_callbacks=qos.warn_if_incompatible(self, 'context'),
            ),
            self.create_subscription(
                Odometry,
                topic_name(settings, 'odometry'),
                self._on_odometry,
                qos.profile(settings, 'odometry', settings.integer('qos.odometry.depth')),
                event_callbacks=qos.warn_if_incompatible(self, 'odometry'),
            ),
            self.create_service(
                PlanService,
                '~/plan',
                self._on_plan_service,
                # A group of its own: a callback that awaits blocks the rest of its group.
                callback_group=MutuallyExclusiveCallbackGroup(),
            ),
        ]

    def _stop_listening(self) -> None:
        *subscriptions, service = self._inputs or [None]
        for subscription in subscriptions:
            self.destroy_subscription(subscription)
        if service:
            self.destroy_service(service)
        self._inputs = []

    def _release(self) -> None:
        worker, self._worker = self._worker, None
        if worker and not worker.stop(CLOSE_TIMEOUT_S):
            self._note_error(f'the backend did not end within {CLOSE_TIMEOUT_S} s')
        self._drain()
        for job in tuple(self._open):  # the backend never came back from these
            self._on_refused(job, Refusal(Reason.BACKEND_FAILED, 'the backend gave no answer'))
        self._forget()
        self._fault = ''
        self._info = self._admission = None

    # ------------------------------------------------------------------ inputs

    def _on_odometry(self, message: Odometry) -> None:
        self._counters.count('odometry')
        try:
            sample = convert.sample_from_odometry(
                message, self._fixed_frame, self._settings.text('frames.ego')
            )
            self._odometry.append(sample)
        except Refusal as refusal:
            self._counters.count(f'odometry.{refusal.reason}')
            self._note_error(f'odometry: {refusal}')

    def _on_context(self, message: VlmContext) -> None:
        self._counters.count('received')
        try:
            request = self._admit(message)
        except Refusal as refusal:
            self._reject(convert.header_of(message), refusal)
            return
        self._newest = request
        assert self._worker
        job = Job(request, epoch=self._epoch)
        self._open.add(job)
        if displaced := self._worker.submit(job):
            self._open.discard(displaced)
            self._counters.count('superseded')

    def _admit(self, message: VlmContext) -> PlanRequest:
        if self._fault:
            raise Refusal(Reason.BACKEND_FAILED, f'{self._fault}; configure again')
        context = convert.context_from_message(message)
        self._remember(context=context)
        samples = context.history or self._odometry.snapshot()
        assert self._admission
        self._admission.check(context, self._now_ns())
        start = ego_start(samples, context.t0_ns, context.frame_id, self._settings.history)
        self._admission.remember(context)
        return self._request(context, start)

    def _request(self, context: ContextInfo, start: EgoStart) -> PlanRequest:
        settings = self._settings
        seed = settings.integer('sampling.seed') if context.seed is None else context.seed
        return PlanRequest(
            context=context,
            start=start,
            seed=seed,
            n_steps=settings.integer('sampling.n_steps'),
            n_samples=settings.integer('sampling.n_samples'),
            temperature=settings.number('sampling.temperature'),
        )

    async def _on_plan_service(
        self, request: PlanService.Request, response: PlanService.Response
    ) -> PlanService.Response:
        try:
            job = self._query(request)
        except Refusal as refusal:
            response.message = str(refusal)
            return response
        answer = self._answers[job] = Future()
        assert self._worker
        self._open.add(job)
        if displaced := self._worker.submit(job):
            self._open.discard(displaced)
            self._answers.pop(displaced).set_result(
                Refusal(Reason.CANCELLED, 'a newer query came')
            )
        outcome = await answer
        if isinstance(outcome, Refusal):
            response.message = str(outcome)
            return response
        response.success = True
        response.trajectory = outcome
        return response

    def _query(self, request: PlanService.Request) -> Job:
        newest = self._newest
        if newest is None:
            raise Refusal(Reason.BAD_MESSAGE, 'no context has been admitted yet')
        if request.context_id not in ('', newest.context.context_id):
            text = f'context_id = {request.context_id!r}: the newest is '
            raise Refusal(Reason.BAD_MESSAGE, f'{text}{newest.context.context_id!r}')
        changes: dict[str, Any] = {'n_samples': 1}
        if request.has_seed:
            changes['seed'] = request.seed
        if request.n_steps:
            changes['n_steps'] = request.n_steps
        return Job(replace(newest, **changes), epoch=self._epoch, is_query=True)

    def _on_clock_jump(self, jump: TimeJump) -> None:
        del jump
        self._epoch += 1
        self._counters.count('clock_jump')
        self._forget()
        if self._worker:
            self._worker.cancel_all()
        self._outputs.clear(self._fixed_frame)

    def _forget(self) -> None:
        """Drop what belongs to a clock or a configuration that is over."""
        self._odometry.clear()
        self._newest = None
        self._remember(context=None, planned=None)
        if self._admission:
            self._admission.forget()

    # ------------------------------------------------------------------ the worker's events

    def _drain(self) -> None:
        if self._state == PlannerStatus.STATE_CONFIGURING:
            return
        while self._events:
            event = self._events.popleft()
            match event:
                case Planned(job=job, plans=plans):
                    self._on_planned(job, plans)
                case Refused(job=job, refusal=refusal, cause=cause):
                    if cause:
                        self.get_logger().error(''.join(traceback.format_exception(cause)))
                    self._on_refused(job, refusal)
                case Failed(error=error):
                    self._set_fault(f'the backend failed: {error}')

    def _on_planned(self, job: Job, plans: tuple[Plan, ...]) -> None:
        context = job.request.context
        if self._fault or job.epoch != self._epoch:
            self._on_refused(job, Refusal(Reason.BACKEND_FAILED, self._fault))
            return
        self._open.discard(job)
        late = () if job.is_query else self._lateness(context)
        assert self._info
        age_ns = self._now_ns() - context.t0_ns
        messages = [
            convert.plan_to_message(plan, self._info, age_ns=age_ns, reasons=late)
            for plan in plans
        ]
        if job.is_query:
            self._answers.pop(job).set_result(messages[0])
            return
        if len(messages) > 1:
            self._outputs.candidates(messages)
        chosen = next((message for message in messages if message.valid), None)
        if chosen:
            self._publish(context, chosen)
        else:
            self._publish_rejected(messages[0])

    def _lateness(self, context: ContextInfo) -> tuple[Finding, ...]:
        assert self._admission
        try:
            self._admission.require_age(context, self._now_ns())
        except Refusal as refusal:
            return (Finding(refusal.reason, refusal.text),)
        return ()

    def _on_refused(self, job: Job, refusal: Refusal) -> None:
        self._open.discard(job)
        if job.epoch != self._epoch:
            refusal = _EPOCH_IS_OVER
        if job.is_query:
            self._answers.pop(job).set_result(refusal)
        else:
            self._reject(convert.header_of(job.request.context), refusal)

    def _publish(self, context: ContextInfo, message: PlannedTrajectory) -> None:
        self._outputs.plan(message, self._settings)
        self._counters.count('planned')
        for adjustment in message.adjustments:
            self._counters.count(f'adjusted.{adjustment.code}')
        self._remember(planned=context)

    def _reject(self, header: convert.AnswerHeader, refusal: Refusal) -> None:
        age_ns = self._now_ns() - header.t0_ns
        self._publish_rejected(convert.refusal_to_message(header, refusal, age_ns=age_ns))

    def _publish_rejected(self, message: PlannedTrajectory) -> None:
        self._outputs.rejected(message)
        self._counters.count('rejected')
        for reason in message.reasons:
            self._counters.count(f'rejected.{reason.code}')
        reasons = '; '.join(f'{reason.code}: {reason.text}' for reason in message.reasons)
        self._note_error(f'{message.context_id}/{message.generation} rejected: {reasons}')

    # ------------------------------------------------------------------ health

    def _beat(self) -> None:
        """Tell how things are, whatever happens; runs on the heartbeat's thread."""
        try:
            self._tell_health()
        except Exception as error:  # the heartbeat must go on
            self.report_defect(error)

    def _tell_health(self) -> None:
        """Publish the status, and notice a plan that hangs."""
        worker = self._worker
        timeout_s = self._settings.number('watchdog.plan_timeout_s')
        is_hung = worker is not None and worker.busy_s > timeout_s
        if is_hung and not self._fault:
            self._set_fault(f'a plan has been running for more than {timeout_s} s')
        health = self._health(worker)
        self._outputs.health(health, 1.0 / self._settings.number('diagnostics.rate_hz'))

    def _health(self, worker: Worker | None) -> status.Health:
        counts = dict(self._counters.snapshot())
        ended = sum(counts.get(name, 0) for name in ('planned', 'rejected', 'superseded'))
        counts['pending'] = counts.get('received', 0) - ended
        return status.Health(
            now_ns=self._now_ns(),
            frame_id=self._fixed_frame,
            state=PlannerStatus.STATE_FAULTED if self._fault else self._state,
            is_planning=worker is not None and worker.state is WorkerState.BUSY,
            activity=self._activity,
            epoch=self._epoch,
            last=self._last,
            counters=tuple(sorted(counts.items())),
            info=self._info,
        )

    @property
    def _activity(self) -> str:
        worker = self._worker
        return worker.activity if worker else ''

    @property
    def _fixed_frame(self) -> str:
        return self._settings.text('frames.fixed')

    def _now_ns(self) -> int:
        return int(self.get_clock().now().nanoseconds)

    def _set_state(self, state: int) -> None:
        self._state = state

    def _set_fault(self, text: str) -> None:
        """Stop planning until the node is cleaned up."""
        self._fault = text
        self._note_error(text)

    def _remember(self, **changes: Any) -> None:
        # Refusals come from the executor's thread, faults from the heartbeat's.
        with self._last_lock:
            self._last = replace(self._last, **changes)

    def _note_error(self, text: str) -> None:
        self._remember(error=text, error_ns=self._now_ns())
        self.get_logger().error(text, throttle_duration_sec=1.0)

    def _on_set_parameters(self, parameters: list[Any]) -> SetParametersResult:
        ours = given_values(parameters)
        if not ours:
            return SetParametersResult(successful=True)
        if self._state != PlannerStatus.STATE_UNCONFIGURED:
            text = f'{next(iter(ours))}: takes effect when configuring; clean the node up first'
            return SetParametersResult(successful=False, reason=text)
        try:
            self._settings = read_settings({**self._settings.values, **ours})
        except ConfigError as error:
            return SetParametersResult(successful=False, reason=str(error))
        return SetParametersResult(successful=True)
