"""Triton's interpreter, mended, so that kernels give on a CPU the numbers of a GPU."""

import numpy as np
import torch
import triton.language as tl
from triton.runtime import interpreter

BFLOAT16, FLOAT32 = tl.bfloat16, tl.float32
Builder, Handle = interpreter.InterpreterBuilder, interpreter.TensorHandle


def mend(monkeypatch):
    """It cuts bfloat16 off in place of rounding, has no products of it, and gives numpy no plain integer.

    Its products are numpy's, which add in another order in another row; a GPU adds in the same order in all.
    It also prepares the language again for each function that a kernel calls, which takes long: here it does so once.
    """
    convert, patch_tensor = Builder.cast_impl, interpreter._patch_lang_tensor

    def rounded(self, source, kind):
        if (source.dtype.scalar, kind.scalar) != (FLOAT32, BFLOAT16):
            return convert(self, source, kind)
        narrow = torch.from_numpy(np.ascontiguousarray(source.data)).to(torch.bfloat16)
        return Handle(narrow.view(torch.uint16).numpy(), kind.scalar)

    def product(self, a, b, start, *_):
        wide = [convert(self, each, FLOAT32).data if each.dtype.scalar == BFLOAT16 else each.data for each in (a, b)]
        return Handle(np.einsum("mk,kn->mn", *wide, dtype=np.float32) + start.data, FLOAT32)

    def with_integers(tensor, scope):
        patch_tensor(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: self.handle.data.item())

    def called(self, *given, **named):
        return self.rewrite()(*given, **named)

    interpreter._patch_lang(tl.standard.sum.fn)
    monkeypatch.setattr(interpreter.InterpretedFunction, "__call__", called)
    for name in ("cast_impl", "create_fp_ext", "create_fp_trunc"):
        monkeypatch.setattr(Builder, name, rounded)
    monkeypatch.setattr(Builder, "create_dot", product)
    monkeypatch.setattr(interpreter, "_patch_lang_tensor", with_integers)
