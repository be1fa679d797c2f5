"""FILE.py:FUNCTION: the user's file is imported, and the function says what to compile."""

import contextlib
import functools
import importlib.util
import inspect
import os
import re
import site
import sys
import sysconfig
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from ncc_compiler.frontends.users_code import in_one_line, refusal

DEVICES = 64
"""Virtual devices of the user's process, if nobody says another number: as many as a trn2.48xlarge
has ranks at LNC 2."""

_SPELLING = re.compile(r"(.*\.py)(?::([^/]*))?", re.DOTALL)
_FLAG = "--xla_force_host_platform_device_count"


def split(model: str) -> tuple[str, str] | None:
    """File and function of FILE.py:FUNCTION; None of another model. Raises CompileError."""
    match = _SPELLING.fullmatch(model)
    if match is None:
        return None
    if not match[2]:
        raise refusal(
            f"{match[1]}: which function says what to compile?",
            f"write {match[1]}:FUNCTION, which returns (fn, args) or a jax.stages.Lowered",
        )
    return match[1], match[2]


def found(
    file: str, name: str, ranks: int | None = None, mesh: Mapping[str, int] | None = None
) -> Callable[[], Any]:
    """A call that gives what the function `name` of a file returns; or the object of that name.

    The file is imported as a module, its folder on `sys.path`, with `ranks` virtual devices, if it
    and XLA_FLAGS say no other number; what it prints goes to standard error. A function that takes
    its mesh is called with one of those devices, of those sizes. Raises CompileError with what it
    raises, and OSError.
    """
    from ncc_compiler.frontends.pytorch.errors import offer_xla_devices

    path = Path(file)
    path.open("rb").close()  # as any file that cannot be read
    _offer_devices(ranks or DEVICES)
    offer_xla_devices(ranks)
    with as_script(path), _raised_by_user(file):
        module = _imported(path)
    if not hasattr(module, name):
        own = [
            key
            for key, value in vars(module).items()
            if callable(value)
            and getattr(value, "__module__", None) == module.__name__
            and not key.startswith("_")
        ]
        known = f"it has {', '.join(sorted(own)[:12])}" if own else "it has none"
        raise refusal(f"{file} has no function {name}", known)
    value = getattr(module, name)
    if not inspect.isfunction(value):
        if mesh is not None:
            raise refusal(f"{file}: {name} is no function, which a mesh could be given to")
        return lambda: value
    required = [
        parameter.name
        for parameter in inspect.signature(value).parameters.values()
        if parameter.default is parameter.empty
        and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    ]
    takes_mesh = len(required) == 1
    if mesh is not None and not takes_mesh:
        takes = ", ".join(required) or "nothing"
        raise refusal(
            f"{file}: {name} takes {takes}, and is called with a mesh",
            "name a function of one argument, or leave out --mesh",
        )
    if mesh is None and required:
        advice = f"name a function that returns ({name}, args)"
        if takes_mesh:
            advice += "; if it takes its mesh, --mesh data=2,model=4 gives it one"
        raise refusal(
            f"{file}: {name} takes {', '.join(required)}, and is called without arguments", advice
        )

    @functools.wraps(value)
    def call() -> Any:
        from ncc_compiler.frontends.jax_program import mesh_of_devices

        with as_script(path), _raised_by_user(file):
            return value() if mesh is None else value(mesh_of_devices(mesh))

    return call


def _offer_devices(count: int) -> None:
    """Has JAX find so many CPU devices when it is imported; what the user set stays."""
    flags = os.environ.get("XLA_FLAGS", "")
    if _FLAG not in flags:
        os.environ["XLA_FLAGS"] = f"{flags} {_FLAG}={count}".strip()
    os.environ.setdefault("JAX_PLATFORMS", "cpu")


def _imported(path: Path) -> ModuleType:
    name = path.stem if path.stem not in sys.modules else f"{path.stem} of {path.parent}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # as dataclasses and pickle expect
    spec.loader.exec_module(module)
    return module


def sources() -> list[str]:
    """Files of Python that have been imported and are not installed: those of a model's own."""
    paths = sysconfig.get_paths()
    folders = [paths[key] for key in ("stdlib", "platstdlib", "purelib", "platlib")]
    folders += [site.getusersitepackages(), str(Path(__file__).parents[2])]
    installed = tuple(f"{Path(folder).resolve()}{os.sep}" for folder in folders)
    files = (getattr(module, "__file__", None) for module in list(sys.modules.values()))
    own = {str(Path(file).resolve()) for file in files if file is not None}
    return sorted(file for file in own if file.endswith(".py") and not file.startswith(installed))


@contextlib.contextmanager
def as_script(path: Path) -> Iterator[None]:
    """Arguments and search path as of `python FILE`; standard output is standard error.

    The working directory is afterwards as before, for names of files that are written.
    """
    folder, argv, cwd = str(path.resolve().parent), sys.argv, Path.cwd()
    sys.argv = [str(path)]
    if folder not in sys.path:
        sys.path.insert(0, folder)
    sys.stdout.flush()
    kept = os.dup(1)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            os.dup2(2, 1)  # of what is not written by Python
            yield
    finally:
        sys.stderr.flush()
        os.dup2(kept, 1)
        os.close(kept)
        sys.argv = argv
        os.chdir(cwd)


@contextlib.contextmanager
def _raised_by_user(file: str) -> Iterator[None]:
    """Raises CompileError for what the user's code raises."""
    try:
        yield
    except SystemExit as error:
        raise refusal(f"{file} ended the process, by sys.exit({error.code!r})") from error
    except ModuleNotFoundError as error:
        from ncc_compiler.frontends.jax_program import MISSING
        from ncc_compiler.frontends.pytorch.errors import HELP

        advice = {**MISSING, "torch": HELP, "torch_xla": HELP}.get(error.name or "", "")
        raise refusal(f"{file} failed: {in_one_line(error)}", advice) from error
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        is_of_devices = "device" in str(error)
        advice = "--ranks N gives the file N virtual devices" if is_of_devices else ""
        if "environment variable RANK" in str(error):
            advice = "--ranks N calls it once for each of N ranks of torch.distributed"
        raise refusal(f"{file} failed: {in_one_line(error)}", advice) from error
