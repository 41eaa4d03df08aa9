"""`karat` with a scripted model in the engine's process: python -m tests.support.scripted_serve serve FOLDER …"""

import sys

from karat.cli import main
from karat.engine.remote import process as async_process

if __name__ == "__main__":
    async_process.MODULE = "tests.support.scripted_worker"
    sys.exit(main())
