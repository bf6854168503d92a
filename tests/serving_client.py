"""Server of models on a free port, and requests to it."""

import json
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import ProxyHandler, Request, build_opener

import torch
import uvicorn
from fastapi import FastAPI

from transduce.checkpoint import Checkpoint
from transduce.decoding.translator import Translator
from transduce.serving.admission import AccessConfig, AdmissionConfig
from transduce.serving.request_queue import QueueConfig, RequestQueue
from transduce.serving.served_models import ModelName, ServedModel
from transduce.serving.server import (
    ServerConfig,
    create_app,
    http_server,
    listen,
)
from waiting import PATIENCE_S

WITHOUT_PROXY = build_opener(ProxyHandler({}))


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    status: int
    body: bytes
    headers: dict[str, str]

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningServer:
    address: str
    models: Sequence[ServedModel]
    server: uvicorn.Server

    @property
    def port(self) -> int:
        return int(self.address.rpartition(":")[2])

    def get(self, path: str) -> Answer:
        return fetch(Request(self.address + path))

    def post(self, path: str, body: Any, **headers: str) -> Answer:
        """Send JSON, or bytes as they are."""
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        headers = {"content-type": "application/json"} | {
            name.replace("_", "-"): value for name, value in headers.items()
        }
        return fetch(Request(self.address + path, content, headers))

    def ask(self, method: str, path: str, **headers: str) -> Answer:
        """Send a request without a body."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return fetch(Request(self.address + path, headers=named, method=method))

    def stop(self) -> None:
        self.server.should_exit = True


def fetch(request: Request) -> Answer:
    try:
        with WITHOUT_PROXY.open(request, timeout=PATIENCE_S) as response:
            return Answer(
                status=response.status,
                body=response.read(),
                headers=dict(response.headers),
            )
    except HTTPError as error:
        with error:
            return Answer(
                status=error.code, body=error.read(), headers=dict(error.headers)
            )


def served(
    checkpoint: Checkpoint, name: str, queueing: QueueConfig | None = None
) -> ServedModel:
    translator = Translator(checkpoint, torch.device("cpu"))
    queue = RequestQueue(translator, queueing)
    return ServedModel.of(ModelName(name=name, folders=(Path(),)), queue)


@contextmanager
def running(
    models: Sequence[ServedModel],
    config: AdmissionConfig | None = None,
    access: AccessConfig | None = None,
    taking: ServerConfig | None = None,
    host: str = "127.0.0.1",
    pivots: Sequence[str] = (),
) -> Iterator[RunningServer]:
    """Run a server until the end of the block; clients use IPv4 whatever the host."""
    app = create_app(models, config, access, pivots)
    with running_app(app, models, taking, host) as server:
        yield server


@contextmanager
def running_app(
    app: FastAPI,
    models: Sequence[ServedModel] = (),
    taking: ServerConfig | None = None,
    host: str = "127.0.0.1",
) -> Iterator[RunningServer]:
    """Run a server of an app until the end of the block."""
    with listen(host, 0) as listener:
        server = http_server(app, taking)
        thread = threading.Thread(target=server.run, args=([listener],))
        thread.start()
        while not server.started:
            time.sleep(0.01)
        try:
            yield RunningServer(
                address=f"http://127.0.0.1:{listener.getsockname()[1]}",
                models=models,
                server=server,
            )
        finally:
            server.should_exit = True
            thread.join()
