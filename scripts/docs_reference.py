"""Generate the reference pages of the documentation site from the code.

MkDocs calls this file as a hook (`hooks` in mkdocs.yml). It adds the pages of
commands, settings, presets, Python and HTTP, and the files of benchmarks/results; it
fills the sections of the navigation that name a folder; and it turns formulas into
MathML, so that the site needs no script for them.
"""

import html
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import cache
from importlib import import_module
from pathlib import Path, PurePosixPath
from typing import Any

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
RESULTS = ROOT / "benchmarks" / "results"
HELP_COLUMNS = 100
"""Width at which a command's help is read; it is never wider."""
PARTS = {"reproduce", "benchmark"}
"""Commands that are several."""


# Commands


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """An option or argument of a command, as its help describes it."""

    label: str
    """All names and the kind of value: `--out PATH`."""
    meaning: str
    default: str = ""
    choices: tuple[str, ...] = ()
    is_required: bool = False


@dataclass(slots=True, kw_only=True)
class Help:
    """Content of a command's `--help`."""

    usage: str
    paragraphs: list[str] = field(default_factory=list)
    examples: list[str] = field(default_factory=list)
    panels: dict[str, list[Option]] = field(default_factory=dict)
    """Options by the title above them: Arguments, Parameters, ..."""


@cache
def help_text(*command: str) -> str:
    """Help of a command, as a terminal of `HELP_COLUMNS` columns shows it."""
    environment = {
        **os.environ,
        "COLUMNS": str(HELP_COLUMNS),
        "NO_COLOR": "1",
        "PYTHONPATH": os.pathsep.join(
            [str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]
        ),
    }
    done = subprocess.run(
        [sys.executable, "-m", "transduce", *command, "--help"],
        capture_output=True,
        text=True,
        check=True,
        env=environment,
    )
    return done.stdout


def read_help(text: str) -> Help:
    """Parse the help of a command: usage, paragraphs, examples and panels."""
    blocks = re.split(r"\n\s*\n", text.strip("\n"))
    read = Help(usage=" ".join(blocks[0].removeprefix("Usage:").split()))
    for block in blocks[1:]:
        first, *others = block.split("\n")
        if re.fullmatch(r"\S.*:", first) and others:
            read.panels[first.removesuffix(":")] = list(_options(others))
        elif first.startswith("  "):
            read.examples += _joined_examples(block.split("\n"))
        else:
            read.paragraphs.append(" ".join(block.split()))
    return read


def _joined_examples(lines: Sequence[str]) -> list[str]:
    """Command lines; a wrapped one is indented deeper from its second line on."""
    examples: list[str] = []
    for line in lines:
        if line.startswith("    ") and examples:
            examples[-1] += f" {line.strip()}"
        else:
            examples.append(line.strip())
    return examples


def _options(lines: Sequence[str]) -> Iterator[Option]:
    entries: list[list[str]] = []
    for line in lines:
        if re.match(r"  \S", line):
            entries.append([line])
        else:
            entries[-1].append(line)
    for first, *others in entries:
        label, _, beside = first.strip().partition("  ")
        words = " ".join([beside, *others]).split()
        yield _option(label, " ".join(words))


def _option(label: str, text: str) -> Option:
    """Split the bracketed notes off the end of a description."""
    notes: dict[str, str] = {}
    while match := re.search(r"\s*\[(required|(?:default|choices): [^\]]*)\]$", text):
        name, _, value = match[1].partition(": ")
        notes[name] = value
        text = text[: match.start()]
    return Option(
        label=label,
        meaning=text,
        default=notes.get("default", ""),
        choices=tuple(notes.get("choices", "").split(", "))
        if "choices" in notes
        else (),
        is_required="required" in notes,
    )


@cache
def command_groups() -> dict[str, list[Option]]:
    """Commands by their group in `transduce --help`."""
    groups = read_help(help_text()).panels
    return {title: found for title, found in groups.items() if title != "Options"}


def commands() -> list[str]:
    """Names of all commands, in the order of the help."""
    return [option.label for group in command_groups().values() for option in group]


def command_page(name: str) -> str:
    """Page of a command: usage, examples and all options."""
    read = read_help(help_text(name))
    lines = [f"# transduce {name}", ""]
    if name in PARTS:
        [parts] = read.panels.values()
        lines += [*read.paragraphs, ""]
        for part in parts:
            lines += [f"## {name} {part.label}", ""]
            lines += _described(read_help(help_text(name, part.label)), level=3)
    else:
        lines += _described(read, level=2)
    return "\n".join(lines)


def _described(read: Help, level: int) -> list[str]:
    paragraphs = [text for text in read.paragraphs if not text.endswith(":")]
    lines = []
    for paragraph in paragraphs:
        lines += [_plain_markdown(paragraph), ""]
    lines += ["```text", read.usage, "```", ""]
    if read.examples:
        lines += [
            "For example:",
            "",
            "```sh",
            *(_folded(each) for each in read.examples),
            "```",
            "",
        ]
    for title, options in read.panels.items():
        lines += [f"{'#' * level} {title}", ""]
        lines += ['<dl class="options">', *map(_as_html, options), "</dl>", ""]
    return lines


def _folded(command: str, width: int = 80) -> str:
    """A long command line on several lines, before options."""
    lines = [""]
    for part in re.split(r" (?=--|\| )", command):
        if lines[-1] and len(lines[-1]) + len(part) + 3 > width:
            lines.append(f"    {part}")
        else:
            lines[-1] += f" {part}" if lines[-1] else part
    return " \\\n".join(lines)


def _as_html(option: Option) -> str:
    notes = []
    if option.is_required:
        notes.append("required")
    if option.choices:
        notes.append(
            "one of " + ", ".join(f"<code>{_quoted(c)}</code>" for c in option.choices)
        )
    if option.default:
        notes.append(f"default <code>{_quoted(option.default)}</code>")
    return definition(option.label, notes, option.meaning)


def definition(name: str, notes: Sequence[str], meaning: str, anchor: str = "") -> str:
    """Entry of a definition list: a name in code, notes, and what it means."""
    said = f' <span class="note">{"; ".join(notes)}</span>' if notes else ""
    place = f' id="{anchor}"' if anchor else ""
    return (
        f"<dt{place}><code>{_quoted(name)}</code>{said}</dt><dd>{inline(meaning)}</dd>"
    )


def inline(text: str) -> str:
    """Text with `code` between backticks, as HTML."""
    pieces = _quoted(" ".join(text.split())).split("`")
    if len(pieces) % 2 == 0:
        return "`".join(pieces)
    return "".join(
        f"<code>{piece}</code>" if i % 2 else piece for i, piece in enumerate(pieces)
    )


def _quoted(text: str) -> str:
    return html.escape(text, quote=False)


def _plain_markdown(text: str) -> str:
    """Plain text that Markdown would read as markup, escaped."""
    return re.sub(r"([<*_])", r"\\\1", text)


COMMANDS = """\
Every command has `--help`. Nothing half-written stays behind: outputs appear whole, or
as `OUTPUT.part`. [Exit codes](../index.md#exit-codes) tell success from errors.
"""


def command_index() -> str:
    """Page with all commands, by group."""
    lines = ["# Commands", "", COMMANDS]
    for title, options in command_groups().items():
        lines += [f"## {title}", "", "| command | |", "|---|---|"]
        lines += [
            f"| [`transduce {o.label}`]({o.label}.md) | {o.meaning} |" for o in options
        ]
        lines.append("")
    return "\n".join(lines)


# Settings and presets


def settings_page() -> str:
    """Page of all settings: type, default of a run without preset, and meaning."""
    from transduce.architectures.config import CONFIGS, TRANSFORMER
    from transduce.cli.settings import repeated_tables, setting_tables
    from transduce.experiments.presets import RunConfig

    lines = [
        "# Settings",
        "",
        "A setting is changed by `--set model.dropout=0.2`, or in a TOML file that "
        "`--config` names, where each section below is a table. The defaults here hold "
        "where neither a [preset](presets.md) nor you set another value. "
        "`transduce settings PRESET` prints them with a preset's values. "
        "[How to set them](../how-to/settings.md).",
        "",
    ]
    for table in setting_tables():
        lines += [f"## {table.name}", "", table.meaning, ""]
        lines += _definitions(table, "")
    lines += [
        "## Mixtures of corpora",
        "",
        "These tables stand in a TOML file only, once for each corpus and each stage; "
        "[how to mix corpora](../how-to/mixtures.md) has an example.",
        "",
    ]
    for table in repeated_tables():
        lines += [f"### `[[{table.name}]]`", "", table.meaning, ""]
        lines += _definitions(table, "")
    lines += [
        "## Other architectures",
        "",
        "A preset of another architecture has these tables in place of `model`; "
        "[the paper's rivals](../rivals.md) describes the architectures.",
        "",
    ]
    for name, kind in CONFIGS.items():
        if name == TRANSFORMER:
            continue
        for table in setting_tables(replace(RunConfig(), model=kind())):
            if table.name.split(".")[0] == "model":
                lines += [f"### {name}: {table.name}", ""]
                lines += _definitions(table, f"{name}.")
    return "\n".join(lines)


def _definitions(table: Any, prefix: str) -> Iterator[str]:
    """Definitions of a table's settings, whose anchors begin with a prefix."""
    yield '<dl class="options">'
    for setting in table.settings:
        kind = setting.type
        if setting.choices:
            choices = ", ".join(f"<code>{each}</code>" for each in setting.choices)
            kind = f"one of {choices}" + (" or none" if "none" in kind else "")
        if setting.is_required:
            default = "required"
        else:
            default = f"default <code>{_quoted(toml(setting.default))}</code>"
        anchor = f"{prefix}{setting.name}"
        yield definition(setting.name, [kind, default], setting.meaning, anchor)
    yield from ("</dl>", "")


def toml(value: Any) -> str:
    """Value as a settings file writes it; none for None."""
    return "none" if value is None else json.dumps(value, ensure_ascii=False)


def presets_page() -> str:
    """Page of all presets: sizes side by side, and the settings that differ."""
    from transduce.architectures.config import TRANSFORMER, architecture_of
    from transduce.cli.presets import preset_summaries
    from transduce.cli.settings import changed_settings
    from transduce.experiments.presets import PRESETS, RunConfig

    summaries = list(preset_summaries())
    lines = [
        "---",
        "hide: [toc]",
        "---",
        "",
        "# Presets",
        "",
        "`transduce train --preset NAME` takes one. Without `--preset`, `train` takes "
        "`base` (for trees `parsing-wsj`) if the corpus is large enough and training "
        "ends within a week, and otherwise proposes a preset that fits. "
        "`transduce presets` prints this list.",
        "",
        "Parameters are those of the full vocabulary; tokens are the target tokens of "
        "an update.",
    ]
    for group in dict.fromkeys(summary.group for summary in summaries):
        lines += ["", f"## {group}", ""]
        lines += [
            f"| preset | for | {' | '.join(SIZES)} |",
            "|---|---" + "|--:" * 8 + "|",
        ]
        for each in summaries:
            if each.group == group:
                config = PRESETS[each.name]
                # Other architectures do not have all sizes of a Transformer.
                names = ("num_layers", "d_model", "d_ff", "num_heads")
                layers = getattr(config.model, "encoder_layers", None)
                numbers = (
                    getattr(config.model, names[0], layers),
                    *(getattr(config.model, name, None) for name in names[1:]),
                    config.tokenizer.vocab_size,
                    each.steps,
                    each.target_tokens,
                    each.num_parameters,
                )
                sizes = " | ".join("–" if n is None else f"{n:,}" for n in numbers)
                name = f"[`{each.name}`](#{each.name.lower()})"
                lines.append(f"| {name} | {each.purpose} | {sizes} |")
    lines += ["", "## The settings of each", ""]
    lines += ["Settings that differ from the [defaults](settings.md).", ""]
    for each in summaries:
        lines += [f"### {each.name} {{ #{each.name.lower()} }}", ""]
        config = PRESETS[each.name]
        if (architecture := architecture_of(config.model)) != TRANSFORMER:
            place = f"settings.md#{architecture}-model"
            lines += [f"The architecture is [{architecture}]({place}).", ""]
        changes = list(changed_settings(config, RunConfig()))
        tables = dict.fromkeys(setting.table for setting in changes)
        lines += ["```toml"] if changes else ["All settings have their defaults."]
        for table in tables:
            lines.append(f"[{table}]")
            lines += [
                f"{setting.key} = {toml(setting.value)}"
                for setting in changes
                if setting.table == table
            ]
        lines += ["```", ""] if changes else [""]
    return "\n".join(lines)


SIZES = (
    *("layers", "d_model", "d_ff", "heads", "vocabulary"),
    *("updates", "tokens", "parameters"),
)
"""Columns of the presets' table."""


# Python and HTTP


PYTHON = """\
# Python

The public names of `transduce`, as `dir(transduce)` lists them. Names that are neither
there nor on this page may change from one version to the next.

```python
import transduce

translator = transduce.load("runs/mine")
for translation in translator.translate(["A dog runs."], beam_size=4):
    print(translation.text, translation.score)
```

`translate`, `sample`, `score`, `align` and `parse` take a list and return a list; a
string is one sentence, and its result is returned alone:
`translator.translate("A dog runs.").text`. `translate_stream` and `sample_stream` take
any number of lines and return an iterator.
"""


PYTHON_MORE = """\
## In a larger program

A call leaves as they were: the random numbers of Python, NumPy and PyTorch, PyTorch's
default dtype, default device, autocast and gradient mode, logging, and the handlers of
signals. Several threads may use one translator, and train at the same time.

While a training runs in the main thread, Ctrl-C and SIGTERM stop it after an update:
it is saved, and `TrainingStoppedError` is raised. A second Ctrl-C interrupts it at
once. In other threads, a training does not handle signals.

This stays changed:

- `import transduce` sets `GOMP_SPINCOUNT=1000`, and on a CPU `load` and `train` reduce
  the number of threads to the CPU quota
  ([threads](../how-to/many-processes.md#threads-containers-and-busy-machines));
- on a CPU, the process keeps memory that it has freed, for the next translation or
  update;
- on a GPU, `load` and `train` make it PyTorch's current one, and turn off cuDNN's
  attention.

Warnings are of the class `TransduceWarning`, and name the line that calls transduce.
The logger `transduce` receives the reports of a training.

## Draw and score

```python
config = transduce.SamplingConfig(number=5, temperature=0.8)
draws = translator.sample(lines, config)  # five translations of each line, at random
scores = translator.score(sources, targets)  # log-probabilities of given translations
links = translator.align(sources, targets)  # their words beside those of the sources
tree = transduce.load("runs/parser").parse("The old lamp fell.").tree
```

## Search of your own models

These functions work with any model. They take a `Decoder`, such as
`translator.models[0].start(encoded)`, where `encode` of the same model encodes lists of
ids, each with its end token.
"""
RETURNED = (
    *("decoding.translations.TranslationHypothesis", "decoding.parser.Parse"),
    *("metrics.scores.TargetScore", "decoding.alignment.WordAlignment"),
    *("experiments.pipeline.RunResult",),
    *("experiments.dev_corpus.DevScore", "experiments.dev_corpus.Quality"),
    *("experiments.synthetic_text.BackTranslation", "data.cleaning.CleaningReport"),
    *("experiments.distillation.Distillation", "model_folder.QuantizedModel"),
)
"""Classes of what public functions return, below `transduce`."""
TAKEN = (
    *("data.cleaning_rules.CleaningConfig", "experiments.pipeline.RunObserver"),
    *("experiments.distillation.DistillationObserver", "decoding.translations.Pace"),
)
"""Classes of what public functions take, below `transduce`."""
REPORTED = ("experiments.pipeline.RunStart", "training.trainer.StepReport")
"""Classes of what methods of observers receive, below `transduce`."""
ERRORS = (
    *(f"errors.{name}Error" for name in ("Config", "Data", "Checkpoint", "Request")),
    *(f"training.trainer.{name}Error" for name in ("TrainingStopped", "Diverged")),
)
FIRST = ("load", "Translator", "train", "resume")
"""Public names that the page begins with."""
SEARCH = ("search.Decoder", "beam_search.beam_search", "beam_search.greedy_search")


def python_page() -> str:
    """Page of the public names, which mkdocstrings fills."""
    import transduce

    names = [name for name in transduce.__all__ if not name.startswith("__")]
    order = [*FIRST, *(name for name in names if name not in FIRST)]
    public = [f"::: transduce.{name}\n" for name in order]
    options = "    options:\n      heading_level: 3\n"
    search = [f"::: transduce.decoding.{name}\n{options}" for name in SEARCH]
    more = []
    for title, paragraph, classes in (
        ("Results", "What the functions above return.", RETURNED),
        ("Arguments", "Objects that some of them take.", TAKEN),
        ("Reports", "What observers of a training receive.", REPORTED),
        (
            "Errors",
            "All are kinds of `TransduceError`. The last two are imported from "
            "`transduce.training.trainer`, the others from `transduce.errors`.",
            ERRORS,
        ),
    ):
        more += [f"## {title}\n\n{paragraph}\n"]
        more += [f"::: transduce.{name}\n{options}{_content(name)}" for name in classes]
    queue = (
        "## Translations for many callers\n\nA server of your own: "
        "[how to use it](../how-to/serve.md#the-same-in-your-own-program).\n\n"
        f"::: transduce.serving.request_queue.RequestQueue\n{options}"
    )
    return "\n".join([PYTHON, *public, *more, PYTHON_MORE, *search, queue])


def _content(name: str) -> str:
    """Option that shows fields and properties only, if a class is a dataclass."""
    module, _, own_name = name.rpartition(".")
    kind = getattr(import_module(f"transduce.{module}"), own_name)
    if not is_dataclass(kind):
        return ""
    shown = [each.name for each in fields(kind)]
    shown += [key for key, value in vars(kind).items() if isinstance(value, property)]
    return f"      members: {json.dumps(shown)}\n"


def http_page() -> str:
    """Page of the HTTP interface, from the server's OpenAPI document."""
    from transduce.serving.server import create_app, examples

    openapi = create_app([]).openapi()
    bodies = examples([])
    lines = [
        "# HTTP",
        "",
        "The interface of `transduce serve`. LibreTranslate clients work unchanged. A "
        "running server has the same description at `/docs`, with forms to try each "
        "path, and as OpenAPI at `/openapi.json`. [How to serve](../how-to/serve.md).",
        "",
    ]
    for path, operations in openapi["paths"].items():
        for method, operation in operations.items():
            lines += [f"## {method.upper()} {path}", ""]
            lines += [str(operation["description"]), ""]
            lines += _curl(path, bodies.get(path))
            lines += _body(operation)
            lines += _answers(operation)
    lines += ["## Refusals", "", *_refusals(openapi["paths"])]
    lines += ["## Kinds of answers", ""]
    for name, schema in openapi["components"]["schemas"].items():
        lines += [f"### {name}", "", str(schema.get("description", "")), ""]
        lines += _properties(schema)
    return "\n".join(lines)


def _curl(path: str, body: Any) -> list[str]:
    address = f"http://127.0.0.1:5000{path}"
    if body is None:
        return ["```sh", f"curl {address}", "```", ""]
    fields_ = [f'"{k}": {json.dumps(v, ensure_ascii=False)}' for k, v in body.items()]
    text = "{" + ",\n         ".join(fields_) + "}"
    header = "content-type: application/json"
    return ["```sh", f"curl {address} -H '{header}' \\", f"    -d '{text}'", "```", ""]


def _body(operation: Mapping[str, Any]) -> list[str]:
    if "requestBody" not in operation:
        return []
    kinds = operation["requestBody"]["content"]
    named = " or ".join(f"`{each}`" for each in kinds)
    first, *_ = kinds.values()
    return [f"The body is {named}:", "", *_properties(first["schema"])]


def _answers(operation: Mapping[str, Any]) -> list[str]:
    answers = dict(operation["responses"])
    bodies = [
        f"{schema_kind(content['schema'])} as `{name}`"
        for name, content in answers.pop("200").get("content", {}).items()
        if "schema" in content
    ]
    said = f"The answer is {', '.join(bodies) if bodies else 'text'}"
    said = said.replace("is list of", "is a list of")
    return [
        f"{said}, or one of the [refusals](#refusals)." if answers else f"{said}.",
        "",
    ]


def _refusals(paths: Mapping[str, Any]) -> list[str]:
    """Table of all statuses but 200, which are the same for all paths."""
    said = {
        status: answer["description"]
        for operations in paths.values()
        for operation in operations.values()
        for status, answer in operation["responses"].items()
        if status != "200"
    }
    rows = [f"| {status} | {said[status]} |" for status in sorted(said)]
    intro = "The body of each is a [Refusal](#refusal) as `application/json`."
    return [intro, "", "| status | when |", "|---|---|", *rows, ""]


def _properties(schema: Mapping[str, Any]) -> list[str]:
    entries = []
    for name, each in schema.get("properties", {}).items():
        notes = [schema_kind(each, link=False)]
        if name in schema.get("required", ()):
            notes.append("required")
        elif each.get("default") is not None:
            default = json.dumps(each["default"], ensure_ascii=False)
            notes.append(f"default <code>{_quoted(default)}</code>")
        entries.append(definition(name, notes, each.get("description", "")))
    return ['<dl class="options">', *entries, "</dl>", ""]


def schema_kind(schema: Mapping[str, Any], link: bool = True) -> str:
    """Kind of a JSON value, in words; a link to the schema that it refers to."""
    match schema:
        case {"anyOf": kinds}:
            words = " or ".join(schema_kind(each, link) for each in kinds)
        case {"enum": values}:
            words = " or ".join(f"<code>{json.dumps(each)}</code>" for each in values)
        case {"const": value}:
            words = f"<code>{json.dumps(value)}</code>"
        case {"$ref": address}:
            name = str(address).rpartition("/")[2]
            place = f"#{name.lower()}"
            words = f"[{name}]({place})" if link else f'<a href="{place}">{name}</a>'
        case {"type": "array", "items": items}:
            words = f"list of {schema_kind(items, link)}"
        case _:
            words = str(schema.get("type", "text"))
    return words


def reference_pages() -> dict[str, str]:
    """All generated pages, by their path in the site."""
    pages = {
        "reference/commands/index.md": command_index(),
        "reference/settings.md": settings_page(),
        "reference/presets.md": presets_page(),
        "reference/python.md": python_page(),
        "reference/http.md": http_page(),
    }
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for name, page in zip(
            commands(), pool.map(command_page, commands()), strict=True
        ):
            pages[f"reference/commands/{name}.md"] = page
    return pages


# What MkDocs calls


def on_config(config: Any) -> Any:
    """Fill the sections of the navigation that name a folder; drop empty ones."""
    filled = []
    for section in config.nav:
        [(title, value)] = section.items()
        if isinstance(value, str) and value.endswith("/"):
            folder = value.removesuffix("/")
            value = _reference_nav() if folder == "reference" else _folder_nav(folder)
        if value:
            filled.append({title: value})
    config.nav = filled
    return config


def _reference_nav() -> list[Any]:
    """Navigation of the reference: commands by group, then all else."""
    return [
        "reference/index.md",
        {
            "Commands": [
                "reference/commands/index.md",
                *(f"reference/commands/{name}.md" for name in commands()),
            ]
        },
        "reference/settings.md",
        "reference/presets.md",
        "reference/python.md",
        "reference/http.md",
        "reference/files.md",
        "reference/json.md",
    ]


LAST = ("unsaid", "departures")
"""Pages of a folder that stand after the others."""


def _folder_nav(folder: str) -> list[str]:
    """Pages of a folder: its index, the others by name, and those that come last."""
    pages = {
        path.stem: f"{folder}/{path.name}" for path in (DOCS / folder).glob("*.md")
    }
    if folder == "results":
        pages |= {PurePosixPath(page).stem: page for page in result_pages()}
    index = [pages.pop("index")] if "index" in pages else []
    last = [pages.pop(name) for name in LAST if name in pages]
    return [*index, *(pages[name] for name in sorted(pages)), *last]


def result_pages() -> list[str]:
    """Paths in the site of the pages in benchmarks/results."""
    return [
        f"results/{path.relative_to(RESULTS).as_posix()}"
        for path in sorted(RESULTS.rglob("*.md"))
    ]


def on_files(files: Any, config: Any) -> Any:
    """Add the generated pages and the files of benchmarks/results."""
    from mkdocs.structure.files import File

    for path, content in reference_pages().items():
        files.append(File.generated(config, path, content=content))
    for source in sorted(RESULTS.rglob("*")):
        if source.is_file():
            path = f"results/{source.relative_to(RESULTS).as_posix()}"
            files.append(File.generated(config, path, abs_src_path=str(source)))
    return files


def on_template_context(context: Any, template_name: str, config: Any) -> Any:
    """Let the page for missing addresses find its styles where it is read from a file.

    MkDocs begins its links with the path of `site_url`, since a server shows the page
    at any depth. A site without that address is read from files.
    """
    if template_name == "404.html" and not config.site_url:
        context["base_url"] = "."
    return context


LATER_FOUND = ("changelog.md", "contributing.md")
"""Pages that search lists after those that explain things, as it does the results."""
INCLUDED = re.compile(r"^--8<-- \"([A-Z]+\.md)\"$", re.MULTILINE)
"""A page of the repository's root that a page of the site consists of."""
MARKS = re.compile(r"^<!-- (?:run|file|output)\b.*-->\n", re.MULTILINE)
"""Comments that tell the test of the tutorials what to do with a block of code."""
LINK_OUT = re.compile(
    r"(\[(?:[^\[\]]|\[[^\]]*\])*\])\(((?:\.\./)+[^)#\s]+)(#[^)\s]*)?\)"
)


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Leave out the marks of the tests, and adapt links to files outside docs/.

    Links to benchmarks/results lead to its pages in the site, those to other files of
    the repository to their place there, or nowhere while `repo_url` is unknown.
    """
    here = PurePosixPath(page.file.src_uri).parent
    if str(here).startswith("results") or page.file.src_uri in LATER_FOUND:
        page.meta.setdefault("search", {"boost": 0.3})

    def adapted(match: re.Match[str]) -> str:
        text, target, anchor = match[1], match[2], match[3] or ""
        path = os.path.normpath(str(PurePosixPath("docs") / here / target))
        if path.startswith("docs/"):
            return match[0]
        if path.startswith("benchmarks/results"):
            path = path.replace("benchmarks/results", "results", 1)
            path = f"{path}/index.md" if path == "results" else path
            return f"{text}({os.path.relpath(path, here)}{anchor})"
        if config.repo_url:
            return f"{text}({config.repo_url.rstrip('/')}/blob/main/{path}{anchor})"
        return text[1:-1]

    whole = INCLUDED.sub(lambda match: _from_root(match[1]), markdown)
    return LINK_OUT.sub(adapted, MARKS.sub("", whole))


def _from_root(name: str) -> str:
    """Text of a page at the root, its links as from a page in docs/."""
    text = (ROOT / name).read_text(encoding="utf-8")
    return re.sub(r"\]\((?!https?:|#)", "](../", text)


FORMULA = re.compile(
    r'<(?P<tag>span|div) class="arithmatex">\\[(\[](?P<formula>.*?)\\[)\]]</(?P=tag)>',
    re.DOTALL,
)

LETTERS = re.compile(r'(?:<mi mathvariant="normal">\w</mi>){2,}')
"""A name such as softmax, as the converter writes it: letter by letter."""
FUNCTION = re.compile(
    r"(?P<before><msub>|</mi>)?(?P<name><mi>(?:sin|cos|log|ln)</mi>)(?P<after>(?=<m[in]>))?"
)
"""A function, and whether its base or a factor is before it, an argument after it."""
SPACE = '<mspace width="0.17em"></mspace>'

OPTION = re.compile(
    r"<pre\b.*?</pre>|<[^>]*>|(?P<option>(?<![\w-])--[a-z][\w-]*)", re.DOTALL
)
"""An option in running text, or what is skipped: blocks of code, and tags."""

CELL = re.compile(r"<t[dh]\b.*?</t[dh]>", re.DOTALL)
EMPTY_TITLE = re.compile(r"<th\b[^>]*>\s*</th>")
CELL_CODE = re.compile(r"<code>(.*?)</code>", re.DOTALL)
LONGEST_CODE = 40
"""Most characters of code that a cell of a table keeps on one line."""
LONG_TEXT = 60
"""Characters from which a cell has text that needs more room than a number."""


def on_page_content(content: str, page: Any, config: Any, files: Any) -> str:
    """Turn the formulas of a page into MathML, which browsers show without a script.

    Options such as `--dev-source` get a class, so that lines do not break within them.
    So does long code in a table, which must break, or else it takes the width of the
    columns beside it; and a cell of long text, which needs room on a narrow screen.
    """
    from latex2mathml.converter import convert

    def shown(match: re.Match[str]) -> str:
        display = "inline" if match["tag"] == "span" else "block"
        formula = convert(html.unescape(match["formula"]).strip(), display=display)
        formula = FUNCTION.sub(_with_space, LETTERS.sub(_as_word, formula))
        # A block of its own: it scrolls where the page is too narrow.
        return f'<p class="formula">{formula}</p>' if display == "block" else formula

    def unbroken(match: re.Match[str]) -> str:
        option = match["option"]
        return f'<span class="option">{option}</span>' if option else match[0]

    content = CELL.sub(lambda cell: _cell(cell[0]), content)
    return OPTION.sub(unbroken, FORMULA.sub(shown, content))


EDGE = re.compile(
    r"(TokenSet\.prototype\.toString=function\(\)\{.{1,300}?\w\.id)(\}return)"
)
"""End of the loop by which the search names a node: label and number of each edge."""


def on_post_build(config: Any) -> None:
    """Separate the edges in the names of nodes in the script of the search.

    Without a separator, the edge 1 to node 23 and the edge 12 to node 3 look alike. The
    search then merges different nodes, finds words that no page has, and fails: a query
    such as "table 3" has no result.
    """
    [path] = Path(config["site_dir"]).glob("assets/javascripts/workers/search.*.js")
    script, count = EDGE.subn(r'\1+","\2', path.read_text(encoding="utf-8"))
    if count != 1:
        raise ValueError(f"{path}: the names of nodes must be built once, not {count}x")
    path.write_text(script, encoding="utf-8")


def _as_word(letters: re.Match[str]) -> str:
    """A name in one element, which a screen reader does not spell."""
    return f"<mi>{re.sub('<[^>]*>', '', letters[0])}</mi>"


def _with_space(found: re.Match[str]) -> str:
    """A function with the space that separates it from letters and numbers."""
    before, name, after = found["before"] or "", found["name"], found["after"]
    if before == "<msub>":  # what follows is the base of the logarithm
        return found[0]
    left = SPACE if before else ""
    return f"{before}{left}{name}{'' if after is None else SPACE}"


def on_post_page(output: str, page: Any, config: Any) -> str:
    """Name the dialog of the search, which the theme leaves without a name."""
    return output.replace(' role="dialog">', ' role="dialog" aria-label="Search">', 1)


def _cell(cell: str) -> str:
    if EMPTY_TITLE.fullmatch(cell):  # it is no title of its column
        return "<td></td>"
    cell = CELL_CODE.sub(_cell_code, cell)
    is_long = len(html.unescape(re.sub(r"<[^>]*>", "", cell))) >= LONG_TEXT
    return cell.replace("<td", '<td class="text"', 1) if is_long else cell


def _cell_code(match: re.Match[str]) -> str:
    """Code in a table, without the backslash that Markdown needs before `|` there."""
    code = match[1].replace(r"\|", "|")
    is_long = len(html.unescape(code)) > LONGEST_CODE
    return f'<code class="long">{code}</code>' if is_long else f"<code>{code}</code>"
