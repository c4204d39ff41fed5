"""The bench: what is trained on what by whom; it imports the library, never the reverse."""

from __future__ import annotations


def main() -> None:
    """The command ``proxlin``; without the packages of the bench it says how to get them."""
    try:
        from proxlin.bench import cli
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("proxlin"):
            raise
        raise SystemExit(
            f"error: the bench needs {error.name}; install it by: pip install 'proxlin[bench]'"
        ) from error
    cli.main()
