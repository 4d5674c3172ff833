"""Text: tokenizers, detokenizers, chat templates."""
