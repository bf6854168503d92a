"""Text: parallel files, tokenizers, languages, sentence splitting and markup."""
