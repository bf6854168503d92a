"""`transduce serve`: models for others to use over HTTP, with a web page."""

from pathlib import Path

from transduce.decoding.next_token_models.ready_model import DecodingPrecision
from transduce.decoding.streaming.processes import default_processes
from transduce.decoding.translator import load
from transduce.device import choose_hardware, leave_a_core
from transduce.errors import ConfigError, RequestError
from transduce.phrases import missing_package


def serve(
    *models: str,
    host: str = "127.0.0.1",
    port: int = 5000,
    api_keys: Path | None = None,
    requests_per_minute: int | None = None,
    max_characters: int = 10_000,
    max_waiting: int = 1024,
    timeout: float = 30.0,
    batch_size: int = 64,
    device: str = "auto",
    precision: DecodingPrecision = "fp32",
    processes: int | None = None,
) -> None:
    """Translate, or parse, for others over HTTP, with a page at /.

    What speaks to LibreTranslate speaks to this. The interface is told at /docs.

    Ctrl-C or SIGTERM ends it, once what was taken is done.

    Parameters
    ----------
    models
        Model or run folders, each as FOLDER or NAME=FOLDER. A name such as en-de says
        the languages; the folder's own name is taken if none is given. Of one that
        parses it is but a name.
    host
        The address to listen at; by default nobody but this machine is answered.
    port
        0 for any that is free.
    api_keys
        A file of keys, one a line, of which each request must have one.
    requests_per_minute
        Of each key or, without keys, each address at most.
    max_characters
        Of a request at most.
    max_waiting
        Sentences that may wait, of all requests; a request too many is refused.
    timeout
        Seconds that a sentence may wait.
    batch_size
        Sentences that are translated, or parsed, together at most.
    device
        auto, cpu or cuda.
    precision
        Of matrix products: fp32 is exact; bf16 and int8 are up to several times as
        fast on a processor that is made for them.
    processes
        Copies of the program that search at the same time, each on one core, where
        there are many sentences; by default one for each core, or as many as
        OMP_NUM_THREADS says, and at most 16.
    """
    if not models:
        raise ConfigError("A model at least must be given, but none is.")
    try:
        from transduce.serving import served_models
        from transduce.serving.http import admission, server
        from transduce.serving.request_queue import QueueConfig, RequestQueue
    except ModuleNotFoundError as error:
        raise RequestError(
            missing_package("`transduce serve`", str(error.name), "serve")
        ) from None
    names = [served_models.ModelName.parse(model) for model in models]
    served_models.require_distinct(names)
    queueing = QueueConfig(
        max_waiting=max_waiting, timeout_s=timeout, batch_size=batch_size
    )
    admitting = admission.AdmissionConfig(
        api_keys=() if api_keys is None else admission.read_keys(api_keys),
        requests_per_minute=requests_per_minute,
        max_characters=max_characters,
    )
    if processes is None:
        processes = default_processes(str(choose_hardware(device).device))
    # For what is not shared out: the page, the clients and the queue need one too.
    leave_a_core()
    with server.listen(host, port) as listener:
        served = [
            served_models.ServedModel.of(
                each,
                RequestQueue(
                    load(
                        each.path,
                        device=device,
                        precision=precision,
                        num_processes=processes,
                    ),
                    queueing,
                ),
            )
            for each in names
        ]
        written_host = f"[{host}]" if ":" in host else host
        address = f"http://{written_host}:{listener.getsockname()[1]}"
        print(f"Serving {', '.join(m.name for m in served)} at {address}", flush=True)
        server.serve(server.create_app(served, admitting), listener, timeout)
