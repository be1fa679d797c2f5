"""The site that `make docs` builds, as a reader has it: files on a disk, a browser, no network."""
