"""``python -m proxlin.bench`` is ``proxlin``."""

from proxlin.bench import main

main()
