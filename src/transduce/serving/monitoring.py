"""Metrics of the server for Prometheus."""

import time
from collections.abc import Sequence
from functools import partial

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from transduce.serving.request_queue import RequestQueue
from transduce.serving.served_models import ServedModel

CONTENT_TYPE = CONTENT_TYPE_LATEST
SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
SENTENCES = (1, 2, 4, 8, 16, 32, 64, 128)


class Monitor:
    """Counts requests and batches; each server has its own."""

    def __init__(self, models: Sequence[ServedModel]) -> None:
        self._registry = CollectorRegistry()
        self.requests = Counter(
            "transduce_requests", "Requests answered", ["path", "status"],
            registry=self._registry,
        )  # fmt: skip
        self.seconds = Histogram(
            "transduce_request_seconds", "Until the answer is sent", ["path"],
            buckets=SECONDS, registry=self._registry,
        )  # fmt: skip
        batches = Histogram(
            "transduce_batch_sentences", "Sentences translated together", ["model"],
            buckets=SENTENCES, registry=self._registry,
        )  # fmt: skip
        waiting = Gauge(
            "transduce_waiting_sentences", "Sentences whose turn is to come", ["model"],
            registry=self._registry,
        )  # fmt: skip
        for model in models:
            queue = model.queue
            queue.on_batch = batches.labels(model.name).observe
            waiting.labels(model.name).set_function(partial(_num_waiting, queue))

    def text(self) -> bytes:
        """Return the metrics in Prometheus' text format."""
        return generate_latest(self._registry)


class CountRequests:
    """Counts each answer by the path that is documented for it."""

    def __init__(self, app: ASGIApp, monitor: Monitor) -> None:
        self._app = app
        self._monitor = monitor

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        # No answer was started, so the client has gone.
        status = "none"
        begun = time.perf_counter()

        async def count(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = str(message["status"])
            await send(message)

        try:
            await self._app(scope, receive, count)
        finally:
            path = getattr(scope.get("route"), "path", "other")
            self._monitor.requests.labels(path, status).inc()
            seconds = time.perf_counter() - begun
            self._monitor.seconds.labels(path).observe(seconds)


def _num_waiting(queue: RequestQueue) -> float:
    return queue.num_waiting
