"""`python -m offline_data_cli`: the command, where its script is not on the path."""

from offline_data_cli.main import run

if __name__ == "__main__":
    run()
