"""Metrics of translations: BLEU, chrF, perplexity, significance tests."""
