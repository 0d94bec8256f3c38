"""Text for language models: documents of tokens, preference pairs and prompts."""
