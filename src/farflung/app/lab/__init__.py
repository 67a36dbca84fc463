"""The laboratory: homes behind routers, their access lines and a backbone, in namespaces of one Linux machine."""

from farflung.app.lab.homes import Home, Nat, parse_home
from farflung.app.lab.laboratory import Laboratory
from farflung.app.lab.spaces import why_not

__all__ = ["Home", "Laboratory", "Nat", "parse_home", "why_not"]
