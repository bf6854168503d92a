"""Translate a file by a server, each sentence as soon as it is translated.

    transduce serve en-de=runs/mine &
    python examples/client.py letter.txt

This needs nothing but Python's standard library. TRANSDUCE_URL is the server's address,
TRANSDUCE_KEY a key if the server was started with --api-keys.
"""

import json
import os
import sys
from collections.abc import Iterator
from http.client import HTTPException, HTTPResponse, IncompleteRead
from pathlib import Path
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

URL = os.environ.get("TRANSDUCE_URL", "http://127.0.0.1:5000")
KEY = os.environ.get("TRANSDUCE_KEY", "")


def translate(text: str) -> Iterator[str]:
    """Translations of a text's sentences, and the white space between them, in order.

    `RuntimeError` if the server refuses the text or fails, or cannot be reached.
    """
    body = json.dumps({"q": text}).encode()
    headers = {"Content-Type": "application/json"}
    if KEY:
        headers["Authorization"] = f"Bearer {KEY}"
    try:
        request = Request(f"{URL}/v1/translate", data=body, headers=headers)
        with urlopen(request, timeout=60) as answer:
            for line in lines(answer):
                part = json.loads(line)
                if "error" in part:
                    raise RuntimeError(part["error"])
                yield part["translation"]
    except HTTPError as refusal:
        raise RuntimeError(reason(refusal)) from None
    except URLError as problem:
        raise RuntimeError(f"{URL} cannot be reached: {problem.reason}.") from None
    except (HTTPException, OSError, ValueError, TypeError, KeyError) as problem:
        message = f"{URL}: no whole answer of a server of transduce came: {problem}."
        raise RuntimeError(message) from None


def lines(answer: HTTPResponse) -> Iterator[bytes]:
    """Lines of an answer as they come; `IncompleteRead` if it is cut.

    The answer's own iterator would end without an error.
    """
    rest = b""
    while data := answer.read1():
        *whole, rest = (rest + data).split(b"\n")
        yield from whole
    if rest:
        yield rest
    if answer.length:
        raise IncompleteRead(b"", answer.length)


def reason(refusal: HTTPError) -> str:
    """The server's sentence, or the status if a proxy before it refuses the text."""
    try:
        return json.load(refusal)["error"]
    except (ValueError, TypeError, KeyError):
        return f"{refusal.code} {refusal.reason}"


def main() -> None:
    """Print the translation of the file that the command line names."""
    if len(sys.argv) != 2:
        sys.exit("One argument must be given, the file to translate.")
    try:
        for part in translate(Path(sys.argv[1]).read_text(encoding="utf-8")):
            print(part, end="", flush=True)
    except UnicodeDecodeError as error:
        sys.exit(f"{sys.argv[1]}: the text must be UTF-8, but is not: {error}.")
    except (RuntimeError, OSError) as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
