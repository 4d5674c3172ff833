"""Every error Outpace raises on purpose. Messages name the culprit and the remedy."""


class OutpaceError(Exception):
    """Base of all errors raised by Outpace."""


class ParameterError(OutpaceError, ValueError):
    """A parameter has an impossible value; the message names it and what is allowed."""


class CatalogueError(OutpaceError):
    """A catalogue model is unknown, or none of its sources could deliver it."""


class ModelError(OutpaceError):
    """A model's files cannot be used; the message names the file and the tensor."""


class VocabularyError(ModelError):
    """Target and draft do not share a vocabulary; the message names both sizes."""


class TemplateError(OutpaceError):
    """A chat template is missing, or refused the messages; carries the template's own words."""


class ContextError(OutpaceError, ValueError):
    """A prompt does not fit the model's context."""


class CacheError(OutpaceError):
    """A KV cache was asked for something it cannot do."""


class NumericsError(OutpaceError):
    """A model produced NaN or infinite logits."""


class ForkError(OutpaceError):
    """A forked child cannot use what its parent had at work; the message says what to do instead."""


class ConstraintError(OutpaceError):
    """A constraint became too complex to follow in the middle of an answer."""


class DrafterError(OutpaceError):
    """A drafter cannot be built, or broke its contract."""


class PluginError(OutpaceError):
    """A drafter, rule or family of another package cannot be used; the message names its distribution."""


class PeerError(OutpaceError):
    """Another engine, run in its own environment, could not be started or answered with an error of its own."""
