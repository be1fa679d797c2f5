"""Puts the library that draws `nccrt report` into the package while it is built.

Where no npm registry can be reached the package is built without it: all else works, and the
command says how to get it.
"""

import importlib.util
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

LIBRARY = "ncc_runtime/report/page/drawing_library.py"


class CustomBuildHook(BuildHookInterface):
    """Run by hatchling for wheels, source archives and editable installs."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:  # noqa: ARG002
        """Fetch what is not there yet."""
        # by its path: the package's own dependencies are not installed yet
        spec = importlib.util.spec_from_file_location("drawing_library", Path(self.root) / LIBRARY)
        assert spec is not None
        assert spec.loader is not None
        library = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(library)
        if library.is_complete():
            return
        try:
            library.install()
        except (OSError, ValueError) as error:
            self.app.display_warning(f"built without what nccrt report draws with: {error}")
