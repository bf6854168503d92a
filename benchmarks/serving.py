"""Measure a server under load: errors, answers, throughput, latency, memory.

    python benchmarks/serving.py MODEL --text FILE [--texts 1000] [--clients 64]
        [--seconds 120]

Starts `transduce serve` on loopback. First, one client sends requests on one keep-alive
connection; their latencies are compared with offline translation of the same texts.
Then many clients send one request after the other, with texts of one to four lines of
the file; each response is compared with the offline translation. Last come misbehaving
clients (slow ones, closed connections, malformed and huge bodies, a full queue) and
SIGTERM under load. Throughput is compared with `Translator.translate` on the same
sentences in lists of the server's batch size, by one process and by as many as the
server has, before and after the load. Results are printed as Markdown.
"""

import argparse
import asyncio
import json
import math
import random
import signal
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

from joining import join_text
from machine import describe_machine, memory_of

from transduce.decoding.translator import load
from transduce.machine import num_cores
from transduce.text.splitting import sentences, split_text

MAX_LINES = 4
MAX_READ = 4_000
"""Most lines read from the file."""
MEMORY_PERIOD_S = 1.0
NUM_PARTS = 8
"""Number of equal intervals at whose ends the memory is reported."""
NUM_LEAVING = 50
HUGE_BYTES = 10_000_000
NUM_KEPT = 300
"""Requests on the keep-alive connection."""
SHUTDOWN_S = 60
"""Most seconds for the server to shut down."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """Texts with their offline translations."""

    texts: Sequence[str]
    expected: Sequence[str]
    num_sentences: Sequence[int]


@dataclass(slots=True)
class Outcome:
    """Latencies, statuses and errors of the clients' requests."""

    latencies_s: list[float] = field(default_factory=list)
    statuses: Counter[int] = field(default_factory=Counter)
    num_wrong: int = 0
    num_lost: int = 0
    num_sentences: int = 0
    """Sentences of the responses that came in time."""

    def describe(self) -> str:
        """Counts of requests by their outcome."""
        return f"{dict(self.statuses)}, {self.num_lost} lost, {self.num_wrong} wrong"


@dataclass(frozen=True, slots=True)
class Server:
    """A process of `transduce serve`."""

    process: subprocess.Popen[str]
    port: int

    def memory_mb(self) -> float:
        """Memory of the server and its worker processes; shared memory counts once."""
        if self.process.poll() is not None:
            raise RuntimeError("The server has ended.")
        return memory_of(self.process.pid) / 2**20


class Offline:
    """Translation of the texts without a server, in lists of its batch size."""

    def __init__(
        self,
        model: Path,
        texts: Sequence[str],
        batch_size: int,
        num_processes: int | None,
    ) -> None:
        self._translator = load(model, num_processes=num_processes)
        self._pieces = [split_text(text) for text in texts]
        self._batch_size = batch_size
        self.speeds: list[float] = []
        """Sentences per second of each measurement."""

    def latencies_s(self, count: int) -> list[float]:
        """Seconds of each of the first texts, one after the other."""
        latencies = []
        for pieces in self._pieces[:count]:
            started = time.perf_counter()
            self._translator.translate(sentences(pieces))
            latencies.append(time.perf_counter() - started)
        return latencies

    def translate(self) -> list[str]:
        """Translate all texts, and append the speed to `speeds`."""
        size = self._batch_size
        sources = [text for each in self._pieces for text in sentences(each)]
        self._translator.translate(sources[:size])
        started = time.perf_counter()
        translations = [
            each.text
            for start in range(0, len(sources), size)
            for each in self._translator.translate(sources[start : start + size])
        ]
        self.speeds.append(len(sources) / (time.perf_counter() - started))
        rest = iter(translations)
        return [
            join_text(each, list(islice(rest, len(sentences(each)))))
            for each in self._pieces
        ]


def read_texts(file: Path, count: int) -> list[str]:
    """Random texts of one to four lines of the file."""
    draw = random.Random(1)
    with file.open(encoding="utf-8") as lines:
        kept = list(islice((each.strip() for each in lines if each.strip()), MAX_READ))
    return [
        "\n".join(draw.choices(kept, k=draw.randint(1, MAX_LINES)))
        for _ in range(count)
    ]


@contextmanager
def serving(model: Path, *options: str) -> Iterator[Server]:
    """Start a server on a free port, and kill it at the end of the block."""
    command = [sys.executable, "-m", "transduce", "serve", f"en-de={model}"]
    with subprocess.Popen(
        [*command, "--port", "0", *options], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        port = int(process.stdout.readline().rpartition(":")[2])
        try:
            yield Server(process, port)
        finally:
            process.kill()


async def post(port: int, body: bytes) -> tuple[int, bytes]:
    """Send a request on a connection of its own; status and body of the response."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = (
        "POST /translate HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n"
        f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    try:
        writer.write(head.encode() + body)
        await writer.drain()
        answer = await reader.read()
    finally:
        writer.close()
    first, _, rest = answer.partition(b"\r\n\r\n")
    return int(first.split()[1]), rest


def request_body(text: str) -> bytes:
    """JSON body of a request to translate a text."""
    return json.dumps({"q": text, "source": "en", "target": "de"}).encode()


async def request(
    server: Server, task: Task, number: int, outcome: Outcome, end: float = math.inf
) -> None:
    """Send one request, and count its outcome; after `end` it counts no sentences."""
    started = time.perf_counter()
    try:
        status, body = await post(server.port, request_body(task.texts[number]))
    except (OSError, IndexError, ValueError):
        outcome.num_lost += 1
        return
    outcome.latencies_s.append(time.perf_counter() - started)
    outcome.statuses[status] += 1
    if status == 200:
        if time.perf_counter() <= end:
            outcome.num_sentences += task.num_sentences[number]
        is_right = json.loads(body)["translatedText"] == task.expected[number]
        outcome.num_wrong += not is_right


async def read_response(reader: asyncio.StreamReader) -> bytes:
    """Body of a response with a content-length."""
    head = (await reader.readuntil(b"\r\n\r\n")).lower()
    length = int(head.partition(b"content-length: ")[2].partition(b"\r\n")[0])
    return await reader.readexactly(length)


async def kept_latencies_s(port: int, requests: Sequence[bytes]) -> list[float]:
    """Seconds of each request, one after the other on one connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    latencies = []
    for each in requests:
        started = time.perf_counter()
        writer.write(each)
        await read_response(reader)
        latencies.append(time.perf_counter() - started)
    writer.close()
    return latencies


async def describe_kept(
    server: Server, task: Task, offline: "Offline"
) -> AsyncIterator[str]:
    """Rows of a table with latencies on a keep-alive connection and offline."""
    health = b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n"
    bodies = map(request_body, task.texts[:NUM_KEPT])
    translating = [
        b"POST /translate HTTP/1.1\r\nhost: localhost\r\n"
        b"content-type: application/json\r\ncontent-length: %d\r\n\r\n%b"
        % (len(body), body)
        for body in bodies
    ]
    alone = offline.latencies_s(NUM_KEPT)
    for name, requests in (
        ("/health, keep-alive", [health] * NUM_KEPT),
        ("/translate, keep-alive", translating),
    ):
        latencies = await kept_latencies_s(server.port, requests)
        yield f"| {name}, p50 and p99 | {milliseconds(latencies)} |"
    yield f"| same texts offline, p50 and p99 | {milliseconds(alone)} |"


def milliseconds(latencies_s: Sequence[float]) -> str:
    """Format median and 99th percentile."""
    return " and ".join(
        f"{percentile(latencies_s, share) * 1000:,.2f} ms" for share in (0.5, 0.99)
    )


async def load_server(
    server: Server, task: Task, num_clients: int, seconds: float
) -> tuple[Outcome, list[float]]:
    """Outcome of the clients' requests, and the server's memory every second."""
    outcome, memory = Outcome(), []
    end = time.perf_counter() + seconds

    async def run_client(seed: int) -> None:
        draw = random.Random(seed)
        while time.perf_counter() < end:
            await request(server, task, draw.randrange(len(task.texts)), outcome, end)

    async def watch() -> None:
        while True:
            memory.append(server.memory_mb())
            await asyncio.sleep(MEMORY_PERIOD_S)

    watching = asyncio.create_task(watch())
    await asyncio.gather(*map(run_client, range(num_clients)))
    watching.cancel()
    return outcome, memory


async def misbehave(server: Server, task: Task) -> dict[str, str]:
    """Responses to misbehaving clients, and to a good one after them."""
    good = Outcome()
    responses = {
        "malformed body": str((await post(server.port, b"{"))[0]),
        "huge body": await huge_body(server.port),
        "slow client": await slow_client(server.port),
    }
    for number in range(NUM_LEAVING):
        text = task.texts[number % len(task.texts)]
        await leave(server.port, request_body(text))
    await request(server, task, 0, good)
    responses[f"after {NUM_LEAVING} closed connections"] = f"{dict(good.statuses)}"
    return responses


async def huge_body(port: int) -> str:
    """Response to a huge body; the server may close the connection early."""
    with suppress(ConnectionError):
        return str((await post(port, b" " * HUGE_BYTES))[0])
    return "refused"


async def slow_client(port: int) -> str:
    """Status for a client that sends its body byte by byte."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(
        b"POST /translate HTTP/1.1\r\nhost: localhost\r\ncontent-length: 9999\r\n\r\n"
    )
    reading = asyncio.create_task(reader.readline())
    while not reading.done():
        with suppress(ConnectionError):
            writer.write(b" ")
            await writer.drain()
        await asyncio.sleep(0.2)
    writer.close()
    return (await reading).split()[1].decode()


async def leave(port: int, body: bytes) -> None:
    """Send a request, and close the connection before the response."""
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    head = (
        "POST /translate HTTP/1.1\r\nhost: localhost\r\n"
        f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    writer.write(head.encode() + body)
    await writer.drain()
    writer.transport.abort()


async def stop_under_load(server: Server, task: Task, num_clients: int) -> str:
    """Send SIGTERM under load: every accepted request must get its response."""
    outcome = Outcome()
    requests = [
        asyncio.create_task(request(server, task, number % len(task.texts), outcome))
        for number in range(num_clients)
    ]
    await asyncio.sleep(0.1)
    server.process.send_signal(signal.SIGTERM)
    await asyncio.gather(*requests)
    code = await asyncio.to_thread(server.process.wait, SHUTDOWN_S)
    return f"{outcome.describe()}, exit code {code}"


def percentile(values: Sequence[float], share: float) -> float:
    """Percentile of the values, with `share` between 0 and 1."""
    return sorted(values)[min(int(share * len(values)), len(values) - 1)]


def describe(
    outcome: Outcome,
    memory: Sequence[float],
    seconds: float,
    offline: Mapping[str, Offline],
) -> Iterator[str]:
    """Lines of a table of the measurements."""
    speed = outcome.num_sentences / seconds
    yield "| figure | value |\n|---|---|"
    yield f"| requests by status | {outcome.describe()} |"
    yield f"| sentences/s | {speed:,.1f} |"
    for name, each in offline.items():
        speeds = ", ".join(f"{speed:,.1f}" for speed in each.speeds)
        yield f"| offline, {name}, before and after | {speeds} |"
        yield f"| share of their mean | {speed / statistics.mean(each.speeds):.0%} |"
    for share in (0.5, 0.99):
        latency = percentile(outcome.latencies_s, share)
        yield f"| latency, p{share * 100:.0f} | {latency * 1000:,.0f} ms |"
    parts = [memory[i * (len(memory) - 1) // NUM_PARTS] for i in range(NUM_PARTS + 1)]
    grown = ", ".join(f"{each:,.0f}" for each in parts)
    yield f"| memory at equal intervals | {grown} MB |"


async def measure(arguments: argparse.Namespace) -> None:
    """Measure latency, load, misbehaving clients, shutdown and a full queue."""
    batch_size, num_clients = arguments.batch_size, arguments.clients
    texts = read_texts(arguments.text, arguments.texts)
    offline = {
        name: Offline(arguments.model, texts, batch_size, number)
        for name, number in (("one process", 1), ("all processes", None))
    }
    expected, again = (each.translate() for each in offline.values())
    assert expected == again
    task = Task(
        texts=texts,
        expected=expected,
        num_sentences=[len(sentences(split_text(text))) for text in texts],
    )
    with serving(arguments.model, "--batch-size", str(batch_size)) as server:
        kept = [
            line async for line in describe_kept(server, task, offline["all processes"])
        ]
        outcome, memory = await load_server(
            server, task, num_clients, arguments.seconds
        )
        for each in offline.values():
            each.translate()
        lines = describe(outcome, memory, arguments.seconds, offline)
        print("\n".join([*lines, *kept]), flush=True)
        for client, response in (await misbehave(server, task)).items():
            print(f"| {client} | {response} |", flush=True)
        stopped = await stop_under_load(server, task, num_clients)
        print(f"| SIGTERM under load | {stopped} |")
    with serving(arguments.model, "--max-waiting", "8") as server:
        full, _ = await load_server(server, task, num_clients, 2)
        print(f"| queue of 8 sentences | {full.describe()} |")
    print(f"\n{describe_machine()}- Cores: {num_cores()}, shared with the clients")


def main() -> None:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--text", type=Path, required=True)
    parser.add_argument("--texts", type=int, default=1_000)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--batch-size", type=int, default=64)
    asyncio.run(measure(parser.parse_args()))


if __name__ == "__main__":
    main()
