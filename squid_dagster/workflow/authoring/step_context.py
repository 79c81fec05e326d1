"""`StepContext`, which describes an attempt to its step, and `Resource`, which names what is not data."""

import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from pydantic import JsonValue

from squid_dagster.logs import redacting_logger

_log = redacting_logger("squid_dagster.step")


class Cancellation:
    """A flag that is set once the step's result is not needed any more. A step may test it, or `wait` for it."""

    __slots__ = ("_event", "_set")

    def __init__(self) -> None:
        """Create the flag, not set."""
        self._set = False
        self._event: threading.Event | None = None  # created by the first `wait`: few steps wait

    def __bool__(self) -> bool:
        """Return whether it is set, so that `if ctx.cancelled:` works."""
        return self._set

    def is_set(self) -> bool:
        """Return whether it is set."""
        return self._set

    def set(self) -> None:
        """Set the flag and wake all threads that wait."""
        with _waiting:
            self._set = True
            if self._event is not None:
                self._event.set()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until it is set, or for that many seconds. Return whether it is set."""
        with _waiting:
            if self._set:
                return True
            self._event = self._event or threading.Event()
        return self._event.wait(timeout)


_waiting = threading.Lock()


@dataclass(frozen=True, slots=True, kw_only=True)
class StepContext:
    """One attempt of one step, passed to a parameter annotated `StepContext`.

    Hand `idempotency_key` to external systems: it is the same for all attempts and deliveries of this visit. Hand
    `fencing_token` to those that can refuse an older one.
    """

    run_id: str
    workflow: str
    step: str
    runnable_key: str
    idempotency_key: str
    attempt: int = 1
    fencing_token: int = 1
    state: Mapping[str, JsonValue] = field(default_factory=lambda: MappingProxyType({}))
    log: "logging.Logger | logging.LoggerAdapter[logging.Logger]" = field(default=_log, repr=False)
    cancelled: Cancellation = field(default_factory=Cancellation, repr=False)
    child_starter: "Callable[..., Any] | None" = field(default=None, repr=False, compare=False)

    def start_child_run(
        self,
        workflow: Any,
        payload: Any = None,
        *,
        child_key: str,
        trigger: str | None = None,
        queue: str | None = None,
        metadata: Mapping[str, JsonValue] | None = None,
    ) -> Any:
        """Start a child run, linked to this one, once for this step and `child_key`. Return its receipt.

        Takes and raises what `Squid.start_child_run` does. The step does not wait for the child.

        Raises:
            RuntimeError: the step does not run in a worker, as in a unit test: pass a `child_starter` of your own.
        """
        if self.child_starter is None:
            raise RuntimeError(f"step {self.step!r} runs outside of a worker: give its context a child_starter")
        options = {"trigger": trigger, "queue": queue, "metadata": metadata}
        given = {name: value for name, value in options.items() if value is not None}
        return self.child_starter(self, workflow, payload, child_key=child_key, **given)


@dataclass(frozen=True, slots=True)
class Resource:
    """An object of the worker, not of the journal: `slack: Annotated[Slack, Resource("slack")]`."""

    key: str
