"""What :func:`outpace.load` takes beside the two models: declared here, once, for Python, the command line, plans,
tuning, the bench and the server."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from .errors import ParameterError

WEIGHTS = ("auto", "file", "q8", "q4", "q4_0", "bf16", "f32")
BACKENDS = ("auto", "native", "torch")
CONTROLLERS = ("auto", "fixed")

Grouped = Mapping[str, Mapping[str, object]]
"""By drafter or rule, the fields of its Config and their values."""


def _flag(default: Any, about: str, *, metavar: str = "", choices: Sequence[str] = (), models: bool = False) -> Any:
    """A field that the command line has as well. ``models``: also for commands that load models without an engine."""
    told = {"help": about, "metavar": metavar or None, "choices": tuple(choices) or None, "models": models}
    return field(default=default, metadata=told)


@dataclass(frozen=True)
class LoadOptions:
    """The settings of an engine. Raises ParameterError for an impossible value.

    ``drafter``: names of drafters (a string with commas, or a list): the first one drafts, the others for requests that
    name them. Empty: ``draft_model`` where there is a draft model, ``lookup`` otherwise and where the controller may
    choose it. ``gamma``: drafted tokens a round; None: the controller's choice. ``controller``: "auto" decides in each
    round how many tokens are drafted, and by which of the drafters, for requests that name no gamma (at the first load
    of a model it needs a few seconds, to measure its passes); "fixed" drafts ``gamma`` tokens in every round, or as
    many as the drafter has by default, and a ``gamma`` means the same. ``prior``: by drafter, the acceptance rate that
    the controller expects before it has seen any. ``accept``: the acceptance rule.

    ``weights``, ``backend``, ``threads``, ``context``: the target's, see :func:`outpace.runtimes.loading.load_model`;
    ``draft_weights``, ``draft_head``: the draft's, see :func:`outpace.runtimes.loading.load_draft`.

    ``max_batch``: sessions that share a pass. ``kv_bytes``: memory for keys and values in all, of target and drafts:
    those of requests, of scored texts and of the prefix cache; None: no limit. A request takes what its text needs
    now, not what it may still need. Requests wait for room. Where the running ones outgrow it, the one that came last
    waits again, and goes on later with the same tokens (where a runtime's rows depend on those beside them, each gets
    room for its whole length instead). One that could never fit is refused with ContextError. ``prefix_bytes``: of
    that, for the prefix cache.

    ``special_tokens_in_messages``: a special token that a chat message spells becomes that token; by default it stays
    text. ``drafter_options``: fields of drafters' Configs, by drafter; those of a hybrid's members under the members'
    own names. ``rule_options``: fields of rules' Configs, by rule.
    """

    drafter: str | Sequence[str] | None = _flag(
        (), "how to draft (draft_model with a draft, lookup without; both where the controller chooses)",
        metavar="NAME[,NAME]",
    )  # fmt: skip
    gamma: int | None = _flag(
        None, "tokens drafted a round, the controller's choice if not given; 0 is plain decoding", metavar="N"
    )
    controller: str = _flag(
        "auto", "auto: draft as much as pays, in every round; fixed: always as many (auto)", choices=CONTROLLERS
    )
    accept: str = _flag("match", "acceptance rule (match)")
    weights: str = _flag(
        "auto", "the target's weights: as in the file, or rounded (auto)", choices=WEIGHTS, models=True
    )
    draft_weights: str = _flag("auto", "the draft's (auto: q4_0 if it is big)", choices=WEIGHTS, models=True)
    draft_head: int | None = _flag(
        None, "keep N token ids of the draft's output head; 0: all", metavar="N", models=True
    )
    backend: str = _flag("auto", "C kernels, or torch (auto)", choices=BACKENDS, models=True)
    threads: int | None = _flag(
        None, "threads to compute with (one a physical core, as far as the CPU quota allows)", metavar="N", models=True
    )
    context: int | None = _flag(None, "use at most N tokens of the model's context", metavar="N", models=True)
    special_tokens_in_messages: bool = _flag(
        False, "let chat messages write the model's special tokens, such as <|im_end|>; otherwise these are text"
    )
    prior: Mapping[str, float] = field(default_factory=dict)
    max_batch: int = 8
    prefix_bytes: int = 0
    kv_bytes: int | None = None
    drafter_options: Grouped = field(default_factory=dict)
    rule_options: Grouped = field(default_factory=dict)

    def __post_init__(self) -> None:
        names = self.drafter.split(",") if isinstance(self.drafter, str) else list(self.drafter or ())
        names = [name.strip() for name in names]
        if not all(names) or len(set(names)) < len(names):
            raise ParameterError(f"drafter must name one drafter or several different ones, not {self.drafter!r}")
        object.__setattr__(self, "drafter", tuple(names))
        for name in ("prior", "drafter_options", "rule_options"):
            object.__setattr__(self, name, dict(getattr(self, name) or {}))
        for name, known in (("weights", WEIGHTS), ("draft_weights", WEIGHTS), ("backend", BACKENDS),
                            ("controller", CONTROLLERS)):  # fmt: skip
            if getattr(self, name) not in known:
                raise ParameterError(f"{name} must be one of {', '.join(known)}, not {getattr(self, name)!r}")
        for name, least in (("gamma", 0), ("draft_head", 0), ("threads", 1), ("context", 1), ("max_batch", 1),
                            ("prefix_bytes", 0), ("kv_bytes", 0)):  # fmt: skip
            value = getattr(self, name)
            if value is None and name not in ("max_batch", "prefix_bytes"):
                continue
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise ParameterError(f"{name} must be a whole number of at least {least}, not {value!r}")

    @property
    def drafters(self) -> tuple[str, ...]:
        """The names in ``drafter``."""
        return tuple(self.drafter or ())

    @property
    def adaptive(self) -> bool:
        """Whether a controller decides how much is drafted."""
        return self.controller == "auto" and self.gamma is None

    def changed(self, changes: Mapping[str, Any]) -> LoadOptions:
        """These settings with some of them replaced. Raises ParameterError for one that there is not."""
        known = [one.name for one in fields(self)]
        for name in changes:
            if name not in known:
                near = difflib.get_close_matches(name, known, 1)
                hint = f"; did you mean {near[0]!r}?" if near else f"; they are {', '.join(known)}"
                raise ParameterError(f"there is no load option {name!r}{hint}")
        return replace(self, **changes)

    def as_dict(self) -> dict[str, Any]:
        """What differs from the defaults, ready for JSON; ``changed`` takes it."""
        default = LoadOptions()
        found = {one.name: getattr(self, one.name) for one in fields(self)}
        return {name: list(value) if isinstance(value, tuple) else value for name, value in found.items()
                if value != getattr(default, name)}  # fmt: skip
