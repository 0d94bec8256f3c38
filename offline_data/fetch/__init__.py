"""Files of hosts on this disk: planned first, then fetched, with sizes and digests checked.

It knows neither datasets nor what is in the files. Start with `plan` and `run`; `hub`, `gcs` and `client` list what
a host has.
"""
