"""Text that comes with Python, for networks that learn which character comes next."""

from __future__ import annotations

import hashlib
import platform

import numpy as np
from jaxtyping import UInt8

from proxlin.bench.data.datasets import Arrays, Dataset, one_hot

CONTEXT = 64
CHARACTERS = 96  # of ASCII: 32 (space) to 126 (tilde), and the end of a line
_END_OF_LINE = 95


def load_text() -> Dataset:
    """The help texts of Python, cut into pieces of 64 characters; the last tenth is for testing.

    The targets are the characters that come next. The texts change a little from one version of
    Python to the next, and the sha256, that of the text as numbers, tells them apart.
    """
    from pydoc_data.topics import topics

    numbers = encode("\n".join(topics[name] for name in sorted(topics)))
    pieces = (len(numbers) - 1) // CONTEXT
    inputs, targets = (
        numbers[shift : shift + pieces * CONTEXT].reshape(pieces, CONTEXT) for shift in (0, 1)
    )
    split = pieces * 9 // 10
    targets = targets.astype(np.int32)
    return Dataset(
        name="text",
        description=f"help texts of Python {platform.python_version()}, pieces of {CONTEXT} "
        "characters",
        classes=CHARACTERS,
        shape=(CONTEXT, CHARACTERS),
        train=Arrays(inputs[:split], targets[:split]),
        test=Arrays(inputs[split:], targets[split:]),
        sha256=hashlib.sha256(numbers.tobytes()).hexdigest(),
        prepare=one_hot(CHARACTERS),
    )


def encode(text: str) -> UInt8[np.ndarray, " n"]:
    r"""Printable ASCII and line ends as numbers; all other characters become question marks.

    Example:
        >>> encode("a b\n\u00e9").tolist()
        [65, 0, 66, 95, 31]
    """
    codes = np.frombuffer(text.encode("ascii", errors="replace"), np.uint8)
    known = np.where((codes >= 32) & (codes < 127), codes, ord("?")) - 32
    return np.where(codes == ord("\n"), _END_OF_LINE, known).astype(np.uint8)
