"""`python -m deltalakedb` is the command line."""

from deltalakedb.cli import main

if __name__ == "__main__":
    main()
