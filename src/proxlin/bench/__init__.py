"""The bench: tasks, methods, runs and figures. It imports the library, never the reverse."""

from __future__ import annotations

import os


def main() -> None:
    """Runs the command ``proxlin``, or says how to install the packages of the bench."""
    # XLA warns when it loads cached programs, which concerns nobody.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    try:
        from proxlin.bench import cli
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("proxlin"):
            raise
        raise SystemExit(
            f"error: the bench needs {error.name}; install it with: pip install 'proxlin[bench]'"
        ) from error
    cli.main()
