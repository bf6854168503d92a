"""HTTP server: batching of requests, LibreTranslate's interface, a web page."""
