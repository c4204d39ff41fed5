"""The bench: what is trained on what by whom; it imports the library, never the reverse."""
