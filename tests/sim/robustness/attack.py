"""Hostile clients in a process of their own, for test_fuzz.py.

Random words in pages and ledgers, random packets, devices attached and left in any order. Run as a module: socket,
seed, how many messages; prints how many were sent.

In a process of their own, because the server takes a client that joins again from the same process for one that holds
nothing any more, and because it may end at any moment. Most packets make sense, or the server would hang up at the
first.
"""

from __future__ import annotations

import os
import random
import socket
import struct
import sys

from tests.unit.server import wire
from tests.unit.server.wire import RawClient

GROUPS = ("rude", "rude", "other", "shared", "fast")
LATER = (
    wire.REQUEST, wire.TOOK, wire.STOPPED, wire.DRAINED, wire.CONTEXT, wire.REFUSED, wire.ADMIT, wire.ROOM, wire.MOVED,
)  # fmt: skip
DEVICE_AND_EPOCH = struct.Struct("=II")
AT = 8  # of these in a packet
POOL = 4096
BATCH = 400  # messages of one client at most


def word(dice: random.Random) -> int:
    return dice.choice([0, 1, 2, 3, 4, 7, 2**32 - 1, 2**63, 2**64 - 5, 2**64 - 1, dice.randrange(2**64)])


def sensible_packet(dice: random.Random) -> bytearray:
    """One that does not end the connection, wherever it is understood."""
    return bytearray(
        wire.pack(
            dice.choice(LATER),
            reason=word(dice) % 2**32,
            flags=word(dice) % 2**32,
            tail_ns=word(dice),
            time_ns=word(dice),
            value=word(dice),
            uuid=dice.randbytes(16),
            group=dice.randbytes(256),
        )
    )


def one_packet(dice: random.Random, epoch: int) -> bytes:
    kind = dice.choice([*range(1, 12), *range(16, 19), dice.randrange(65536)])
    if kind in (wire.HELLO, wire.LEAVES) and dice.random() < 0.9:
        kind = wire.REQUEST
    packet = bytearray(
        wire.pack(
            kind,
            device=dice.choice([0, 0, 0, 0, 1, 63, 64, 2**32 - 1]),
            epoch=dice.choice([epoch, epoch, epoch, epoch + 1, epoch - 1, word(dice)]) % 2**32,
            reason=word(dice) % 2**32,
            flags=word(dice) % 2**32,
            tail_ns=word(dice),
            time_ns=word(dice),
            value=word(dice),
            uuid=dice.randbytes(16) if dice.random() < 0.3 else bytes(16),
            group=dice.randbytes(256),
        )
    )
    if dice.random() < 0.02:
        packet[dice.randrange(len(packet))] ^= 1 << dice.randrange(8)
    if dice.random() < 0.01:
        return bytes(packet[: dice.randrange(len(packet))])
    if dice.random() < 0.01:
        return bytes(packet) + dice.randbytes(dice.randrange(1, 60_000))
    return bytes(packet)


def device(dice: random.Random) -> bytes:
    """The one that exists, one of a few that everybody names, or one that nobody has seen."""
    return dice.choice([bytes(16), dice.randrange(1, 100).to_bytes(16, "big"), dice.randbytes(16)])


def attach(dice: random.Random, rude: RawClient) -> bool:
    """Asks for a device; whether it has got it."""
    answer = rude.ask(wire.ATTACH, uuid=device(dice), flags=dice.randrange(2), value=word(dice))
    if answer.status != wire.OK:
        return False
    if dice.random() < 0.7 and len(answer.descriptors) >= 4:
        page, limits, ledger, *others = answer.descriptors
        rude.page = wire.Page("ClientPage", page, 128)
        rude.ledger = wire.Page("GroupLedger", ledger, 64 + 8 * 1024)
        if len(others) == 2:
            rude.residency = wire.Page("ResidencyPage", others.pop(), 128)
        answer.descriptors = [limits, *others]
    for descriptor in answer.descriptors:
        os.close(descriptor)
    return True


def scribble(dice: random.Random, rude: RawClient) -> None:
    if not hasattr(rude, "page"):
        return
    if hasattr(rude, "residency") and dice.random() < 0.4:
        at = dice.randrange(16) * 8
        rude.residency.memory[at : at + 8] = word(dice).to_bytes(8, "little")
    elif dice.random() < 0.6:
        at = dice.randrange(16) * 8
        rude.page.memory[at : at + 8] = word(dice).to_bytes(8, "little")
    else:
        at = 8 * dice.choice([0, dice.randrange(1032)])
        rude.ledger.memory[at : at + 8] = word(dice).to_bytes(8, "little")


def attack(dice: random.Random, path: str, pool: list[bytearray], *, most: int = BATCH) -> int:
    """One hostile client. Returns how many messages it sent."""
    sent = 0
    try:
        rude = RawClient(path, dice.choice(GROUPS), flags=wire.CREATE_GROUP | dice.choice([0, wire.STRICT]))
        sent, devices = 2, int(attach(dice, rude))
        rude.socket.settimeout(5)
        for _ in range(dice.randrange(most)):
            dart = dice.random()
            if dart < 0.03:
                scribble(dice, rude)
            elif dart < 0.06:
                devices += attach(dice, rude)
            elif dart < 0.062:
                rude.socket.send(one_packet(dice, rude.epoch if hasattr(rude, "page") else 0))
            elif dart < 0.064:
                with socket.socket() as extra:
                    socket.send_fds(rude.socket, [pool[0]], [extra.fileno()] * dice.randrange(1, 100))
            else:
                packet = pool[int(dart * 1e9) % POOL]
                epoch = rude.epoch if dart < 0.5 and hasattr(rude, "page") else sent % 5
                DEVICE_AND_EPOCH.pack_into(packet, AT, sent % devices if devices else 0, epoch)
                rude.socket.send(packet)
            sent += 1
    except (OSError, AssertionError, ValueError):
        pass  # dropped or turned away
    return sent


def main() -> None:
    path, seed, messages = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    dice = random.Random(seed)
    pool = [sensible_packet(dice) for _ in range(POOL)]
    sent = 0
    while sent < messages:
        sent += attack(dice, path, pool)
        if dice.random() < 0.7:
            for client in wire.opened:
                client.close()
            wire.opened.clear()
        elif len(wire.opened) > 64:
            wire.opened.pop(dice.randrange(64)).close()
    print(sent, flush=True)
    os._exit(0)  # with whatever is open, as a program that is killed would leave it


if __name__ == "__main__":
    main()
