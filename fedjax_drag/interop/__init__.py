"""Rules in federations that other frameworks run."""

from fedjax_drag.interop.server import RuleServer, Update, update

__all__ = ["RuleServer", "Update", "update"]
