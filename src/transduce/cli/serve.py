"""`transduce serve`: models over HTTP, with a web page."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from transduce.cli.help import option_name
from transduce.cli.lines import require_shortlist
from transduce.decoding.backend import choose_device
from transduce.decoding.native_decoder import PrecisionChoice
from transduce.decoding.translations import with_available_shortlist
from transduce.decoding.translator import Translator, load
from transduce.decoding.worker_pool import default_processes
from transduce.errors import ConfigError, packages_for
from transduce.machine import leave_a_core
from transduce.model_folder import find_model
from transduce.search_config import SearchConfig
from transduce.text.languages import canonical
from transduce.trees.linearization import SYMBOLS_FILE


def serve(
    *models: str,
    host: str = "127.0.0.1",
    port: int = 5000,
    pivot: tuple[str, ...] = (),
    glossary: tuple[str, ...] = (),
    files: bool = True,
    api_keys: Path | None = None,
    requests_per_minute: int | None = None,
    max_characters: int = 10_000,
    max_tokens: int = 10_000,
    max_waiting: int = 1024,
    timeout: float = 30.0,
    batch_size: int = 64,
    max_connections: int = 1000,
    client_timeout: float = 10.0,
    allowed_hosts: tuple[str, ...] = (),
    cors_origins: tuple[str, ...] = (),
    trusted_proxies: tuple[str, ...] = (),
    device: str = "auto",
    precision: PrecisionChoice = "auto",
    shortlist: Annotated[bool | None, Parameter(negative="--no-shortlist")] = None,
    processes: int | None = None,
    no_repeat_ngram: int | None = None,
    repetition_penalty: float | None = None,
) -> None:
    """Serve translators and parsers over HTTP, with a web page at /.

    LibreTranslate clients work unchanged. The interface is documented at /docs.

    Ctrl-C or SIGTERM stops the server after it has finished accepted requests, a second
    Ctrl-C at once.

    For example:

        transduce serve en-de=runs/mine de-en=runs/back

    Parameters
    ----------
    models
        Model or run folders, each as FOLDER, NAME=FOLDER or SOURCE:TARGET=FOLDER. The
        languages are those given (en:pt-BR), those of a name such as en-de, or the
        model's own. A parser has only a name. Several folders with commas between them
        form an ensemble, as in en-de=runs/1,runs/2.
    host
        Address to listen at; the default serves only this machine.
    port
        Port to listen at; 0 for any free port.
    pivot
        Language between two models, such as en: a request from German to French that no
        single model can answer is translated from German to English, then to French.
        The option may be repeated; by default there is none.
    glossary
        Glossary, as FILE, NAME=FILE, SOURCE:TARGET=FILE or SOURCE:TARGET:NAME=FILE; the
        option may be repeated. Each line of a file has a term and, after a tab, its
        translation. Requests choose a glossary by its name; one without a name is used
        by requests that choose none. Without languages, it is for all models.
    files
        Translate files that are sent to /translate_file, as LibreTranslate does. Their
        translations are kept in memory for ten minutes.
    api_keys
        File of API keys, one per line; each request must have one of them.
    requests_per_minute
        Limit for each key or, without keys, for each address. Refused requests, such as
        those with a wrong key, count by address.
    max_characters
        Maximum number of characters of text in a request, without the markup of HTML.
    max_tokens
        Maximum number of tokens of text in a request; a rare character may be several
        tokens.
    max_waiting
        Maximum number of waiting sentences of all requests; further ones are refused.
    timeout
        Seconds within which a request is answered or refused.
    batch_size
        Maximum number of sentences translated or parsed in one batch.
    max_connections
        Maximum number of open connections. A further one replaces the one that has been
        idle longest; if all are busy, it is refused.
    client_timeout
        Seconds that a client may take to send a request's headers, and its body.
    allowed_hosts
        Host names that requests may use besides localhost, such as a proxy's. By
        default a server that only this machine reaches accepts no other name, and one
        that other machines reach accepts every name.
    cors_origins
        Sites whose pages may use the server from a browser, such as
        https://example.org, or * for all; none by default.
    trusted_proxies
        Addresses or networks of proxies whose X-Forwarded-For header is trusted for
        the client's address; none by default.
    device
        auto, cpu or cuda.
    precision
        Precision of matrix products: auto, which is fp32, and int8 for a quantized
        model on a CPU; fp32, which is exact; or bf16 or int8, which can be several
        times faster on a processor that supports them.
    shortlist
        Choose among the candidates of a model's shortlist, which `transduce shortlist`
        makes: faster, with nearly the same translations. By default as in the model's
        settings.
    processes
        Number of processes that share the sentences, each on one core; by default one
        for each core within affinity and CPU quota, at most OMP_NUM_THREADS and 16.
    no_repeat_ngram
        No sequence of so many tokens occurs twice in a translation, so that it cannot
        loop; by default each model's own setting.
    repetition_penalty
        Factor of the log-probability of each token that the translation has already;
        above 1, repetitions become less likely (Keskar et al., 2019). By default each
        model's own setting.
    """
    if not models:
        raise ConfigError(
            "At least one model must be given before the options, but none is."
        )
    with packages_for("`transduce serve`", "serve"):
        from transduce.serving import admission, connection, served_models, server
        from transduce.serving.request_queue import QueueConfig, RequestQueue
    names = [served_models.ModelName.parse(model) for model in models]
    served_models.require_distinct(names)
    glossaries = served_models.read_glossaries(glossary)
    queue_config = QueueConfig(
        max_waiting=max_waiting,
        timeout_s=timeout,
        batch_size=batch_size,
        max_tokens=max_tokens,
    )
    admission_config = admission.AdmissionConfig(
        api_keys=() if api_keys is None else admission.read_keys(api_keys),
        requests_per_minute=requests_per_minute,
        max_characters=max_characters,
        body_timeout_s=client_timeout,
        translates_files=files,
    )
    server_config = server.ServerConfig(
        connections=connection.ConnectionConfig(
            max_connections=max_connections, header_timeout_s=client_timeout
        ),
        trusted_proxies=trusted_proxies,
        answer_within_s=timeout,
    )
    access_config = admission.AccessConfig(
        allowed_hosts=allowed_hosts, cors_origins=cors_origins
    )
    if processes is None:
        processes = default_processes(choose_device(device))
    # The page, the clients and the queue need a core too. Under a quota of 1.5 cores,
    # one thread of two computes: the other half core is theirs.
    leave_a_core()
    options = {
        "no_repeat_ngram": no_repeat_ngram,
        "repetition_penalty": repetition_penalty,
        "shortlist": shortlist,
    }
    # Refuse options before a model is loaded.
    pivot = tuple(map(canonical, pivot))
    SearchConfig().given(options)
    _require_translator(
        {**options, "glossary": glossary or None, "pivot": pivot or None},
        [each.folders[0] for each in names],
    )
    with server.listen(host, port) as listener:
        served = [
            served_models.ServedModel.of(
                each,
                RequestQueue(
                    loaded(each.folders, device, precision, processes, options),
                    queue_config,
                ),
                glossaries,
            )
            for each in names
        ]
        served_models.require_usable(glossaries, served)
        written_host = f"[{host}]" if ":" in host else host
        bound, bound_port = listener.getsockname()[:2]
        address = f"http://{written_host}:{bound_port}"
        access_config = replace(access_config, is_local=admission.is_loopback(bound))
        app = server.create_app(served, admission_config, access_config, pivot)
        print(f"Serving {', '.join(m.name for m in served)} at {address}", flush=True)
        server.serve(app, listener, server_config)


def _require_translator(options: Mapping[str, Any], models: Sequence[Path]) -> None:
    """Raise `ConfigError` if options of translation are given, but all models parse."""
    given = [name for name, value in options.items() if value is not None]
    if given and all((find_model(each) / SYMBOLS_FILE).is_file() for each in models):
        raise ConfigError(
            f"{option_name(given[0])} is for models that translate, but all of these "
            "parse; leave it out."
        )


def loaded(
    folders: Sequence[Path],
    device: str,
    precision: PrecisionChoice,
    num_processes: int,
    options: Mapping[str, Any],
) -> Translator:
    """Load a model, or the models of an ensemble.

    The options that are not None change a translator's search.
    """
    translator = load(
        *folders, device=device, precision=precision, num_processes=num_processes
    )
    if translator.symbols is None:
        require_shortlist(options.get("shortlist"), translator.shortlist, folders[0])
        given = {k: value for k, value in options.items() if value is not None}
        search = replace(translator.search, **given)
        # Warn now, and not at the first request.
        translator.search = with_available_shortlist(search, translator.shortlist)
    return translator
