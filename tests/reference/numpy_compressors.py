"""Compressors from their papers, in NumPy: what is sent, as bytes, and what the receiver reads from these.

A message is a list of float32 arrays. ``encode`` functions return bytes, ``decode`` functions arrays of the shapes that
sender and receiver have agreed on.
"""

import numpy as np


def vector(message):
    """All numbers of a message in one row."""
    return np.concatenate([np.ravel(x) for x in message]).astype(np.float32)


def like(message, x):
    """A row of numbers in the shapes of a message."""
    ends = np.cumsum([np.size(leaf) for leaf in message])[:-1]
    return [part.reshape(leaf.shape) for part, leaf in zip(np.split(x, ends), message, strict=True)]


def num_kept(fraction, size):
    """How many of ``size`` coordinates are sent."""
    return min(size, max(1, round(float(np.float32(fraction) * np.float32(size)))))


def top_k(message, fraction):
    """Places and values of the largest coordinates; the whole where that is no longer."""
    x = vector(message)
    places = np.sort(np.argsort(-np.abs(x), kind="stable")[: num_kept(fraction, x.size)])
    sparse = places.astype("<u4").tobytes() + x[places].astype("<f4").tobytes()
    return sparse if len(sparse) < x.nbytes else x.tobytes()


def read_top_k(sent, message):
    x = np.zeros(vector(message).size, np.float32)
    if len(sent) == x.nbytes:
        return like(message, np.frombuffer(sent, "<f4"))
    half = len(sent) // 2
    x[np.frombuffer(sent[:half], "<u4")] = np.frombuffer(sent[half:], "<f4")
    return like(message, x)


def random_k(message, fraction, key_data, draw):
    """The seed, and the values at the places of the largest of the numbers that ``draw`` makes of it."""
    x = vector(message)
    places = drawn(draw(key_data, x.size), num_kept(fraction, x.size))
    sparse = key_data.tobytes() + x[places].astype("<f4").tobytes()
    return sparse if len(sparse) < x.nbytes else x.tobytes()


def read_random_k(sent, message, draw, scaled):
    x = np.zeros(vector(message).size, np.float32)
    if len(sent) == x.nbytes:
        return like(message, np.frombuffer(sent, "<f4"))
    key_data, values = np.frombuffer(sent[:8], np.uint32), np.frombuffer(sent[8:], "<f4")
    x[drawn(draw(key_data, x.size), len(values))] = values * (x.size / np.float32(len(values)) if scaled else 1)
    return like(message, x)


def drawn(lots, number):
    return np.sort(np.argsort(-lots.astype(np.int64), kind="stable")[:number])


def qsgd(message, bits, uniform):
    """Of each array its norm, and for each coordinate a sign and a level; ``uniform`` are numbers in [0, 1)."""
    sent, s = b"", 2 ** (bits - 1) - 1
    for x, u in zip(message, uniform, strict=True):
        norm = np.float32(np.linalg.norm(np.float64(x)))
        place = s * np.abs(np.float64(x)) / norm
        level = np.floor(place) + (u < place - np.floor(place))
        codes = (np.signbit(x).astype(int) << (bits - 1)) | level.astype(int)
        digits = (codes.reshape(-1, 1) >> np.arange(bits)) & 1
        sent += norm.tobytes() + np.packbits(digits.astype(np.uint8)).tobytes()
    return sent


def read_qsgd(sent, message, bits):
    received, s = [], 2 ** (bits - 1) - 1
    for leaf in message:
        length = -(-leaf.size * bits // 8)
        norm, body, sent = np.frombuffer(sent[:4], "<f4")[0], sent[4 : 4 + length], sent[4 + length :]
        digits = np.unpackbits(np.frombuffer(body, np.uint8))[: leaf.size * bits].reshape(-1, bits)
        codes = (digits.astype(int) << np.arange(bits)).sum(1)
        signs = np.where(codes >> (bits - 1), -1.0, 1.0)
        received.append((signs * norm * ((codes & (2 ** (bits - 1) - 1)) / s)).reshape(leaf.shape))
    assert not sent
    return received


def qsgd_shrinkage(size, bits):
    """``1 + omega``."""
    s = 2 ** (bits - 1) - 1
    return 1 + min(size / s**2, np.sqrt(size) / s)


def sign(message):
    """Of each array the mean magnitude, and a bit for each coordinate."""
    return b"".join(np.float32(np.abs(x).mean()).tobytes() + np.packbits(np.ravel(x) >= 0).tobytes() for x in message)


def read_sign(sent, message):
    received = []
    for leaf in message:
        length = -(-leaf.size // 8)
        scale, body, sent = np.frombuffer(sent[:4], "<f4")[0], sent[4 : 4 + length], sent[4 + length :]
        bits = np.unpackbits(np.frombuffer(body, np.uint8))[: leaf.size]
        received.append(np.where(bits, scale, -scale).reshape(leaf.shape))
    assert not sent
    return received


def low_rank(message, factors, rank):
    """Two factors of each matrix that they make smaller, the other arrays, and the ``Q`` of the next message."""
    sent, after, left = b"", [], list(factors)
    for x in message:
        matrix = x.reshape(-1, x.shape[-1])
        if x.ndim < 2 or rank * sum(matrix.shape) >= x.size:
            sent += x.tobytes()
            continue
        p, _ = np.linalg.qr(np.float64(matrix) @ left.pop(0))
        q = np.float64(matrix).T @ p
        sent += p.astype("<f4").tobytes() + q.astype("<f4").tobytes()
        after.append(q)
    return sent, after


def read_low_rank(sent, message, rank):
    received = []
    for leaf in message:
        shape = leaf.reshape(-1, leaf.shape[-1]).shape
        count = rank * sum(shape) if leaf.ndim > 1 and rank * sum(shape) < leaf.size else leaf.size
        numbers, sent = np.frombuffer(sent[: 4 * count], "<f4"), sent[4 * count :]
        if count < leaf.size:
            p, q = numbers[: rank * shape[0]].reshape(-1, rank), numbers[rank * shape[0] :].reshape(-1, rank)
            numbers = p @ q.T
        received.append(numbers.reshape(leaf.shape))
    assert not sent
    return received
