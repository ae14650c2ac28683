"""The placeholders by which a mode of one's own says to type checkers what it takes and gives."""

from verl_dispatch.modes import Arg, Batch, Mode, Ref, Res

__all__ = ["Arg", "Batch", "Mode", "Ref", "Res"]
