"""``python -m services`` is ``turnkeeper``."""

import sys

from services.cli import main

if __name__ == "__main__":
    sys.exit(main())
