"""Programs for developers of the project; no part of the packages."""
