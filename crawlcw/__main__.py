"""`python -m crawlcw` is `crawlcw`."""

from crawlcw.cli.main import main

if __name__ == "__main__":
    main()
