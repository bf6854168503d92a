"""Export to other toolkits, import from them, and a proof of each."""

import os

# ONNX Runtime, which reads this when it is imported, would report each model to its
# maker and keep an identifier in the home folder, or warn that it cannot.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
