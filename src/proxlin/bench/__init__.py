"""The bench: what is trained on what by whom; it imports the library, never the reverse."""

from __future__ import annotations

import os


def main() -> None:
    """The command ``proxlin``; without the packages of the bench it says how to get them."""
    # XLA warns of compiled programs that it finds again; nobody needs to know.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    try:
        from proxlin.bench import cli
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("proxlin"):
            raise
        raise SystemExit(
            f"error: the bench needs {error.name}; install it by: pip install 'proxlin[bench]'"
        ) from error
    cli.main()
