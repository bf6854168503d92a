"""Endpoints of the HTTP interface, and the server's metrics for Prometheus."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import Future
from functools import partial
from http import HTTPStatus
from operator import itemgetter
from typing import TYPE_CHECKING
from urllib.parse import quote

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from transduce.decoding.documents import TranslatedSegment
from transduce.decoding.parser import Parse
from transduce.decoding.translator import Translator
from transduce.errors import OverdueError, TransduceError, packages_for
from transduce.files import without_infinity
from transduce.model.config import AttentionKind
from transduce.serving import messages
from transduce.serving.admission import (
    Admission,
    can_be_host,
    failure_sentence,
    host_name,
    is_an_end,
    log_failure,
    refusal_of,
    while_connected,
)
from transduce.serving.messages import JSON, RefusedError, quoted
from transduce.serving.request_queue import (
    Deadline,
    RequestQueue,
    in_own_thread,
    in_thread,
)
from transduce.serving.served_models import (
    AUTO,
    Route,
    ServedModel,
    by_languages,
    by_name,
    is_auto,
    language_name,
    require_target,
)
from transduce.serving.translated_files import (
    FORMATS,
    TextFile,
    TranslatedFiles,
)
from transduce.serving.translation import (
    DocumentOptions,
    found_segments,
    split,
    submit,
    translate_documents,
    translated_segments,
)
from transduce.text.splitting import (
    Segment,
    has_sign,
    sentences,
    split_text,
)
from transduce.text.tokenizer import tagged
from transduce.text.vocabulary import find_corpus_tag

if TYPE_CHECKING:
    from transduce.analysis.sentence_attention import PairAttention

    Attend = Callable[[Translator, str, str], PairAttention]

SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
SENTENCES = (1, 2, 4, 8, 16, 32, 64, 128)
OTHER = "other"
"""Path under which requests to undocumented paths are counted."""


class Monitor:
    """Counts requests and batches; each server has its own."""

    def __init__(self, models: Sequence[ServedModel]) -> None:
        self._registry = CollectorRegistry()
        self.requests = Counter(
            "transduce_requests", "Requests answered", ["path", "status"],
            registry=self._registry,
        )  # fmt: skip
        self.seconds = Histogram(
            "transduce_request_seconds", "Seconds until the answer is sent", ["path"],
            buckets=SECONDS, registry=self._registry,
        )  # fmt: skip
        batches = Histogram(
            "transduce_batch_sentences", "Sentences translated together", ["model"],
            buckets=SENTENCES, registry=self._registry,
        )  # fmt: skip
        waiting = Gauge(
            "transduce_waiting_sentences", "Sentences that wait for a batch", ["model"],
            registry=self._registry,
        )  # fmt: skip
        for model in models:
            queue = model.queue
            queue.on_batch = batches.labels(model.name).observe
            waiting.labels(model.name).set_function(partial(_num_waiting, queue))

    def count(self, path: str, status: str) -> None:
        """Count an answer by its path and status."""
        self.requests.labels(path, status).inc()

    def count_refusal(self, status: int) -> None:
        """Count a request that is refused before its path is known."""
        self.count(OTHER, str(int(status)))

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
            path = getattr(scope.get("route"), "path", OTHER)
            self._monitor.count(path, status)
            seconds = time.perf_counter() - begun
            self._monitor.seconds.labels(path).observe(seconds)


def _num_waiting(queue: RequestQueue) -> float:
    return queue.num_waiting


ENGLISH = "en"
"""Language of the text that parsers read."""
DOWNLOAD_HEADERS = {
    "content-security-policy": "default-src 'none'; sandbox",
    "x-content-type-options": "nosniff",
    "cache-control": "no-store",
}
"""Headers of translated files: a page must not run as one of this server."""
DIGITS = 5
"""Decimal digits of an attention weight."""
MAX_SCORED_TOKENS = 1_000
"""Maximum number of tokens of a scored source or target: self-attention is quadratic in
the length, and no sentence is longer."""


class JsonLines(StreamingResponse):
    """Streamed JSON lines, each sent as soon as it is ready."""

    media_type = "application/x-ndjson"


class Endpoints:
    """Endpoints of all paths."""

    def __init__(
        self,
        models: Sequence[ServedModel],
        routes: Sequence[Route],
        admission: Admission,
        monitor: Monitor,
    ) -> None:
        self._models = models
        self._routes = routes
        self._translating = [model for model in models if not model.is_parser]
        self._parsing = [model for model in models if model.is_parser]
        self._admission = admission
        self._monitor = monitor
        self._files = TranslatedFiles()
        self._loading: dict[str, Future[Attend]] = {}
        """Loading of each model into PyTorch, for /v1/attention, by its name."""

    async def translate(self, request: Request) -> messages.TranslateAnswer:
        """Translate texts, as LibreTranslate does."""
        message = await self._admission.admit(request, messages.TranslateRequest)
        route = by_languages(self._routes, message.source, message.target)
        steps = route.steps(message.target, message.tag, message.glossary)
        steps[0].queue.require_few(len(message.texts), "text")
        work = translate_documents(
            steps,
            message.texts,
            self._options(message, route),
            message.alternatives,
        )
        found = await while_connected(request, work)
        detected = messages.DetectedLanguage(confidence=0.0, language=route.source)
        several = messages.TranslateAnswer(
            translatedText=[each.text for each in found],
            alternatives=[each.alternatives for each in found],
            detectedLanguage=[detected for _ in found],
            mayLackTerms=[each.may_lack_terms for each in found],
        )
        return _shaped(message, several)

    async def languages(self) -> list[messages.Language]:
        """List the languages of the models; target-only languages have no targets."""
        routes = self._routes
        codes: dict[str, dict[str, None]] = {each.source: {} for each in routes}
        for route in routes:  # several may have one pair of languages
            codes[route.source] |= dict.fromkeys(route.targets)
        for target in [each for route in routes for each in route.targets]:
            codes.setdefault(target, {})
        return [
            messages.Language(
                code=code, name=language_name(code), targets=list(targets)
            )
            for code, targets in codes.items()
        ]

    async def detect(self, request: Request) -> list[messages.DetectedLanguage]:
        """List the source languages with confidence 0, since nothing is detected."""
        await self._admission.admit(request, messages.DetectRequest)
        codes = {model.source: None for model in self._translating}
        return [
            messages.DetectedLanguage(confidence=0.0, language=code) for code in codes
        ]

    async def frontend_settings(self) -> messages.FrontendSettings:
        """Return the settings that LibreTranslate's clients read when they start."""
        config = self._admission.config
        return messages.FrontendSettings(
            apiKeys=bool(config.api_keys),
            charLimit=config.max_characters,
            filesTranslation=config.translates_files,
            supportedFilesFormat=list(FORMATS) if config.translates_files else [],
            keyRequired=bool(config.api_keys),
            language=messages.FrontendLanguages(
                source=messages.NamedLanguage(code=AUTO, name="Auto Detect"),
                target=_named(self._translating[0].target if self._translating else ""),
            ),
        )

    async def suggest(self) -> messages.Refusal:
        """Refuse a suggested translation, since the server stores none."""
        raise RefusedError(
            HTTPStatus.FORBIDDEN,
            "This server takes no suggestions, as it stores none.",
        )

    async def translate_file(self, request: Request) -> messages.FileAnswer:
        """Translate a file of a form, as LibreTranslate does."""
        config = self._admission.config
        if not config.translates_files:
            raise RefusedError(
                HTTPStatus.FORBIDDEN,
                "This server keeps no files; send their text to /translate, that of "
                'HTML with `"format": "html"`.',
            )
        message = await self._admission.admit(request, messages.FileRequest)
        host = request.headers.get("host")
        if host is not None and not can_be_host(host_name(host)):
            raise RefusedError(
                HTTPStatus.BAD_REQUEST,
                "The host must be a name or an address, as the answer has it, but is "
                f"{quoted(host)}.",
            )
        route = by_languages(self._routes, message.source, message.target)
        steps = route.steps(message.target, message.tag, message.glossary)
        deadline = steps[0].queue.deadline()
        file = await in_thread(deadline, TextFile.read, message.file)
        options = DocumentOptions(
            format=file.format,
            language=route.language,
            max_characters=config.max_characters,
        )
        work = translate_documents(steps, [file.text], options, 0)
        [found] = await while_connected(request, work)
        translated = file.translated(found.text, route.into(message.target))
        key = self._files.add(translated)
        path = f"download_file/{key}.{quote(translated.name)}"
        return messages.FileAnswer(translatedFileUrl=f"{request.base_url}{path}")

    async def download_file(self, request: Request) -> Response:
        """Return a translated file by its address."""
        key, _, _ = request.path_params["name"].partition(".")
        file = self._files.get(key)
        if file is None:
            minutes = f"{self._files.life_s / 60:g}"
            raise RefusedError(
                HTTPStatus.NOT_FOUND,
                f"A translated file is kept for at most {minutes} minutes, but none "
                "has this address; translate it again.",
            )
        disposition = f"attachment; filename*=UTF-8''{quote(file.name)}"
        headers = DOWNLOAD_HEADERS | {"content-disposition": disposition}
        return Response(file.content, media_type=file.media_type, headers=headers)

    async def models(self) -> list[messages.Model]:
        """List the models, and pairs of models with a pivot language between them, by
        the names that /v1 uses."""
        pivoted = [each for each in self._routes if each.pivot is not None]
        return [
            messages.Model(
                name=each.name,
                task="parse" if each.models[0].is_parser else "translate",
                source=each.source,
                target=each.target,
                targets=list(each.targets),
                source_name=language_name(each.source),
                target_name=language_name(each.target),
                target_names=list(map(language_name, each.targets)),
                tags=each.corpus_tags,
                models=[model.name for model in each.models],
                pivot=each.pivot,
                pivot_name=each.pivot and language_name(each.pivot),
            )
            for each in (*map(Route.of, self._models), *pivoted)
        ]

    async def glossaries(self) -> list[messages.ListedGlossary]:
        """List the glossaries for each model and target language."""
        return [
            messages.ListedGlossary(
                name=name,
                model=route.name,
                source=route.source,
                target=target,
                num_terms=num_terms,
            )
            for route in self._routes
            for target in route.targets
            for name, num_terms in route.glossaries_for(target).items()
        ]

    async def stream(self, request: Request) -> JsonLines:
        """Translate a text; each sentence is a line of JSON, sent as soon as it is
        ready.

        If an error occurs, the last line has an `error`.
        """
        message = await self._admission.admit(request, messages.StreamRequest)
        route = by_name(self._routes, message.model)
        require_target(route, message.target, "target")
        steps = route.steps(message.target, message.tag, message.glossary)
        deadline = steps[0].queue.deadline()
        options = self._options(message, route)
        [segments] = await in_thread(deadline, split, [message.q], options)
        futures = await submit(
            steps, sentences(segments), message.alternatives, deadline
        )
        found = translated_segments(steps, segments, futures, options.format, deadline)
        return _streamed(_translated(each) async for each in found)

    async def parse(self, request: Request) -> JsonLines:
        """Parse an English text; each sentence is a line of JSON, sent when ready.

        If an error occurs, the last line has an `error`.
        """
        message = await self._admission.admit(request, messages.ParseRequest)
        queue = by_name(self._parsing, message.model).queue
        deadline = queue.deadline()
        splits = partial(
            split_text, splits_lines=message.split_sentences, is_read=has_sign
        )
        segments = await in_thread(deadline, splits, message.q, ENGLISH)
        texts = sentences(segments)
        queue.require_few(len(texts))
        await queue.require_short(texts, deadline)
        futures = queue.submit_to_parser(
            texts, constrained=message.constrained, deadline=deadline
        )
        found = found_segments(segments, futures)
        return _streamed(_parsed(*each) async for each in found)

    async def score(self, request: Request) -> list[messages.Score]:
        """Score given translations by their log-probability."""
        message = await self._admission.admit(request, messages.ScoreRequest)
        model = by_name(self._translating, message.model)
        given = _tagged(message.source, model, message.target_language)
        queue = model.queue
        deadline = queue.deadline()
        await queue.require_short(message.texts, deadline, MAX_SCORED_TOKENS)
        translator = _with_tag(model, message.tag)
        slices = partial(translator.score_stream, given, message.target)
        found = await while_connected(request, queue.run_in_slices(slices, deadline))
        return [
            messages.Score(
                log_probability=each.log_probability,
                num_tokens=each.num_tokens,
                perplexity=without_infinity(each.perplexity),
                tokens=list(each.tokens),
                token_log_probabilities=list(each.token_log_probabilities),
            )
            for _, each in sorted(found, key=itemgetter(0))
        ]

    async def attention(self, request: Request) -> Response:
        """Return the attention weights of a sentence and its translation or tree."""
        message = await self._admission.admit(request, messages.AttentionRequest)
        model = by_name(self._models, message.model)
        [source] = _tagged([message.source], model, message.target_language)
        queue = model.queue
        deadline = queue.deadline()
        await queue.require_short(message.texts, deadline)
        if message.tag is not None:
            find_corpus_tag(message.tag, queue.translator.tokenizer.corpus_tags)
        attend = await self._loaded(model, deadline)
        # After the loading, as a copy of the translator shares the loaded model.
        translator = _with_tag(model, message.tag)
        work = partial(attend, translator, source, message.target)
        found = await while_connected(request, queue.run(work, deadline))
        # Up to a million numbers: formatting them would block the event loop.
        content = await in_thread(deadline, _attention_json, found, message.kind)
        return Response(content, media_type=JSON)

    def _options(
        self, message: messages.TranslateRequest | messages.StreamRequest, route: Route
    ) -> DocumentOptions:
        return DocumentOptions(
            format=message.format,
            language=route.language,
            splits_lines=message.split_sentences,
            max_characters=self._admission.config.max_characters,
        )

    async def _loaded(self, model: ServedModel, deadline: Deadline) -> "Attend":
        """Return the function that reads attention, when PyTorch has the model.

        All requests wait for one thread, which goes on after their deadlines. Each in
        a thread of its own, they would keep other requests from the event loop's few.
        """
        loading = self._loading.get(model.name)
        if loading is not None and loading.done() and loading.exception() is None:
            if time.monotonic() >= deadline.at:
                raise deadline.overdue_error()
            return loading.result()
        if loading is None or loading.done():
            loading = in_own_thread(partial(_load_attention, model.queue.translator))
            self._loading[model.name] = loading
        found = asyncio.wrap_future(loading)
        # Otherwise asyncio logs a failure after the deadline, which no caller awaits.
        found.add_done_callback(asyncio.Future.exception)
        await asyncio.wait({found}, timeout=deadline.at - time.monotonic())
        if not found.done():
            raise OverdueError(
                f"The model {model.name} is still being loaded into PyTorch, which "
                "reads attention; try again later."
            )
        return found.result()

    async def health(self) -> messages.Health:
        """Report that models are loaded and requests are accepted."""
        stuck = [model.name for model in self._models if model.queue.is_stuck]
        if stuck:
            raise OverdueError(
                f"The model {stuck[0]} hangs in a request that does not end; restart "
                "the server."
            )
        return messages.Health(models=[model.name for model in self._models])

    async def metrics(self) -> Response:
        """Return metrics in Prometheus' text format."""
        return Response(self._monitor.text(), media_type=CONTENT_TYPE_LATEST)


def _shaped(
    message: messages.TranslateRequest, several: messages.TranslateAnswer
) -> messages.TranslateAnswer:
    """Return the fields of an answer that the request asks for.

    Each field of `several` is a list with a value for each text. In the answer to a
    single text, the fields are the values themselves.
    """
    left_out = set() if message.alternatives else {"alternatives"}
    left_out |= set() if is_auto(message.source) else {"detectedLanguage"}
    may_lack = isinstance(several.mayLackTerms, list) and any(several.mayLackTerms)
    left_out |= set() if may_lack else {"mayLackTerms"}
    fields = several.model_dump(exclude=left_out)
    if isinstance(message.q, str):
        fields = {name: each[0] for name, each in fields.items()}
    return messages.TranslateAnswer.model_validate(fields)


def _named(code: str) -> messages.NamedLanguage:
    return messages.NamedLanguage(code=code, name=language_name(code))


def _load_attention(translator: Translator) -> "Attend":
    """Load a model into PyTorch; return the function that reads its attention.

    The first import of PyTorch takes seconds.
    """
    with packages_for("/v1/attention"):
        from transduce.analysis.sentence_attention import attend
    _ = translator.torch_model
    return attend


def _attention_json(found: "PairAttention", kind: AttentionKind) -> bytes:
    queries, keys = found.axes(kind)
    weights = found.maps.of(kind).double().round(decimals=DIGITS)
    content = {
        "queries": queries.pieces,
        "keys": keys.pieces,
        "weights": weights.tolist(),
    }
    return json.dumps(content).encode()


def _tagged(
    sources: Sequence[str], model: ServedModel, language: str | None
) -> list[str]:
    """Return the sources with the tag of the target language, if there are several.

    Without a language it is the model's own, as in a translation.
    """
    require_target(model, language, "target_language")
    tag = model.tag_for(language or model.target)
    return [tagged(each, tag, model.queue.translator.tokenizer) for each in sources]


def _with_tag(model: ServedModel, tag: str | None) -> Translator:
    """Return the model's translator with a tag; `RequestError` if it has no such."""
    translator = model.queue.translator
    return translator if tag is None else translator.with_tag(tag)


def _streamed(found: AsyncIterator[BaseModel]) -> JsonLines:
    """Stream one line of JSON per message as soon as it is found."""

    async def lines() -> AsyncIterator[str]:
        try:
            async for each in found:
                yield each.model_dump_json() + "\n"
        except TransduceError as error:
            refusal = messages.Refusal(error=str(refusal_of(error)))
            yield refusal.model_dump_json() + "\n"
        except BaseException as error:
            if is_an_end(error):
                raise
            log_failure(error)
            refusal = messages.Refusal(error=failure_sentence(error))
            yield refusal.model_dump_json() + "\n"

    return JsonLines(lines())


def _translated(found: TranslatedSegment) -> messages.StreamedSegment:
    return messages.StreamedSegment(
        source=found.source,
        translation=found.text,
        score=found.score,
        pivot=found.pivot,
        alternatives=[
            messages.ScoredText(text=text, score=score)
            for text, score in found.alternatives
        ],
        may_lack_terms=found.may_lack_terms,
    )


def _parsed(segment: Segment, parse: Parse | None) -> messages.StreamedParse:
    if parse is None or not parse.tree.leaves:  # only invisible characters
        return messages.StreamedParse(source=segment.text)
    return messages.StreamedParse(
        source=segment.text,
        tree=str(parse.tree),
        score=parse.score,
        num_repairs=parse.repairs.total,
        is_overlong=parse.is_overlong,
        leaves=[
            messages.Leaf(tag=leaf.tag, word=leaf.word) for leaf in parse.tree.leaves
        ],
        constituents=[
            messages.Constituent(label=each.label, start=each.start, end=each.end)
            for each in parse.tree.constituents
        ],
    )
