"""What one run of the loss function left behind: values, calls, and the gradient of each call as the framework ran it."""
from __future__ import annotations

import dataclasses
from typing import Any

import torch


class Value:
    """A tensor of the step. An in-place operator makes a new value in the same memory."""

    __slots__ = ("shape", "dtype", "role", "name", "frozen", "storage", "requires_grad", "edge", "origin", "producer", "channels_last",
                 "real", "view_of", "host")

    def __init__(self, tensor: torch.Tensor, storage: int, role: str = "activation", name: str = "") -> None:
        self.shape = tuple(tensor.shape)
        self.dtype = tensor.dtype
        self.role = role              # activation, parameter, buffer, input, constant
        self.name = name
        self.frozen = False
        self.storage = storage
        self.requires_grad = tensor.requires_grad
        self.edge: tuple[int, int] | None = None   # (sequence number of the node that made it, which of its results)
        self.origin: Value | None = None           # an operand that the framework copied to another layout first
        self.producer: tuple | None = None         # how to compute its real value: (operator, args, kwargs, index)
        self.channels_last = False
        self.real: torch.Tensor | None = None
        self.view_of: Value | None = None          # the value whose memory this is another look at
        self.host = False                          # lives on the host: arithmetic on it launches nothing


    def copy(self) -> "Value":
        """Another value like this one, in memory of its own."""
        other = object.__new__(Value)
        for name in Value.__slots__:
            setattr(other, name, getattr(self, name))
        other.role, other.name, other.origin = "activation", "", self
        return other


@dataclasses.dataclass(slots=True)
class Made:
    """A result inside a recorded gradient."""
    shape: tuple[int, ...]
    dtype: torch.dtype
    of: int | None = None     # shares the memory of this operand


@dataclasses.dataclass(slots=True)
class BackCall:
    name: str
    inputs: list[str | None]  # g0, i0, o0, t0
    outputs: list[Made]
    attrs: dict[str, Any]
    strided: bool = False
    kind: str | None = None


@dataclasses.dataclass(slots=True)
class Call:
    name: str
    inputs: list[Value | None]
    outputs: list[Value]
    attrs: dict[str, Any] = dataclasses.field(default_factory=dict)
    module: str = ""
    off: bool = False                 # autocast has no say here
    strided: bool = False
    kind: str | None = None
    of: dict[int, int] = dataclasses.field(default_factory=dict)
    hidden: int = 0                   # how many of the outputs, counted from the end, the code never sees
    replays_view: bool = False        # a view that autograd made anew after its memory was written in place
    derives: bool = False             # the reader knows the gradient better than the capturing machine
    nodes: tuple[int, int] = (0, 0)   # autograd nodes made during it: [first, last)
    internals: dict[int, torch.Tensor] = dataclasses.field(default_factory=dict)
    back: list[BackCall] = dataclasses.field(default_factory=list)
    gives: list[tuple[int, str]] = dataclasses.field(default_factory=list)
    refs: dict[tuple, str] = dataclasses.field(default_factory=dict)   # while backward runs: memory -> g0, t0
    made: int = 0


@dataclasses.dataclass
class Recording:
    calls: list[Call]
    leaves: list[Value]               # in order of first use; unused parameters at the end
    loss: Value
    notes: list[str]
    channels_last: bool
    sizes: dict[str, int]
    dtype: torch.dtype
    reads_types: bool = False         # the code asked a tensor for its dtype
    autocast: bool = False            # operands were converted as autocast does
    scores: str = "returned"          # what becomes of them where the model is compiled
