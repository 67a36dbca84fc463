"""Decides which device trains what: groups, pipelines, layers, and what changes when some are lost (requirement P4).

Nothing here waits, reads a clock or draws randomness of its own: one seed gives one placement. `farflung plan --offers`
uses

    link_matrices                                      seconds between devices: sites, each device's line both ways
    layer_chain, uneven_layers                         a model as units, and how many each stage takes
    grid_starts, grid_objective, node_selection        time and price of a grid of nodes; which nodes are used

The library and bench/place.py also use DT-FM's objective (dtfm_objective, group_starts, simulated_annealing;
exhaustive_search up to 12 devices, device_clusters above 1,000). failure_replan (at most 15 % of the state moves) and
stage_rebalance (SWARM: Ryabinin et al. 2023, section 3.2) are used by nothing yet: no worker trains in stages.
Reasons, limits and figures: docs/decisions/064-placement.md.
"""
