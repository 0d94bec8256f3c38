"""Text for language models: sources, tokenizers, documents, preference pairs, prompts, rules."""
