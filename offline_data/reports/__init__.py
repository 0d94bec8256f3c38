"""Figures, pages, films and cards of datasets.

It draws what `analysis` measured, computes nothing of a dataset itself, and prints nothing. Start with
`pages.report`; `card` writes the README of a dataset.
"""
