"""The dataset directory: written once, audited, published by a rename, read by anyone.

It knows neither sources nor torch, and `cache_layout.md` describes what it writes. Start with `manifest`, then
`writer` and `reader`; `publish` moves a finished directory to its place.
"""
