"""Make OpenTelemetry spans: one trace for a page's fetch and callback, and linked commit spans.

This module uses only the optional package opentelemetry-api. The user's program or
`opentelemetry-instrument` configures the SDK. Without an SDK the spans cost little and are dropped.
"""

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager

from opentelemetry import trace
from opentelemetry.trace import Link, Span, SpanContext, SpanKind, Status, StatusCode, Tracer

from crawlcw.engine.stats import Instruments, Step
from crawlcw.errors import FetchError
from crawlcw.model.sanitize import printable, redacted
from crawlcw.model.task import Lease

#: The maximum number of traced pages that wait for their commit.
_MAX_PAGES = 10_000
#: The maximum number of links of a commit span.
_MAX_LINKS = 128


class Tracing:
    """Makes a span for each step of a page. Spans show URLs without passwords and keys."""

    def __init__(self, meter: Instruments) -> None:
        """Make a span for each step, and report each step to *meter* as well."""
        self._meter = meter
        self._tracer: Tracer = trace.get_tracer("crawlcw")
        #: Maps a task's id to its fetch span, which is the parent of all later spans of the task.
        self._pages: OrderedDict[bytes, SpanContext] = OrderedDict()

    def fetch(self, lease: Lease) -> AbstractContextManager[Step]:
        """See `Instruments.fetch`."""
        task = lease.task
        return self._span(
            "crawlcw.fetch",
            SpanKind.CLIENT,
            lease,
            self._meter.fetch(lease),
            {"http.request.method": task.method, "server.address": printable(task.host)},
        )

    def parse(self, lease: Lease, callback: str) -> AbstractContextManager[Step]:
        """See `Instruments.parse`."""
        return self._span(
            "crawlcw.parse",
            SpanKind.INTERNAL,
            lease,
            self._meter.parse(lease, callback),
            {"code.function.name": printable(callback)},
        )

    @contextmanager
    def commit(self, leases: Sequence[Lease]) -> Iterator[Step]:
        """See `Instruments.commit`."""
        contexts = [self._pages.pop(lease.task.id, None) for lease in leases]
        links = [Link(page) for page in contexts if page is not None][:_MAX_LINKS]
        with (
            self._meter.commit(leases) as meter_step,
            self._tracer.start_as_current_span(
                "crawlcw.commit",
                links=links,
                attributes={"crawlcw.tasks": len(leases)},
                record_exception=False,
            ) as span,
        ):
            yield _SpanStep(span, meter_step)

    @contextmanager
    def _span(
        self,
        name: str,
        kind: SpanKind,
        lease: Lease,
        meter_block: AbstractContextManager[Step],
        attributes: dict[str, str],
    ) -> Iterator[Step]:
        task = lease.task
        page = self._pages.get(task.id)
        # A page's first span has no parent, because the current span belongs to the code that
        # started the crawl.
        parent = None if page is None else trace.set_span_in_context(trace.NonRecordingSpan(page))
        with (
            meter_block as meter_step,
            self._tracer.start_as_current_span(
                name,
                context=parent,
                kind=kind,
                attributes={
                    "url.full": printable(redacted(task.url)),
                    "crawlcw.depth": task.depth,
                    "crawlcw.attempt": task.retry + 1,
                    **attributes,
                },
                # Do not record exceptions in the span, because a message may contain secrets.
                record_exception=False,
                set_status_on_exception=False,
            ) as span,
        ):
            if page is None:
                self._pages[task.id] = span.get_span_context()
                while len(self._pages) > _MAX_PAGES:
                    self._pages.popitem(last=False)
            try:
                yield _SpanStep(span, meter_step)
            except Exception as error:
                _fail(span, error.reason if isinstance(error, FetchError) else type(error).__name__)
                raise


class _SpanStep:
    def __init__(self, span: Span, meter_step: Step) -> None:
        self._span = span
        self._meter_step = meter_step

    def record_response(self, *, status: int, size: int) -> None:
        self._span.set_attribute("http.response.status_code", status)
        self._span.set_attribute("http.response.body.size", size)
        self._meter_step.record_response(status=status, size=size)

    def record_failure(self, reason: str) -> None:
        _fail(self._span, reason)
        self._meter_step.record_failure(reason)


def _fail(span: Span, reason: str) -> None:
    span.set_attribute("error.type", printable(reason))
    span.set_status(Status(StatusCode.ERROR))
