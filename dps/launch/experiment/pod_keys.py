"""Copies the keys of a pod's Secret to where its tasks read them: `python -m dps.launch.experiment.pod_keys FROM TO`.

Kubernetes shows a Secret as links in a folder of root's. dps reads keys from no link, and only from a private folder of
the user who reads them.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from dps.errors import DpsError
from dps.transport.keys import files as key_files


def main(argv: Sequence[str]) -> int:
    """Copy; returns the exit code."""
    source, to = argv
    try:
        key_files.copy(source, to)
    except DpsError as error:
        print(f"dps: {error}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
