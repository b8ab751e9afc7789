"""Errors that the user can correct."""


class FolderError(ValueError):
    """A results folder is in use, damaged or cannot be written; the message says what can be done."""


class InUseError(FolderError):
    """Another process writes into the folder."""


class MismatchError(FolderError):
    """A checkpoint is whole, and of something else than the run that is to go on from it."""
