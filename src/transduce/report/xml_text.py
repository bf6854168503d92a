"""Text of drawings, which are XML."""

import re

NOT_XML = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")
"""Characters that an XML file must not have."""


def xml_text(text: str) -> str:
    """Replace characters that XML lacks by U+FFFD."""
    return NOT_XML.sub("\ufffd", text)
