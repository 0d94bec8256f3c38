from tests.cli.conftest import _own_environment, cli
from tests.pipeline.ingest.here import conversions_start_no_process

__all__ = ["_own_environment", "cli", "conversions_start_no_process"]
