"""Networks for the placement benchmark, drawn from a seed: homes in ten cities of the world.

Delay between cities: 1.5 times the great circle at 200 km a millisecond, and 2.5 ms at each end; what one flow carries
between them falls with the delay, from 1.25 Gbit/s, and differs by pair (log-normal, 0.15). Homes have their own
lines: uplinks log-normal around 1 Gbit/s (0.5), downlinks one to four times as fast.
"""

from __future__ import annotations

import numpy as np

from farflung.advice.placement import grid_objective
from farflung.advice.placement.grid_objective import Fleet, StepWork
from farflung.advice.placement.layer_chain import DecoderShape, decoder
from farflung.advice.placement.link_matrices import LinkMatrices, mesh

CITIES = {  # degrees north and east
    "Portland": (45.5, -122.7), "Ashburn": (39.0, -77.5), "Columbus": (40.0, -83.0), "Tokyo": (35.7, 139.7),
    "Seoul": (37.6, 127.0), "Singapore": (1.35, 103.8), "Sydney": (-33.9, 151.2), "London": (51.5, -0.1),
    "Frankfurt": (50.1, 8.7), "Dublin": (53.3, -6.3),
}  # fmt: skip


def homes(count: int, seed: int, *, uplink: float = 1e9) -> LinkMatrices:
    """`count` homes, each in a city drawn evenly."""
    generator = np.random.default_rng(seed)
    north, east = np.radians(np.array(list(CITIES.values()))).T
    cosine = np.sin(north) * np.sin(north)[:, None] + np.cos(north) * np.cos(north)[:, None] * np.cos(
        east - east[:, None]
    )
    distance = 6371.0 * np.arccos(np.clip(cosine, -1.0, 1.0))
    delay = 1.5 * distance / 200e3 + 0.005
    spread = generator.lognormal(0.0, 0.15, delay.shape)
    rate = 1.25e9 * np.exp(-delay / 0.15) * np.sqrt(spread * spread.T)
    np.fill_diagonal(rate, 2e9)
    up = generator.lognormal(np.log(uplink), 0.5, count)
    down = up * generator.uniform(1.0, 4.0, count)
    return mesh(generator.integers(0, len(CITIES), count), delay, rate, up, down)


def fleet_of(count: int, seed: int, model: DecoderShape) -> tuple[Fleet, StepWork]:
    """So many homes with a card of 16 or 24 GB each and lines around 100 Mbit/s, and a step of 16 micro-batches.

    LoRA: 2.05 bytes a parameter are held, a hundredth is exchanged, every 100 steps; activations go in 8 bits.
    """
    generator = np.random.default_rng([seed, count])
    cards = np.array([[165, 24], [71, 24], [88, 16], [44, 16], [76.7, 16], [97.5, 16]])[generator.integers(0, 6, count)]
    fleet = grid_objective.fleet(
        homes(count, seed, uplink=100e6), 0.4e12 * cards[:, 0], (0.9 * cards[:, 1] - 1.0) * 2**30,
        price=0.003 * cards[:, 0], failures=np.full(count, 0.05),
    )  # fmt: skip
    chain = decoder(model, 2048, 2048, state=2.05, trained=0.01)
    return fleet, StepWork(chain, 16, 2048, 2048.0 * model.width, every=100, repair=120.0, audited=0.05)
