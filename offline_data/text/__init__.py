"""Text for language models: sources, tokenizers, documents, preference pairs, prompts, rules.

It registers its source, its steps and its rules as a package of someone else would. Start with `source` and
`dataset`.
"""
