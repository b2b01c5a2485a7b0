"""Where there is no GPU (DPS_TEST_GPU=1 says that there is one), numba's simulator takes its place in these tests."""

from __future__ import annotations

import os

if os.environ.get("DPS_TEST_GPU") != "1":
    os.environ.setdefault("NUMBA_ENABLE_CUDASIM", "1")  # before numba is imported
