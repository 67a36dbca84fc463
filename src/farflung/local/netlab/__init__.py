"""Emulates homes behind routers, their access lines and a backbone, in namespaces of one Linux machine."""

from farflung.local.netlab.homes import EmulatedHome, NatType, parse_home
from farflung.local.netlab.lab import NetworkLab
from farflung.local.netlab.namespaces import why_not

__all__ = ["EmulatedHome", "NatType", "NetworkLab", "parse_home", "why_not"]
