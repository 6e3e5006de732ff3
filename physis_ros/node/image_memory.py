"""Memory of large messages that is used again, not given back to the system after every image.

glibc's malloc gives the memory of a freed image back and fetches it anew, zeroed page by page, for
the next one: some hundred page faults for each copy of each image. With the thresholds below it
stays in the process, which takes as much memory as its largest moment needed.
"""

from __future__ import annotations

import ctypes

_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD = -1, -2, -3
"""Numbers of mallopt(3), from malloc.h."""
KEPT_BYTES = 256 << 20
LARGEST_BYTES = 32 << 20
"""glibc takes no larger threshold."""


def keep_image_memory() -> bool:
    """False where the C library is another one, and nothing was changed."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return False
    settings = (
        (_TRIM_THRESHOLD, KEPT_BYTES),
        (_TOP_PAD, 1 << 20),
        (_MMAP_THRESHOLD, LARGEST_BYTES),
    )
    return all(mallopt(number, value) == 1 for number, value in settings)
