"""The command line `offline-data`, installed as the import package `offline_data_cli`."""
