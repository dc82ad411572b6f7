"""`python -m mmlca` is the command `mmlca`."""

from mmlca.cli.app import main

if __name__ == "__main__":
    main()
