"""What can go wrong and is not our mistake: one sentence says what, where, what to do.

TransduceError
  ConfigError          a setting is impossible
  DataError            a file cannot be used: path and line are said
  CheckpointError      missing or damaged
    VersionError         ... or sound, but saved by another version of transduce
  RequestError         the caller asked for what the model or machine cannot do
    BusyError            ... now, because of what others have asked for
      OverdueError         ... which waited for too long
    TooLongError         ... at once
    TimeLimitError       ... in the time limit of a request

Some belong to what they end, and stand there: training that is stopped or diverges,
one process of several that is killed, an export's proof that fails, a reproduction that
is stopped or has failed runs.
"""


class TransduceError(Exception):
    """The base of all errors a user can mend."""


class ConfigError(TransduceError):
    """A setting is impossible."""


class DataError(TransduceError):
    """A file cannot be used; the message says which, and the line if there is one."""


class CheckpointError(TransduceError):
    """A checkpoint is missing or damaged."""


class VersionError(CheckpointError):
    """A checkpoint is sound, but was saved by another version of transduce."""


class RequestError(TransduceError):
    """The caller asked for what the model or the machine cannot do."""


class BusyError(RequestError):
    """The caller asked for what could be done, but not now."""


class OverdueError(BusyError):
    """The request had no turn within the time that a request may wait."""


class TooLongError(RequestError):
    """The caller asked for more at once than is done; in parts it could be."""


class TimeLimitError(RequestError):
    """The request takes longer than a request may."""
