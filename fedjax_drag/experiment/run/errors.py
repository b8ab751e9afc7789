"""Errors that the user can correct."""


class FolderError(ValueError):
    """A results folder is in use, damaged or cannot be written; the message says what can be done."""


class MismatchError(FolderError):
    """A checkpoint is whole, and of something else than the run that is to go on from it."""
