"""Languages as BCP 47 tags, and scripts without spaces between words.

Tags are read, compared, named, and guessed from file names. Scripts are ranges of
Unicode, so that Python's `re` and every regular expression engine that reads a
`tokenizer.json` agree on them.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from itertools import chain
from pathlib import Path, PurePath
from unicodedata import category

from transduce.errors import ConfigError
from transduce.settings import convert_and_check
from transduce.text.corpus import ENDINGS

NAMES = {
    "aa": "Afar", "ab": "Abkhazian", "ae": "Avestan", "af": "Afrikaans", "ak": "Akan",
    "am": "Amharic", "an": "Aragonese", "ar": "Arabic", "as": "Assamese",
    "av": "Avaric", "ay": "Aymara", "az": "Azerbaijani", "ba": "Bashkir",
    "be": "Belarusian", "bg": "Bulgarian", "bi": "Bislama", "bm": "Bambara",
    "bn": "Bangla", "bo": "Tibetan", "br": "Breton", "bs": "Bosnian", "ca": "Catalan",
    "ce": "Chechen", "ch": "Chamorro", "co": "Corsican", "cr": "Cree", "cs": "Czech",
    "cu": "Church Slavic", "cv": "Chuvash", "cy": "Welsh", "da": "Danish",
    "de": "German", "dv": "Dhivehi", "dz": "Dzongkha", "ee": "Ewe", "el": "Greek",
    "en": "English", "eo": "Esperanto", "es": "Spanish", "et": "Estonian",
    "eu": "Basque", "fa": "Persian", "ff": "Fulah", "fi": "Finnish", "fj": "Fijian",
    "fo": "Faroese", "fr": "French", "fy": "Western Frisian", "ga": "Irish",
    "gd": "Scottish Gaelic", "gl": "Galician", "gn": "Guarani", "gu": "Gujarati",
    "gv": "Manx", "ha": "Hausa", "he": "Hebrew", "hi": "Hindi", "ho": "Hiri Motu",
    "hr": "Croatian", "ht": "Haitian Creole", "hu": "Hungarian", "hy": "Armenian",
    "hz": "Herero", "ia": "Interlingua", "id": "Indonesian", "ie": "Interlingue",
    "ig": "Igbo", "ii": "Sichuan Yi", "ik": "Inupiaq", "io": "Ido", "is": "Icelandic",
    "it": "Italian", "iu": "Inuktitut", "ja": "Japanese", "jv": "Javanese",
    "ka": "Georgian", "kg": "Kongo", "ki": "Kikuyu", "kj": "Kuanyama", "kk": "Kazakh",
    "kl": "Kalaallisut", "km": "Khmer", "kn": "Kannada", "ko": "Korean",
    "kr": "Kanuri", "ks": "Kashmiri", "ku": "Kurdish", "kv": "Komi", "kw": "Cornish",
    "ky": "Kyrgyz", "la": "Latin", "lb": "Luxembourgish", "lg": "Ganda",
    "li": "Limburgish", "ln": "Lingala", "lo": "Lao", "lt": "Lithuanian",
    "lu": "Luba-Katanga", "lv": "Latvian", "mg": "Malagasy", "mh": "Marshallese",
    "mi": "Māori", "mk": "Macedonian", "ml": "Malayalam", "mn": "Mongolian",
    "mr": "Marathi", "ms": "Malay", "mt": "Maltese", "my": "Burmese", "na": "Nauru",
    "nb": "Norwegian Bokmål", "nd": "North Ndebele", "ne": "Nepali", "ng": "Ndonga",
    "nl": "Dutch", "nn": "Norwegian Nynorsk", "no": "Norwegian",
    "nr": "South Ndebele", "nv": "Navajo", "ny": "Nyanja", "oc": "Occitan",
    "oj": "Ojibwa", "om": "Oromo", "or": "Odia", "os": "Ossetic", "pa": "Punjabi",
    "pi": "Pali", "pl": "Polish", "ps": "Pashto", "pt": "Portuguese", "qu": "Quechua",
    "rm": "Romansh", "rn": "Rundi", "ro": "Romanian", "ru": "Russian",
    "rw": "Kinyarwanda", "sa": "Sanskrit", "sc": "Sardinian", "sd": "Sindhi",
    "se": "Northern Sami", "sg": "Sango", "si": "Sinhala", "sk": "Slovak",
    "sl": "Slovenian", "sm": "Samoan", "sn": "Shona", "so": "Somali", "sq": "Albanian",
    "sr": "Serbian", "ss": "Swati", "st": "Southern Sotho", "su": "Sundanese",
    "sv": "Swedish", "sw": "Swahili", "ta": "Tamil", "te": "Telugu", "tg": "Tajik",
    "th": "Thai", "ti": "Tigrinya", "tk": "Turkmen", "tl": "Tagalog", "tn": "Tswana",
    "to": "Tongan", "tr": "Turkish", "ts": "Tsonga", "tt": "Tatar", "tw": "Twi",
    "ty": "Tahitian", "ug": "Uyghur", "uk": "Ukrainian", "ur": "Urdu", "uz": "Uzbek",
    "ve": "Venda", "vi": "Vietnamese", "vo": "Volapük", "wa": "Walloon",
    "wo": "Wolof", "xh": "Xhosa", "yi": "Yiddish", "yo": "Yoruba", "za": "Zhuang",
    "zh": "Chinese", "zu": "Zulu",
    "ast": "Asturian", "bho": "Bhojpuri", "ceb": "Cebuano", "chr": "Cherokee",
    "ckb": "Central Kurdish", "crh": "Crimean Tatar", "dsb": "Lower Sorbian",
    "fil": "Filipino", "fur": "Friulian", "gsw": "Swiss German", "hak": "Hakka Chinese",
    "haw": "Hawaiian", "hmn": "Hmong", "hsb": "Upper Sorbian", "ilo": "Iloko",
    "kab": "Kabyle", "lij": "Ligurian", "lmo": "Lombard", "lzh": "Literary Chinese",
    "mai": "Maithili", "mnw": "Mon", "nan": "Min Nan Chinese", "nds": "Low German",
    "nso": "Northern Sotho", "pap": "Papiamento", "sah": "Yakut", "sat": "Santali",
    "scn": "Sicilian", "shn": "Shan", "szl": "Silesian", "tpi": "Tok Pisin",
    "vec": "Venetian", "war": "Waray", "wuu": "Wu Chinese", "yue": "Cantonese",
}  # fmt: skip
"""English names of the languages of ISO 639-1, and of some others with corpora."""

PREFERRED = {
    # ISO 639-2 and 639-3, where ISO 639-1 has a shorter code.
    "aar": "aa", "abk": "ab", "afr": "af", "aka": "ak", "alb": "sq", "amh": "am",
    "ara": "ar", "arg": "an", "arm": "hy", "asm": "as", "ava": "av", "aym": "ay",
    "aze": "az", "bak": "ba", "bam": "bm", "baq": "eu", "bel": "be", "ben": "bn",
    "bis": "bi", "bod": "bo", "bos": "bs", "bre": "br", "bul": "bg", "bur": "my",
    "cat": "ca", "ces": "cs", "che": "ce", "chi": "zh", "chv": "cv", "cor": "kw",
    "cos": "co", "cym": "cy", "cze": "cs", "dan": "da", "deu": "de", "div": "dv",
    "dut": "nl", "dzo": "dz", "ell": "el", "eng": "en", "epo": "eo", "est": "et",
    "eus": "eu", "ewe": "ee", "fao": "fo", "fas": "fa", "fij": "fj", "fin": "fi",
    "fra": "fr", "fre": "fr", "fry": "fy", "ful": "ff", "geo": "ka", "ger": "de",
    "gla": "gd", "gle": "ga", "glg": "gl", "glv": "gv", "gre": "el", "grn": "gn",
    "guj": "gu", "hat": "ht", "hau": "ha", "heb": "he", "hin": "hi", "hrv": "hr",
    "hun": "hu", "hye": "hy", "ibo": "ig", "ice": "is", "ido": "io", "iku": "iu",
    "ina": "ia", "ind": "id", "isl": "is", "ita": "it", "jav": "jv", "jpn": "ja",
    "kal": "kl", "kan": "kn", "kas": "ks", "kat": "ka", "kau": "kr", "kaz": "kk",
    "khm": "km", "kik": "ki", "kin": "rw", "kir": "ky", "kom": "kv", "kon": "kg",
    "kor": "ko", "kur": "ku", "lao": "lo", "lat": "la", "lav": "lv", "lim": "li",
    "lin": "ln", "lit": "lt", "ltz": "lb", "lug": "lg", "mac": "mk", "mah": "mh",
    "mal": "ml", "mao": "mi", "mar": "mr", "may": "ms", "mkd": "mk", "mlg": "mg",
    "mlt": "mt", "mon": "mn", "mri": "mi", "msa": "ms", "mya": "my", "nav": "nv",
    "nep": "ne", "nld": "nl", "nno": "nn", "nob": "nb", "nor": "no", "nya": "ny",
    "oci": "oc", "ori": "or", "orm": "om", "oss": "os", "pan": "pa", "per": "fa",
    "pol": "pl", "por": "pt", "pus": "ps", "que": "qu", "roh": "rm", "ron": "ro",
    "rum": "ro", "run": "rn", "rus": "ru", "sag": "sg", "san": "sa", "sin": "si",
    "slk": "sk", "slo": "sk", "slv": "sl", "sme": "se", "smo": "sm", "sna": "sn",
    "snd": "sd", "som": "so", "sot": "st", "spa": "es", "sqi": "sq", "srd": "sc",
    "srp": "sr", "ssw": "ss", "sun": "su", "swa": "sw", "swe": "sv", "tah": "ty",
    "tam": "ta", "tat": "tt", "tel": "te", "tgk": "tg", "tgl": "tl", "tha": "th",
    "tib": "bo", "tir": "ti", "ton": "to", "tsn": "tn", "tso": "ts", "tuk": "tk",
    "tur": "tr", "twi": "tw", "uig": "ug", "ukr": "uk", "urd": "ur", "uzb": "uz",
    "ven": "ve", "vie": "vi", "vol": "vo", "wel": "cy", "wln": "wa", "wol": "wo",
    "xho": "xh", "yid": "yi", "yor": "yo", "zha": "za", "zho": "zh", "zul": "zu",
    # The main language of each macrolanguage, as in Unicode's CLDR.
    "als": "sq", "arb": "ar", "ayr": "ay", "azj": "az", "cmn": "zh", "ekk": "et",
    "fuv": "ff", "gaz": "om", "gug": "gn", "khk": "mn", "kmr": "ku", "lvs": "lv",
    "npi": "ne", "ory": "or", "pbt": "ps", "pes": "fa", "plt": "mg", "prs": "fa",
    "quy": "qu", "swh": "sw", "uzn": "uz", "ydd": "yi", "zsm": "ms",
    # Codes that have been replaced.
    "in": "id", "iw": "he", "ji": "yi", "jw": "jv", "mo": "ro", "scc": "sr",
    "scr": "hr", "hbs": "sr", "sh": "sr",
}  # fmt: skip
"""Preferred codes for obsolete and longer ones."""
REPLACED = {
    "hbs": "sr-Latn", "sh": "sr-Latn", "no-bok": "nb", "no-nyn": "nn", "zh-guoyu": "zh",
    "zh-hakka": "hak", "zh-min-nan": "nan",
}  # fmt: skip
"""Tags for obsolete ones of more than a code, or for a code that implied a script."""

LIBRETRANSLATE = {"pb": "pt-BR", "zt": "zh-Hant"}
"""Tags for codes of LibreTranslate that are none of ISO 639."""
NO_ENDINGS = {"ch", "in", "kr", "mo", "pb", "sh", "zt"}
"""Codes that name no language as endings of files: train.in is an input, train.sh a
script, train.mo and train.pb are of other programs. The text of train.kr and train.ch
is Korean and Chinese, as a rule, not Kanuri and Chamorro."""

REGIONS = {
    "AR": "Argentina", "AT": "Austria", "AU": "Australia", "BE": "Belgium",
    "BR": "Brazil", "CA": "Canada", "CH": "Switzerland", "CN": "China",
    "DE": "Germany", "EG": "Egypt", "ES": "Spain", "FR": "France",
    "GB": "United Kingdom", "HK": "Hong Kong", "ID": "Indonesia", "IE": "Ireland",
    "IN": "India", "IR": "Iran", "IT": "Italy", "JP": "Japan", "KP": "North Korea",
    "KR": "South Korea", "MA": "Morocco", "MO": "Macao", "MX": "Mexico",
    "NL": "Netherlands", "NZ": "New Zealand", "PK": "Pakistan", "PT": "Portugal",
    "RU": "Russia", "SA": "Saudi Arabia", "SG": "Singapore", "TW": "Taiwan",
    "UA": "Ukraine", "US": "United States", "ZA": "South Africa",
    "419": "Latin America",
}  # fmt: skip
SCRIPTS = {
    "Arab": "Arabic", "Beng": "Bangla", "Cyrl": "Cyrillic", "Deva": "Devanagari",
    "Grek": "Greek", "Guru": "Gurmukhi", "Hans": "Simplified", "Hant": "Traditional",
    "Hebr": "Hebrew", "Jpan": "Japanese", "Khmr": "Khmer", "Kore": "Korean",
    "Laoo": "Lao", "Latn": "Latin", "Mymr": "Myanmar", "Thai": "Thai",
    "Tibt": "Tibetan",
}  # fmt: skip
TRADITIONAL = {"HK", "MO", "TW"}
"""Regions that write Chinese in traditional characters."""
USUAL_SCRIPTS = {
    "az": "Latn", "bs": "Latn", "crh": "Latn", "hak": "Hans", "kk": "Cyrl",
    "ks": "Arab", "ku": "Latn", "lzh": "Hant", "mn": "Cyrl", "ms": "Latn",
    "nan": "Hans", "pa": "Guru", "sd": "Arab", "sr": "Cyrl", "tk": "Latn",
    "uz": "Latn", "wuu": "Hans", "yue": "Hant", "zh": "Hans",
    "az-IR": "Arab", "kk-CN": "Arab", "ku-IQ": "Arab", "ku-IR": "Arab",
    "mn-CN": "Mong", "pa-PK": "Arab", "sd-IN": "Deva", "sr-ME": "Latn",
    "uz-AF": "Arab", "yue-CN": "Hans",
}  # fmt: skip
"""Usual script of languages that have several, and of their regions that use another,
mostly as in Unicode's CLDR."""

CHINESE = {
    "cdo", "cjy", "cpx", "czh", "gan", "hak", "hsn", "lzh", "mnp", "nan", "wuu", "yue",
    "zh",
}  # fmt: skip
UNSPACED = CHINESE | {
    "blt", "bo", "dz", "ii", "ja", "khb", "km", "lo", "mnw", "my", "nod", "shn", "tdd",
    "th",
}  # fmt: skip
"""Languages whose own script has no spaces between words."""

LETTERS_OF_SCRIPT = {
    "Arab": "\u0600-\u06ff\u0750-\u077f\u0870-\u08ff\ufb50-\ufdff\ufe70-\ufefc",
    "Armn": "\u0530-\u058f\ufb13-\ufb17",
    "Beng": "\u0980-\u09ff",
    "Cans": "\u1400-\u167f\u18b0-\u18ff",
    "Cher": "\u13a0-\u13ff\uab70-\uabbf",
    "Cyrl": "\u0400-\u052f\u1c80-\u1c8f\u2de0-\u2dff\ua640-\ua69f",
    "Deva": "\u0900-\u097f\ua8e0-\ua8ff",
    "Ethi": "\u1200-\u139f\u2d80-\u2ddf\uab00-\uab2f",
    "Geor": "\u10a0-\u10ff\u1c90-\u1cbf\u2d00-\u2d2f",
    "Grek": "\u0370-\u03ff\u1f00-\u1fff",
    "Gujr": "\u0a80-\u0aff",
    "Guru": "\u0a00-\u0a7f",
    "Hang": "\u1100-\u11ff\u3130-\u318f\ua960-\ua97f\uac00-\ud7ff",
    "Hani": "\u2e80-\u2fdf\u3005-\u3007\u3021-\u3029\u3038-\u303b\u3400-\u4dbf"
    "\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff",
    "Hebr": "\u0590-\u05ff\ufb1d-\ufb4f",
    "Java": "\ua980-\ua9df",
    "Kana": "\u3041-\u30ff\u31f0-\u31ff\uff66-\uff9f\U0001b000-\U0001b16f",
    "Khmr": "\u1780-\u17ff",
    "Knda": "\u0c80-\u0cff",
    "Laoo": "\u0e80-\u0eff",
    "Latn": "A-Za-z\u00aa\u00ba\u00c0-\u024f\u0250-\u02ff\u1d00-\u1dbf\u1e00-\u1eff"
    "\u2c60-\u2c7f\ua722-\ua7ff\uab30-\uab6f\ufb00-\ufb06\uff21-\uff3a\uff41-\uff5a",
    "Mlym": "\u0d00-\u0d7f",
    "Mong": "\u1800-\u18af",
    "Mymr": "\u1000-\u109f\ua9e0-\ua9ff\uaa60-\uaa7f",
    "Nkoo": "\u07c0-\u07ff",
    "Olck": "\u1c50-\u1c7f",
    "Orya": "\u0b00-\u0b7f",
    "Sinh": "\u0d80-\u0dff",
    "Taml": "\u0b80-\u0bff",
    "Telu": "\u0c00-\u0c7f",
    "Tfng": "\u2d30-\u2d7f",
    "Thaa": "\u0780-\u07bf",
    "Thai": "\u0e00-\u0e7f",
    "Tibt": "\u0f00-\u0fff",
    "Yiii": "\ua000-\ua4cf",
}
"""Ranges of the letters and marks of each script, for a character class."""
SCRIPTS_OF_SUBTAG = {
    "Hans": ("Hani",), "Hant": ("Hani",), "Hira": ("Kana",), "Jpan": ("Hani", "Kana"),
    "Kore": ("Hang", "Hani"),
}  # fmt: skip
"""Scripts that a script subtag of several scripts, or of a part of one, stands for."""
EAST_ASIAN = {
    ("Hani",): "zh", ("Hani", "Kana"): "ja", ("Hang", "Hani"): "ko"
}  # fmt: skip
"""Languages that share the Chinese characters, by their scripts."""
LANGUAGES_OF_SCRIPTS = {
    "Arab": "ar ckb fa ks ps sd ug ur", "Armn": "hy", "Beng": "as bn", "Cher": "chr",
    "Cyrl": "ab av ba be bg ce cu cv kv ky mk os ru sah tg tt uk",
    "Deva": "bho hi mai mr ne sa", "Ethi": "am ti", "Geor": "ka", "Grek": "el",
    "Gujr": "gu", "Hani": "lzh wuu yue zh", "Hebr": "he yi", "Khmr": "km",
    "Knda": "kn", "Laoo": "lo", "Mlym": "ml", "Mymr": "mnw my shn", "Orya": "or",
    "Sinh": "si", "Taml": "ta", "Telu": "te", "Thaa": "dv", "Thai": "th",
    "Tibt": "bo dz", "Yiii": "ii",
    # Languages in transition, or with several written forms.
    "Arab Cyrl Latn": "kk", "Arab Guru": "pa", "Arab Latn": "ku ms",
    "Cans Latn": "iu", "Cyrl Latn": "az bs crh sr tk uz", "Cyrl Mong": "mn",
    "Hang Hani": "ko", "Hani Kana": "ja", "Hani Latn": "hak nan", "Java Latn": "jv",
    "Olck Deva Latn": "sat",
}  # fmt: skip
"""Languages that are not written in Latin letters alone, by their scripts."""
SCRIPTS_OF_LANGUAGE = {
    language: tuple(scripts.split())
    for scripts, languages in LANGUAGES_OF_SCRIPTS.items()
    for language in languages.split()
}
"""Scripts of each of these languages."""
WORD_MARKS = "".join(
    character
    for character in map(chr, chain(range(0x300, 0x2000), range(0xA66F, 0xAC00)))
    if category(character)[0] == "M"
)
"""Combining marks of all scripts, as vowels of Hindi, which `\\w` of `re` lacks. They
belong to words, as letters do."""
UNCERTAIN_SCRIPTS = {"ae", "cr", "ha", "ki", "oj", "pi"}
"""Languages with names here whose script is not known for certain."""

TAG = re.compile(
    r"""(?P<language>[a-z]{2,3})
    (?P<extended>(?:-[a-z]{3}){0,3})
    (?:-(?P<script>[a-z]{4}))?
    (?:-(?P<region>[a-z]{2}|[0-9]{3}))?
    (?P<variants>(?:-(?:[a-z0-9]{5,8}|[0-9][a-z0-9]{3}))*)
    (?P<extensions>(?:-[a-wy-z0-9](?:-[a-z0-9]{2,8})+)*)
    (?P<private>(?:-x(?:-[a-z0-9]{1,8})+)?)""",
    re.VERBOSE,
)
"""Well-formed tags of RFC 5646 in lower case, without whole-tag private use."""
KINDS = {".txt", ".text", ".tok", ".clean", ".detok", ".raw", ".norm", ".lc", ".tc"}
"""Endings that may follow the one that names a language."""
WRITTEN_SMALL = {
    "af": "za", "am": "et", "ar": "ae kw sa tn", "bs": "ba", "de": "ch", "en": "ie za",
    "fr": "ch", "ga": "ie", "hr": "ba", "hy": "am", "it": "ch", "ko": "kr", "ky": "kg",
    "lo": "la", "ms": "my", "nb": "no", "nn": "no", "pt": "br", "sl": "si", "sr": "ba",
    "st": "za", "sv": "se", "ta": "sg", "tn": "za", "ts": "za", "xh": "za",
    "zh": "cn hk mo sg tw", "zu": "za",
}  # fmt: skip
"""Regions in lower-case endings that are codes of languages as well, by language: ko-kr
is the Korean of South Korea, not a pair of Korean and Kanuri. Pairs of languages of
which there is text, such as gl-es, are left out."""
OWN_NAMES = {
    "deutsch": "de", "español": "es", "français": "fr", "italiano": "it",
    "nederlands": "nl", "polski": "pl", "português": "pt", "svenska": "sv",
    "русский": "ru", "українська": "uk", "العربية": "ar", "हिन्दी": "hi",
    "中文": "zh", "日本語": "ja", "한국어": "ko", "ไทย": "th",
}  # fmt: skip
"""Tags of some languages by their own names, for a hint."""

SCRIPT_LETTERS = {
    "zh": re.compile("[\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]"),
    "ja": re.compile("[\u3041-\u30ff\u31f0-\u31ff\uff66-\uff9d]"),
    "ko": re.compile("[\u1100-\u11ff\u3130-\u318f\uac00-\ud7af]"),
    "th": re.compile("[\u0e01-\u0e4e]"),
    "lo": re.compile("[\u0e81-\u0eff]"),
    "my": re.compile("[\u1000-\u109f]"),
    "bo": re.compile("[\u0f00-\u0fff]"),
    "km": re.compile("[\u1780-\u17d3]"),
}
"""Patterns of letters that identify a language, or at least how to cut its text."""
KANA_SHARE = 0.1
"""Share of kana among kana and Han characters above which text is Japanese."""
ENOUGH_LETTERS = 0.5
"""Share of a text's letters above which their script is the text's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LanguagesConfig:
    """Languages of a model, as BCP 47 tags; None if unknown."""

    source: str | None = None
    """Language that the model reads."""
    target: str | None = None
    """Language that the model writes."""

    def __post_init__(self) -> None:
        convert_and_check(self, "languages.")
        for side in ("source", "target"):
            if (tag := getattr(self, side)) is not None:
                object.__setattr__(self, side, canonical(tag))

    def given(self, tags: Mapping[str, str | None]) -> "LanguagesConfig":
        """Copy with the given tags; a side whose tag is None stays."""
        known = {side: tag for side, tag in tags.items() if tag is not None}
        return replace(self, **known)

    def __str__(self) -> str:
        return f"{_described(self.source)} to {_described(self.target)}"


def canonical(tag: str) -> str:
    """Write a tag as BCP 47 recommends: pt-BR, zh-Hans; `ConfigError` if malformed."""
    parts = _parse(tag)
    if parts is None:
        raise ConfigError(_no_tag(tag))
    if parts[0] in LIBRETRANSLATE | REPLACED:
        return (LIBRETRANSLATE | REPLACED)[parts[0]]
    language = parts["language"]
    extended = parts["extended"] or ""
    if extended and extended[1:] in PREFERRED | NAMES:
        language, extended = extended[1:], ""  # zh-yue is written yue
    script, region = parts["script"] or "", parts["region"] or ""
    pieces = [
        PREFERRED.get(language, language) + extended,
        script.capitalize(),
        region.upper(),
    ]
    rest = parts["variants"] + parts["extensions"] + parts["private"]
    return "-".join(filter(None, pieces)) + rest


def base(tag: str) -> str:
    """Base language of a tag: pt for pt-BR."""
    return canonical(tag).split("-")[0]


def script_of(tag: str) -> str | None:
    """Script that a tag names, or in which its region writes a language of several
    scripts; None if neither is known."""
    parts = _subtags(tag)
    if parts["script"]:
        return parts["script"]
    language, region = parts["language"], parts["region"]
    if language in CHINESE and region in TRADITIONAL:
        return "Hant"
    usual = USUAL_SCRIPTS.get(language)
    return USUAL_SCRIPTS.get(f"{language}-{region}", usual)


def best_match(requested: str, available: Sequence[str]) -> str | None:
    """The available language that best matches the requested one; None if none does.

    The same tag, in any case, is the best match. Tags of the same language follow: tags
    in the same script first, and among them the tag that is the longest beginning of
    the requested one (zh-Hans for zh-Hans-CN). Norwegian (no) counts as Bokmål, and
    Nynorsk is a match only if there is nothing nearer. A name that is no tag matches
    only itself.
    """
    by_name = {_spelling(each): each for each in reversed(available)}
    if _spelling(requested) in by_name:
        return by_name[_spelling(requested)]
    if _parse(requested) is None:
        return None
    related = [
        each
        for each in available
        if _parse(each) is not None and _family(each) == _family(requested)
    ]
    return min(related, key=lambda each: _distance(requested, each), default=None)


def guess(path: str | Path) -> str | None:
    """Language named by a file's ending (train.en, train.pt-BR.gz), or None."""
    name = PurePath(path).name
    suffixes = [suffix.lower() for suffix in PurePath(name).suffixes]
    while suffixes and suffixes[-1] in ENDINGS | KINDS:
        name = name[: -len(suffixes.pop())]
    stem, dot, ending = name.rpartition(".")
    return _named(ending) if dot and stem else None


def guess_all(paths: Iterable[str | Path]) -> str | None:
    """Language that the endings of several files agree on, or None."""
    found = {guess(path) for path in paths}
    return found.pop() if len(found) == 1 else None


def require_language(
    model: str | Path,
    side: str,
    known: str | None,
    text_language: str | None,
    *,
    remedy: str = "correct the languages",
) -> None:
    """Raise `ConfigError` if a text is in another language than the model's.

    `side` is "source" or "target". An unknown language is accepted.
    """
    if known and text_language and not best_match(text_language, [known]):
        raise ConfigError(
            f"{model}: the model must have the languages of the corpus, but its {side} "
            f"is {known} and here {text_language}; choose another model, or {remedy}."
        )


def require_language_of_files(
    model: str | Path, side: str, known: str | None, paths: Iterable[str | Path]
) -> None:
    """Raise `ConfigError` if a file's ending names another language than the model's.

    `side` is "source" or "target".
    """
    for path in paths:
        remedy = f"rename {path} if its ending is wrong"
        require_language(model, side, known, guess(path), remedy=remedy)


def detect_by_script(texts: Iterable[str]) -> str | None:
    """Language of text, detected by its script: zh, ja, ko, th, lo, km, my or bo.

    None for text in other scripts. Only scripts are counted: Cantonese counts as
    Mandarin, and Shan as Burmese.
    """
    counts = dict.fromkeys(SCRIPT_LETTERS, 0)
    num_letters = 0
    for text in texts:
        num_letters += sum(map(str.isalpha, text))
        if not text.isascii():
            for tag, letters in SCRIPT_LETTERS.items():
                counts[tag] += len(letters.findall(text))
    if counts["ja"] > KANA_SHARE * (counts["ja"] + counts["zh"]):
        counts["ja"] += counts.pop("zh")
    tag = max(counts, key=lambda each: counts[each])
    return tag if counts[tag] > ENOUGH_LETTERS * max(num_letters, 1) else None


def english_name(tag: str) -> str:
    """English name of a language: Portuguese (Brazil); the code if it is unknown."""
    parts = _subtags(tag)
    script, region = parts["script"], parts["region"]
    details = [SCRIPTS.get(script, script), REGIONS.get(region, region)]
    name = NAMES.get(parts["language"], parts["language"])
    described = ", ".join(filter(None, details))
    return f"{name} ({described})" if described else name


def is_known(tag: str) -> bool:
    """Whether this module has a name for the tag's language."""
    return _parse(tag) is not None and base(tag) in NAMES


def script_letters(tag: str) -> re.Pattern[str] | None:
    """Pattern of a letter or mark of the scripts that a language is written in.

    A script subtag decides, as in sr-Latn; None if the script is unknown.
    """
    ranges = [LETTERS_OF_SCRIPT.get(script) for script in _scripts(tag)]
    if None in ranges or not ranges:
        return None
    return re.compile("[" + "".join(filter(None, ranges)) + "]")


def east_asian(tag: str) -> str | None:
    """Return zh, ja or ko for a tag of Chinese, Japanese or Korean in its own script.

    Cantonese and other languages in Chinese characters alone count as Chinese. None for
    another language, and for a romanization such as ja-Latn.
    """
    return EAST_ASIAN.get(_scripts(tag))


def _scripts(tag: str) -> tuple[str, ...]:
    """Scripts that a language is written in; empty if they are unknown."""
    parts = _subtags(tag)
    language, named = parts["language"], parts["script"]
    if named:
        return SCRIPTS_OF_SUBTAG.get(named, (named,))
    if language in SCRIPTS_OF_LANGUAGE:
        return SCRIPTS_OF_LANGUAGE[language]
    is_latin = language in NAMES and language not in UNCERTAIN_SCRIPTS
    return ("Latn",) if is_latin else ()


def is_unspaced(tag: str) -> bool:
    """Whether the language is written without spaces between words."""
    parts = _subtags(tag)
    if parts["script"]:
        return parts["script"] in UNSPACED_SCRIPT_TAGS
    return parts["language"] in UNSPACED


def _parse(tag: str) -> re.Match[str] | None:
    return TAG.fullmatch(tag.strip().replace("_", "-").lower())


def _subtags(tag: str) -> dict[str, str]:
    """Language, script and region of a tag, in canonical form and case; a subtag that
    it lacks is empty. `ConfigError` if the tag is malformed."""
    parts = _parse(canonical(tag))
    assert parts is not None
    return {
        "language": parts["language"],
        "script": (parts["script"] or "").capitalize(),
        "region": (parts["region"] or "").upper(),
    }


def _spelling(tag: str) -> str:
    """Form of a tag or a name for comparisons."""
    return tag.strip().lower() if _parse(tag) is None else canonical(tag).lower()


def _family(tag: str) -> str:
    """Base language of a tag, with both written forms of Norwegian as one."""
    language = base(tag)
    return "no" if language in ("nb", "nn") else language


def _distance(requested: str, available: str) -> tuple[bool, bool, int]:
    """Sort key of available tags of one language: the best match has the least."""
    is_other_norwegian = (base(available) == "nn") != (base(requested) == "nn")
    whole = f"{canonical(requested)}-".lower()
    beginning = f"{canonical(available)}-".lower()
    shared = len(beginning) if whole.startswith(beginning) else 0
    is_other_script = script_of(available) != script_of(requested)
    return is_other_norwegian, is_other_script, -shared


def _named(ending: str) -> str | None:
    """Tag of a file's ending; None if it is none, or may be a pair of languages."""
    if not is_known(ending) or ending.lower() in NO_ENDINGS:
        return None
    language, _, rest = ending.replace("_", "-").partition("-")
    is_small = rest == rest.lower()
    is_region = rest == language or rest in WRITTEN_SMALL.get(language, "").split()
    if rest in NAMES | LIBRETRANSLATE and is_small and not is_region:
        return None  # en-fr: a pair, not the English of France
    return canonical(ending)


def _described(tag: str | None) -> str:
    return "unknown" if tag is None else f"{english_name(tag)} ({tag})"


def _no_tag(tag: str) -> str:
    by_name = {name.lower(): code for code, name in NAMES.items()} | OWN_NAMES
    nearest = get_close_matches(tag.lower(), by_name, n=1, cutoff=0.8)
    hint = "write it as in en or pt-BR."
    if nearest:
        hint = f"did you mean {by_name[nearest[0]]!r}?"
    return f"A language must be a BCP 47 tag, but is {tag!r}; {hint}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """Script without spaces between words."""

    name: str
    tags: tuple[str, ...]
    """Script subtags of BCP 47 that stand for it, also those of several scripts."""
    letters: str
    """Ranges of its letters and marks, for a character class."""
    longest_piece: int
    """Maximum number of letters of a learned piece: about a word, never a clause."""


KANA_MARKS = "\u3099\u309a\u30fc\uff70\uff9e\uff9f"
"""Voicing and length marks, shared by both kinds of Kana."""

UNSPACED_SCRIPTS = (
    Script(
        name="Han",
        tags=("Hani", "Hans", "Hant"),
        letters=LETTERS_OF_SCRIPT["Hani"],
        longest_piece=4,
    ),
    Script(
        name="Hiragana",
        tags=("Hira", "Jpan"),
        letters=f"\u3041-\u3096\u309d-\u309f\U0001b001-\U0001b11f{KANA_MARKS}",
        longest_piece=8,
    ),
    Script(
        name="Katakana",
        tags=("Kana", "Hrkt"),
        letters="\u30a1-\u30fa\u30fd-\u30ff\u31f0-\u31ff\uff66-\uff6f\uff71-\uff9d"
        f"{KANA_MARKS}",
        longest_piece=16,
    ),
    Script(
        name="Bopomofo",
        tags=("Bopo", "Hanb"),
        letters="\u3105-\u312f\u31a0-\u31bf",
        longest_piece=4,
    ),
    Script(name="Yi", tags=("Yiii",), letters="\ua000-\ua48c", longest_piece=4),
    Script(
        name="Thai",
        tags=("Thai",),
        letters="\u0e01-\u0e2e\u0e30-\u0e3a\u0e40-\u0e4e",
        longest_piece=16,
    ),
    Script(
        name="Lao",
        tags=("Laoo",),
        letters="\u0e81-\u0ece\u0edc-\u0edf",
        longest_piece=16,
    ),
    Script(
        name="Khmer",
        tags=("Khmr",),
        letters="\u1780-\u17d3\u17d7\u17dc\u17dd",
        longest_piece=16,
    ),
    Script(
        name="Myanmar",
        tags=("Mymr",),
        letters="\u1000-\u103f\u104c-\u108f\u109a-\u109f\ua9e0-\ua9ef\ua9fa-\ua9fe\uaa60-\uaa7f",
        longest_piece=16,
    ),
    # The tsheg after a syllable belongs to the syllable.
    Script(
        name="Tibetan",
        tags=("Tibt",),
        letters="\u0f00\u0f0b\u0f0c\u0f18\u0f19\u0f35\u0f37\u0f39\u0f3e-\u0fbc",
        longest_piece=16,
    ),
    Script(name="Tai Le", tags=("Tale",), letters="\u1950-\u1974", longest_piece=16),
    Script(
        name="New Tai Lue", tags=("Talu",), letters="\u1980-\u19c9", longest_piece=16
    ),
    Script(name="Tai Tham", tags=("Lana",), letters="\u1a20-\u1a7c", longest_piece=16),
    Script(name="Tai Viet", tags=("Tavt",), letters="\uaa80-\uaadd", longest_piece=16),
    Script(name="Balinese", tags=("Bali",), letters="\u1b00-\u1b4c", longest_piece=16),
    Script(name="Javanese", tags=("Java",), letters="\ua980-\ua9c0", longest_piece=16),
)
UNSPACED_SCRIPT_TAGS = {tag for script in UNSPACED_SCRIPTS for tag in script.tags}
UNSPACED_LETTERS = "".join(script.letters for script in UNSPACED_SCRIPTS)
UNSPACED_LETTER = re.compile(f"[{UNSPACED_LETTERS}]")
UNSPACED_RUN = re.compile("|".join(f"[{s.letters}]+" for s in UNSPACED_SCRIPTS))
"""Pattern of a run of letters of one such script."""

ZERO_WIDTH_SPACE = "\u200b"
INVISIBLE = (
    "\u00ad\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2060"
    "\u2066\u2067\u2068\u2069\ufeff" + ZERO_WIDTH_SPACE
)
"""Characters that show nothing and change no other: soft hyphens, marks of direction,
and those that allow or forbid a line break. Joiners are none: they change letters, as
in Persian, and join emoji."""
WITHOUT_MEANING = re.compile(
    f"[{INVISIBLE.removesuffix(ZERO_WIDTH_SPACE)}]+"
    f"|(?<![{UNSPACED_LETTERS}{ZERO_WIDTH_SPACE}]){ZERO_WIDTH_SPACE}+"
)


def without_invisible(text: str) -> str:
    """Remove the characters of a text that show nothing, such as soft hyphens.

    A zero-width space stays after a letter of a script without spaces, where it may
    stand between words, as in Khmer.
    """
    return text if text.isascii() else WITHOUT_MEANING.sub("", text)


SPACED_SCRIPTS = (
    "Latin", "Cyrillic", "Greek", "Arabic", "Hebrew", "Devanagari", "Bengali",
    "Gurmukhi", "Gujarati", "Oriya", "Tamil", "Telugu", "Kannada", "Malayalam",
    "Sinhala", "Hangul", "Armenian", "Georgian", "Ethiopic", "Mongolian",
)  # fmt: skip
"""Scripts with spaces whose border with another script separates words."""
_LONGER_THAN_A_WORD = re.compile(
    "|".join(f"[{s.letters}].{{{s.longest_piece}}}" for s in UNSPACED_SCRIPTS),
    re.DOTALL,
)


def is_longer_than_a_word(piece: str) -> bool:
    """Whether a piece of a script without spaces is longer than its words."""
    return _LONGER_THAN_A_WORD.match(piece) is not None
