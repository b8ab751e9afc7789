"""Attacks of malicious clients: on their data (``poison``) or on what they send (``forge``)."""

from fedjax_drag.attacks._freeloader import freeloader
from fedjax_drag.attacks._label_flip import label_flip
from fedjax_drag.attacks._scale_noise import scale_noise
from fedjax_drag.attacks._sign_flip import sign_flip

__all__ = ["freeloader", "label_flip", "scale_noise", "sign_flip"]
