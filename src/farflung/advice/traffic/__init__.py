"""Computes the bytes, synchronisations and seconds of parallel training, each with its formula.

Sources of the modules here, by author and year:

    Patarasuk & Yuan 2009, Thakur, Rabenseifner & Gropp 2005, Sanders, Speck & Traeff 2009, Hockney 1994: collectives
    Li et al. 2020, arXiv 2006.15704 (DDP)              Rajbhandari et al. 2020, arXiv 1910.02054 (ZeRO)
    Zhao et al. 2023, arXiv 2304.11277 (FSDP)           Wang et al. 2023, arXiv 2306.10209 (ZeRO++)
    Shoeybi et al. 2019, arXiv 1909.08053 (Megatron-LM) Korthikanti et al. 2022, arXiv 2205.05198
    Narayanan et al. 2021, arXiv 2104.04473             Huang et al. 2019, arXiv 1811.06965 (GPipe)
    Wang et al. 2022, arXiv 2206.01299 (AQ-SGD)         Yuan et al. 2022, arXiv 2206.01288 (DT-FM)
    Liu et al. 2023, arXiv 2310.01889 (ring attention)  Lepikhin et al. 2020, arXiv 2006.16668 (GShard)
    Douillard et al. 2023, arXiv 2311.08105 (DiLoCo)    Peng et al. 2024, arXiv 2411.19870 (DeMo)
    Mathis et al. 1997, The macroscopic behavior of the TCP congestion avoidance algorithm; Cardwell et al. 2016, BBR
    Young 1974; Daly 2006, A higher order estimate of the optimum checkpoint interval for restart dumps;
    Bougeret et al. 2011, Checkpointing strategies for parallel jobs
"""
