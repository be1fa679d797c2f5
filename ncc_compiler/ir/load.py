"""A text to a verified module, or everything that is wrong with the text."""

from ncc_compiler.diagnostics import CompileError, Source
from ncc_compiler.ir.graph import Module
from ncc_compiler.ir.text.build import build_module
from ncc_compiler.ir.verify import in_program_order, verify, verify_nodes


def load_module(source: Source, ranks: int | None = None) -> Module:
    """Parse, build and verify; raises CompileError with every diagnostic, in program order.

    Lines that cannot be read do not hide what is wrong with the others.
    """
    from ncc_compiler.syntax.parse import MAX_ERRORS, parse

    file, unread = parse(source)
    if len(unread) >= MAX_ERRORS:
        raise CompileError(unread)
    module, unbuilt = build_module(file, ranks)
    diagnostics = [*unread, *unbuilt]
    if module is not None:
        diagnostics += verify_nodes(module) if diagnostics else verify(module)
    if diagnostics:
        raise CompileError(in_program_order(diagnostics))
    assert module is not None
    return module
