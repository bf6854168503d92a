"""Export to other toolkits, import from them, and a proof of each.

Two formats have models of Marian. `marian_import` and `marian_export` are for those of
Hugging Face (`MarianMTModel`), as OPUS-MT's; `marian_npz_import` and
`marian_npz_export` for those of Marian's own program (model.npz), of which the import
also reads the binary format (`marian_binary`) and shortlists (`marian_shortlist`). What
both share is in `marian_conventions`.
"""

import os

# ONNX Runtime, which reads this when it is imported, would report each model to its
# maker and keep an identifier in the home folder, or warn that it cannot.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
